"""Adapters from the datasets that people have to the streams that this package distributes.

An adapter is a file of its own here that defines a `Source` and registers it; adding one touches nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import Any

from jaxtribute._src.input.sources.base import Adapter, Source, Stream, adapters
from jaxtribute.errors import ArgumentTypeError

__all__ = ["Adapter", "Source", "Stream", "adapt"]


@lru_cache(maxsize=1)
def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def adapt(dataset: Any) -> Source:
    """Returns the source for a dataset.

    Raises:
      ArgumentTypeError: if no adapter takes it.
    """
    _load()
    if isinstance(dataset, Source):
        return dataset
    for adapter in sorted(adapters, key=lambda adapter: adapter.rank):
        if adapter.accepts(dataset):
            return adapter.make(dataset)
    names = ", ".join(adapter.name for adapter in sorted(adapters, key=lambda adapter: adapter.rank))
    raise ArgumentTypeError(
        f"a {type(dataset).__module__}.{type(dataset).__qualname__} cannot be distributed. HINT: give one of: {names}."
    )
