"""Values of environment variables and of JSON in them, which anybody may have written: right ones, or one line."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeVar

from jaxtribute.errors import ConfigError, JaxtributeError

_T = TypeVar("_T")

CPU_DEVICES = "JAXTRIBUTE_CPU_DEVICES"
"""Number of logical devices that `import jaxtribute` makes of the CPU."""
DIGITS = 18
"""Of a number that counts anything; Python refuses to read very long ones."""
_LONGEST = 300
READERS: dict[str, Callable[[], object]] = {}
"""Functions that read settings, of the modules that are loaded."""


def reader(variable: str, read: Callable[[], _T]) -> Callable[[], _T]:
    """Returns the function that reads a setting, after which `problems` knows it; it raises for what it does not take.

    Args:
      variable: the setting's name.
      read: the function.
    """
    READERS[variable] = read
    return read


def problems() -> dict[str, str]:
    """Settings of the environment whose readers, in modules that are loaded, do not take them; each with the error."""
    refused: dict[str, str] = {}
    for variable in sorted(READERS.keys() & os.environ.keys()):
        try:
            READERS[variable]()
        except JaxtributeError as error:
            refused[variable] = str(error)
    return refused


def words(variable: str, known: frozenset[str]) -> frozenset[str]:
    """The words, with commas between them, that an environment variable holds.

    Args:
      variable: its name.
      known: those that mean something.

    Raises:
      ConfigError: it holds another one.
    """
    found = frozenset(word for word in map(str.strip, os.environ.get(variable, "").split(",")) if word)
    if found - known:
        raise ConfigError(
            f"{variable}={shown(os.environ[variable])} is not known. HINT: set it to {' or '.join(sorted(known))}, or "
            "unset it."
        )
    return found


def whole_number(text: str) -> int | None:
    """The whole number from 0 on that a text is; None for anything else.

    Args:
      text: what a user or an environment variable says.
    """
    # `int` reads more than that: signs, spaces, underscores, digits of other scripts.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None


def count(variable: str, default: int, least: int = 0, most: int = 10**DIGITS) -> int:
    """The whole number that an environment variable holds.

    Args:
      variable: its name.
      default: what it stands for if it is not set, or empty.
      least: the smallest number that makes sense.
      most: the largest one.

    Raises:
      ConfigError: it holds something else.
    """
    text = os.environ.get(variable, "").strip()
    number = whole_number(text)
    if not text:
        return default
    if number is None or not least <= number <= most:
        limit = f" to {most}" if most < 10**DIGITS else " on"
        raise ConfigError(
            f"{variable}={shown(text)} is no whole number from {least}{limit}. HINT: set it to one, or unset it."
        )
    return number


def seconds(variable: str, default: float, least: float) -> float:
    """The number of seconds that an environment variable holds.

    Args:
      variable: its name.
      default: what it stands for if it is not set.
      least: the smallest number that makes sense.

    Raises:
      ConfigError: it holds something else, or what is no time to wait for.
    """
    text = os.environ.get(variable, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # NaN is neither less nor more than anything.
    if not least <= value < math.inf:
        raise ConfigError(
            f"{variable}={shown(text)} is no number of seconds from {least:g} up. HINT: unset it for {default:g}."
        )
    return value


def shown(value: object) -> str:
    """A value for a message: as Python writes it, and not longer than a line or two.

    Args:
      value: any object.
    """
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} of very many brackets within brackets"
    except ValueError:  # a number of thousands of digits
        return f"a {type(value).__name__} with a number of very many digits"
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text):,} letters)"
