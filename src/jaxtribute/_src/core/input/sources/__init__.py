"""Adapters from the datasets that people have to the streams that this package distributes.

An adapter is a file of its own here, or in an add-on, that defines a `Source` and registers it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from jaxtribute._src.core.input.sources.base import Source, Stream
from jaxtribute._src.core.points import SOURCES
from jaxtribute._src.core.types import Foreign
from jaxtribute.errors import ArgumentTypeError

__all__ = ["Adapter", "Source", "Stream", "adapt", "register_source"]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An entry of the registry: which datasets it takes, and how it makes a source of one.

    Attributes:
      rank: adapters are asked in this order, so that the general ones come last.
    """

    name: str
    accepts: Callable[[Foreign], bool]
    make: Callable[[Foreign], Source]
    rank: int = 0


def register_source(
    name: str, accepts: Callable[[Foreign], bool], make: Callable[[Foreign], Source], rank: int = 0
) -> None:
    """Adds an adapter.

    Args:
      name: the datasets' name, for the error if nobody takes a dataset.
      accepts: true for a dataset that the adapter takes.
      make: makes a source of it.
      rank: adapters are asked in this order, so that the general ones come last.
    """
    SOURCES.register(Adapter(name, accepts, make, rank))


# At the first dataset and not at the import: the files import this package in turn.
@lru_cache(maxsize=1)
def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def adapt(dataset: Foreign) -> Source:
    """Returns the source for a dataset.

    Raises:
      ArgumentTypeError: if no adapter takes it.
    """
    _load()
    if isinstance(dataset, Source):
        return dataset
    # Those that take nearly anything have a high rank, and are asked last.
    in_order = sorted(SOURCES.entries(), key=lambda adapter: adapter.rank)
    for adapter in in_order:
        if adapter.accepts(dataset):
            return adapter.make(dataset)
    names = ", ".join(adapter.name for adapter in in_order)
    raise ArgumentTypeError(
        f"a {type(dataset).__module__}.{type(dataset).__qualname__} cannot be distributed. HINT: give one of: {names}."
    )
