"""Products of cases, of which the suite runs a fixed half: every second case, as on a chessboard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

ALL_CASES = "JAXTRIBUTE_ALL_CASES" in os.environ
"""Whether products are run whole: for a change of what many tests rest on."""


def is_chosen(*places: int) -> bool:
    """Whether the case at these places of its factors is run."""
    return ALL_CASES or sum(places) % 2 == 0


def chosen(first: Sequence[Any], second: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The cases of a product of two factors that are run."""
    return [(one, two) for i, one in enumerate(first) for j, two in enumerate(second) if is_chosen(i, j)]
