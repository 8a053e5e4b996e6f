"""Keeps what a backward pass needs within a budget: what is kept of a loss, and what is computed again."""
