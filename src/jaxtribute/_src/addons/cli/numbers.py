"""Numbers among the arguments of commands."""

from __future__ import annotations

import argparse

from jaxtribute.extending import shown, whole_number


def whole(text: str) -> int:
    """Returns the whole number that an argument is.

    Raises:
      argparse.ArgumentTypeError: it is none, or less than 0.
    """
    number = whole_number(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no whole number from 0 on")
    return number
