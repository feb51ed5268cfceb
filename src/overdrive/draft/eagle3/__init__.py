"""EAGLE-3 (Li et al. 2025): a draft network of one layer that reads the target's hidden states."""
