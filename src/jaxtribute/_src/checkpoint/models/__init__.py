"""Models of other libraries, one file a library: which of their objects hold state, and where.

A file is loaded only if the program has loaded its library, and registers itself.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from jaxtribute._src.checkpoint.models.base import Adapter, adapters
from jaxtribute._src.checkpoint.models.base import register as register

_LIBRARIES = {"jaxtribute._src.integrations.model": "model", "flax.nnx": "nnx", "keras": "keras"}
"""Libraries, and the file here that knows each."""


def adapter_of(value: Any) -> Adapter | None:
    """The adapter that takes `value`, if any does."""
    for library, file in _LIBRARIES.items():
        if library in sys.modules:
            import_module(f"{__name__}.{file}")
    return next((adapter for adapter in adapters if adapter.accepts(value)), None)
