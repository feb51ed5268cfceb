"""Training draft networks: prompts in, a head out. Nothing is imported here, so that its parts stay light."""
