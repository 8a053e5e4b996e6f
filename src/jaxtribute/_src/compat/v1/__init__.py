"""Strategies with version 1's methods and defaults."""
