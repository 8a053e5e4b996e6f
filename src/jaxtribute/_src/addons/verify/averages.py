"""The metrics of Keras that tell a mean, and nothing else."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from jaxtribute import Variable


def means() -> Iterator[tuple[Variable, Variable]]:
    """Gives the total and the count of each metric whose result is their quotient."""
    mean: Any = getattr(getattr(sys.modules.get("keras"), "metrics", None), "Mean", None)
    if mean is None:
        return
    for one in gc.get_objects():
        kind = type(one)
        if issubclass(kind, mean) and kind.result is mean.result and {"total", "count"} <= vars(one).keys():
            total, count = (getattr(variable, "stored", None) for variable in (one.total, one.count))
            if total is not None and count is not None:
                yield total, count
