"""`Step`: what of a kind of step the journal keeps, and how a newcomer has its result without computing it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.elastic.journal import LARGEST
from jaxtribute._src.addons.elastic.membership import View
from jaxtribute._src.addons.elastic.packing import raw
from jaxtribute._src.addons.elastic.variables import Register
from jaxtribute.typing import HostArray

R = TypeVar("R")


class Step(Generic[R]):
    """A step whose result the journal keeps as it is.

    Args:
      signature: says what step it is, the same on all islands.
      rehearse: compiles the step for a view, so that the others need not wait for it later.
    """

    def __init__(self, signature: str, rehearse: Callable[[View], Any] | None = None) -> None:
        self.signature, self.rehearse = signature, rehearse

    def kept(self, result: R) -> Any:
        """Returns what the journal keeps of a result."""
        return result

    def finished(self, result: R, view: View) -> R:
        """The result, once the step is committed and in the journal."""
        return result

    def replayed(self, kept: Any, view: View) -> R:
        """The result as another island had it, of what is kept of it."""
        return kept

    def written(self) -> Iterable[Variable] | None:
        """The variables that the step has written; None if it may be any."""
        return ()


class FirstValue(Step[Any]):
    """The first value of a variable, of which all islands take one island's.

    A large one is not kept, only its checksum: mostly the newcomer has made the same.

    Args:
      signature: says which it is.
      own: this island's.
      register: the island's variables.
    """

    def __init__(self, signature: str, own: HostArray, register: Register) -> None:
        super().__init__(signature)
        self._own, self._register = own, register

    def kept(self, result: Any) -> Any:
        array = np.asarray(result)
        return array if array.nbytes <= LARGEST else _checksum(array)

    def replayed(self, kept: Any, view: View) -> Any:
        if not isinstance(kept, int):
            return kept
        self._register.next_is_unknown = kept != _checksum(self._own)
        return self._own


def _checksum(array: HostArray) -> int:
    return zlib.crc32(raw(array).data)
