"""`Telltale`: an argument by which it is seen that JAX runs Python around a compiled call."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

import jax

_NOTHING: tuple[tuple[()], None] = ((), None)


class Telltale:
    """An argument without arrays that tells when JAX runs Python around a compiled program; in the program it is None.

    JAX flattens a call's arguments once, to look for the program. Only if it knows none for them, or cannot call it
    without Python, does it flatten them again, before anything runs. `tests/core/jaxprs/test_contract.py` holds it:
    JAX tells of it in no other way.
    """

    __slots__ = ("flattened",)

    def __init__(self) -> None:
        self.flattened = False
        """True if the arguments of the call that begins have been flattened; to be set to False before the call."""

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_node(cls, Telltale._flatten, lambda *_: cast("Any", None))

    @abstractmethod
    def tell(self) -> None:
        """Called before JAX runs Python."""

    def _flatten(self) -> tuple[tuple[()], None]:
        if self.flattened:
            self.tell()
        self.flattened = True
        return _NOTHING
