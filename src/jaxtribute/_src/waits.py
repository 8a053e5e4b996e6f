"""Seconds that this process has waited for input: a number that grows, for reports of the parts of a step's time."""

from __future__ import annotations

input_s = 0.0
"""Seconds since the start."""


def for_input(seconds: float) -> None:
    """Adds a wait for input."""
    global input_s
    input_s += seconds
