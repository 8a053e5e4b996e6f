"""Settings of JAX that a program's numbers depend on: they hold in the threads and processes that work for it, too."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")
Settings = Mapping[str, Any]
_NAMES = (
    "enable_x64",
    "default_matmul_precision",
    "default_prng_impl",
    "threefry_partitionable",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "debug_nans",
    "debug_infs",
    "disable_jit",
)
"""Context managers of JAX, each for the thread that enters it; the value of each is `jax.config.jax_<name>`."""


def current() -> dict[str, Any]:
    """The settings that hold here, by `jax.config` or a context manager."""
    return {name: getattr(jax.config, f"jax_{name}") for name in _NAMES}


@contextmanager
def within(settings: Settings) -> Generator[None]:
    """Lets settings hold in this thread."""
    with ExitStack() as stack:
        for name, value in settings.items():
            if getattr(jax.config, f"jax_{name}") != value:
                stack.enter_context(getattr(jax, name)(value))
        yield


class AsHere(Generic[P, R]):
    """A function that runs elsewhere under the settings that hold where this is made."""

    def __init__(self, function: Callable[P, R]) -> None:
        self._function, self._settings = function, current()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with within(self._settings):
            return self._function(*args, **kwargs)
