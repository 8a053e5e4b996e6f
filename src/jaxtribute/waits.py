"""How long this process has waited for input: a number that grows, for whoever reports where time goes."""

from __future__ import annotations

input_s = 0.0
"""Seconds since the start."""


def for_input(seconds: float) -> None:
    """Adds a wait for input."""
    global input_s
    input_s += seconds
