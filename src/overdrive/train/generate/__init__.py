"""The target's own answers, as conversations to train a draft head on. Nothing is imported here: parts stay light."""
