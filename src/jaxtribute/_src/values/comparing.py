"""`==` of variables and distributed values: by value in code that compares, by identity where a container searches.

Arrays that compare by value cannot be searched for: `w in weights` compares `w` with each of them and asks for one
truth, which an array of several elements does not have, and which is wrong where two variables happen to hold the same
number. Python has one method for both. What tells them apart is who asks: an explicit `a == b` is an instruction of its
own, while a search, in a list, a dictionary or a table of compiled programs, compares and asks for the truth of the
result within one instruction that does something else.
"""

from __future__ import annotations

import dis
from types import FrameType

_COMPARES = dis.opmap["COMPARE_OP"]


class Asking:
    """The instruction that asks for a comparison.

    Args:
      frame: the frame of the code that asks.
    """

    __slots__ = ("_frame", "_place")

    def __init__(self, frame: FrameType) -> None:
        # The frame itself, not its id: Python makes frame objects when they are asked for.
        self._frame, self._place = frame, frame.f_lasti

    def compares(self) -> bool:
        """True for `==` and `!=` themselves."""
        return self._frame.f_code.co_code[self._place] == _COMPARES

    def wants_identity(self) -> bool:
        """True if the code compares what holds both, for which one truth is needed: an `__eq__` or JAX's tables."""
        package = self._frame.f_globals.get("__name__", "").partition(".")[0]
        return package == "jax" or self._frame.f_code.co_name in ("__eq__", "__ne__")

    def searches(self) -> bool:
        """True unless code compares two values by `==` or `!=`."""
        return self.wants_identity() or not self.compares()

    def again(self, frame: FrameType) -> bool:
        """True if `frame` is still at that instruction."""
        return frame is self._frame and frame.f_lasti == self._place
