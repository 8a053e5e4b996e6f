"""Sums of products over the islands, computed of the products' factors where those are fewer bytes to send.

As workers have it in their programs (`core/collectives/products.py`): the sum of the islands' products is the product
of all islands' factors, joined along the examples. Each island multiplies for all, of the same numbers in the same
order, and so has the same bits.
"""

from __future__ import annotations

import functools
import math
import os
import zlib
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.elastic.packing import array_bytes
from jaxtribute.extending import Programs
from jaxtribute.typing import HostArray

_PRODUCT = "dot_general"
_SMALLEST = 256 << 10
"""Bytes of a product from which on it is asked where it comes from."""
_OPERATIONS = 60.0
"""Multiplications and additions that take as long as a byte less to send between processes of a machine."""
BeginGather = Callable[[list[HostArray], str, int], Callable[[], Sequence[Sequence[Any]]]]
"""Begins to give arrays to all of so many islands; returns the function that waits for those of each."""


class Factors(NamedTuple):
    """The way in which islands give each other factors.

    Attributes:
      begin: begins to.
      islands: their number, all of which have equal shares of the examples.
    """

    begin: BeginGather
    islands: int

    def begun(self, arrays: Sequence[Any], what: str) -> Callable[[], Sequence[Sequence[Any]]]:
        """Begins to give factors to all; returns what waits for those of each."""
        return self.begin(list(map(np.asarray, arrays)), f"{what}: {_kind_of_bits()}", self.islands)


class Joined:
    """A product whose sum is computed of all islands' factors.

    Args:
      eqn: the product of this island.
      moves: what becomes of it until it is summed: operations of one operand.
      total: the variable of its sum.
    """

    def __init__(self, eqn: Any, moves: Sequence[Any], total: Any) -> None:
        self._eqn, self._moves, self.sums = eqn, moves, [total]
        self.factors: list[Any] = list(eqn.invars)

    def pays(self, islands: int) -> bool:
        """True if it takes less time to send the factors and multiply for all islands than to send the product."""
        (contracted, _), (batch, _) = self._eqn.params["dimension_numbers"]
        left, right = map(Programs.aval, self.factors)
        operations = 2 * left.size * (right.size // math.prod(left.shape[axis] for axis in (*contracted, *batch)))
        # An island sends the others its part of twice the product, or its factors to each of them.
        saved = 2 * array_bytes(Programs.aval(self.sums[0])) / islands - array_bytes(left) - array_bytes(right)
        return saved * _OPERATIONS > operations

    def unpacked(self, gathered: Sequence[Sequence[Any]]) -> dict[Any, Any]:
        """The sum, of the islands' first factors and their second ones."""
        # The examples lie along the first of the axes that are summed.
        axes = [each[0] for each in self._eqn.params["dimension_numbers"][0]]
        rows = [jnp.concatenate(each, axis) for each, axis in zip(gathered, axes, strict=True)]
        (result,) = Programs.bind(self._eqn, rows)
        for eqn in self._moves:
            (result,) = Programs.bind(eqn, [result])
        return {self.sums[0]: result}


def joined(eqns: Sequence[Any], atoms: Sequence[Any], sums: Sequence[Any], islands: int) -> dict[int, Joined]:
    """The products among arrays to be summed whose factors are cheaper to send, by their places.

    Args:
      eqns: the operations of the program.
      atoms: what is summed.
      sums: the variables of the sums.
      islands: how many send them.
    """
    makers = {var: eqn for eqn in eqns for var in eqn.outvars}
    found: dict[int, Joined] = {}
    for place, (atom, total) in enumerate(zip(atoms, sums, strict=True)):
        if array_bytes(Programs.aval(total)) < _SMALLEST:
            continue
        moves: list[Any] = []
        while Programs.used_by([], [atom]) and atom in makers:  # it is no literal
            eqn = makers[atom]
            if not Programs.moves(eqn):
                product = Joined(eqn, moves, total) if _is_product(eqn) else None
                if product is not None and product.pays(islands):
                    found[place] = product
                break
            moves.insert(0, eqn)
            (atom,) = eqn.invars
    return found


def _is_product(eqn: Any) -> bool:
    """True if an operation multiplies arrays that are not empty, and adds up over examples."""
    is_product = eqn.primitive.name == _PRODUCT and eqn.params["dimension_numbers"][0][0]
    return bool(is_product) and Programs.aval(eqn.invars[0]).size > 0


def makes_product(eqn: Any) -> bool:
    """True if an operation is a call in which a product is made."""
    if eqn.primitive.name != "jit":
        return False
    return any(each.primitive.name == _PRODUCT or makes_product(each) for each in Programs.operations_in(eqn))


@functools.cache
def _kind_of_bits() -> str:
    """Names what the last bits of a product depend on, on one host, which must be the same for all islands."""
    threads = os.environ.get("PJRT_NPROC") or os.cpu_count()
    told = repr((threads, os.environ.get("XLA_FLAGS"), version("jaxlib")))
    return f"factors, on {zlib.crc32(told.encode()):08x}"
