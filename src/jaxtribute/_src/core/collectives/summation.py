"""Ways to add up arrays over the replicas, each as one replica's program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import chain, zip_longest
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute._src.core import settings
from jaxtribute._src.core.jaxprs.making import equal
from jaxtribute._src.core.types import Leaf, Numeric
from jaxtribute._src.core.values.mesh import AXIS, ReplicaMesh, reduced

Pairs = list[tuple[int, int]]


class _Choice:
    """Something chosen: two of one class are equal if their attributes are.

    Not a dataclass: to make seven of those took a tenth of the whole import.
    """

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        # With the class: a tree and a pack of equal settings are different sums.
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({shown})"


class Summation(_Choice, ABC):
    """Way to add arrays up over the replicas; every replica gets the sums.

    Hashable, so that compiled programs can be told apart by it.
    """

    @abstractmethod
    def __call__(self, arrays: Sequence[Any], replicas: int) -> list[Any]:
        """The sums over the replicas, in the order of `arrays`, in one replica's program."""

    @property
    def shared_bytes(self) -> int:
        """The largest size of arrays that share a collective; 0 if each array is to be summed alone."""
        return 0

    @property
    def operations_per_byte(self) -> float:
        """Operations that take as long as a byte less to send; 0 if nothing is computed to send less."""
        return 0.0

    @property
    def sent_share(self) -> float:
        """Bytes that travel for each byte of a large array, in terms of a plain sum."""
        return 1.0


class SharingSum(Summation):
    """A plain sum in which small arrays share collectives; base of those that choose how themselves.

    Args:
      small_bytes: the largest size that is packed; None for the library's choice.
    """

    def __init__(self, small_bytes: int | None = None) -> None:
        self.small_bytes = small_bytes

    @property
    def shared_bytes(self) -> int:
        return PIECE_BYTES if self.small_bytes is None else self.small_bytes


class AutoSum(SharingSum):
    """The fastest sums that XLA has: an all-reduce for each large array, one for all small ones of a dtype.

    Args:
      small_bytes: the largest size that is packed; None for the library's choice.
      joins: True if the compiler puts small sums into one collective by itself, so that packing only adds copies.
    """

    def __init__(self, small_bytes: int | None = None, joins: bool = False) -> None:
        super().__init__(small_bytes)
        self.joins = joins

    @classmethod
    def of(cls, mesh: ReplicaMesh) -> AutoSum:
        """Makes the sum that fits the compiler of these devices: that of TPUs joins small sums.

        Arrays that lie in parts on the devices of a replica are summed as they are: packed, they would be gathered.
        """
        return cls(joins=mesh.in_tiles or bool(mesh.group))

    def __call__(self, arrays: Sequence[Any], replicas: int) -> list[Any]:
        # A size that the user has asked for holds, whatever the compiler joins by itself.
        return packed_map(_psum, arrays, 0 if self.small_bytes is None and self.joins else self.small_bytes)


class PackedSum(Summation):
    """All-reduces of packed arrays.

    Args:
      packs: how arrays are packed.
    """

    def __init__(self, packs: Packs) -> None:
        self.packs = packs

    def __call__(self, arrays: Sequence[Any], replicas: int) -> list[Any]:
        return self.packs.apply(_psum, arrays)


class TreeSum(Summation):
    """Two levels: within groups of neighbours to their first, between those, and the way back.

    Args:
      packs: how arrays are packed.
    """

    def __init__(self, packs: Packs) -> None:
        self.packs = packs

    def __call__(self, arrays: Sequence[Any], replicas: int) -> list[Any]:
        """Point-to-point messages along the tree, in about `2 log2(replicas)` rounds."""
        rounds = tree_rounds(replicas)
        return _adjoint(lambda leaves: self.packs.apply(lambda array: _along_tree(array, rounds), leaves), arrays)


class ExchangeSum(SharingSum):
    """Replicas exchange whole arrays in pairs, then in pairs of pairs, and so on; all add up the same.

    Between two processes of a machine this takes half the time of an all-reduce, whose ring has more rounds, or a
    quarter less between four. The number of replicas must be a power of two; with others, and for dtypes that are not
    real numbers of up to eight bytes, it is an all-reduce.

    Args:
      small_bytes: the largest size that is packed; None for the library's choice.
      pair_bytes: the largest size that is exchanged between two replicas; above it the ring is as fast.
      most_bytes: the largest size that is exchanged if there are more replicas.
      computes: see `operations_per_byte`.
    """

    def __init__(
        self,
        small_bytes: int | None = None,
        pair_bytes: int = 32 << 20,
        most_bytes: int = 1 << 20,
        computes: float = 0.0,
    ) -> None:
        super().__init__(small_bytes)
        self.pair_bytes, self.most_bytes, self.computes = pair_bytes, most_bytes, computes

    @property
    def operations_per_byte(self) -> float:
        return self.computes

    def __call__(self, arrays: Sequence[Any], replicas: int) -> list[Any]:
        """`log2(replicas)` rounds of messages a pack."""
        return _adjoint(
            lambda leaves: packed_map(lambda array: self._one(array, replicas), leaves, self.small_bytes), arrays
        )

    def _one(self, array: Numeric, replicas: int) -> Any:
        fits = array.size * array.dtype.itemsize <= (self.pair_bytes if replicas == 2 else self.most_bytes)
        real = jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)
        # Pairs of pairs come out even for powers of two alone. What is large, or of another kind of number, is better
        # left to XLA.
        if not array.size or not fits or not real or replicas & (replicas - 1):
            return _psum(array)
        # Recursive doubling. Both of a pair add the same two numbers, so all replicas have the same bits after each
        # round.
        distance = 1
        while distance < replicas:
            other = lax.ppermute(array, AXIS, [(replica, replica ^ distance) for replica in range(replicas)])
            array, distance = _as_sent(array, other) + other, 2 * distance
        return equal(array)


class OneDeviceSum(Summation):
    """Everything to one replica, which adds up, and back from there.

    Args:
      root: the replica that adds up.
      accumulation_fn: combines a list of one array a replica; None adds them.
    """

    root: int
    accumulation_fn: Callable[[list[Any]], Any] | None

    def __init__(self, root: int = 0, accumulation_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self.root, self.accumulation_fn = root, accumulation_fn

    def __call__(self, arrays: Sequence[Any], replicas: int) -> list[Any]:
        """One message from each replica, and a tree of messages back."""

        def total(leaves: Sequence[Any]) -> list[Any]:
            return [self._one(array, replicas) for array in leaves]

        # What a function of the user's makes of the arrays need not be their sum: JAX differentiates it as it is.
        return total(arrays) if self.accumulation_fn is not None else _adjoint(total, arrays)

    def _one(self, array: Numeric, replicas: int) -> Any:
        # Every replica runs the same program: what the others compute here is discarded.
        parts: list[Any] = []
        for replica in range(replicas):
            is_root = replica == self.root
            parts.append(array if is_root else lax.ppermute(array, AXIS, [(replica, self.root)]))
        total = reduce(add, parts) if self.accumulation_fn is None else self.accumulation_fn(parts)
        # The root first: a tree of messages ends at its first member.
        members = [*range(self.root, replicas), *range(self.root)]
        return equal(_spread(total, _way_back(_gather_rounds(members))))


class Packs(_Choice):
    """Sizes that decide how arrays are packed into buffers that travel together; those of a dtype only.

    Args:
      number: how many packs there are to be; 0 for one an array.
      bytes_per_pack: the size that a pack may have at most, unless one array is larger; 0 for no limit. Takes
        precedence over `number`.
    """

    def __init__(self, number: int = 1, bytes_per_pack: int = 0) -> None:
        self.number: int = settings.whole("number", number)
        self.bytes_per_pack: int = settings.whole("bytes_per_pack", bytes_per_pack)

    def apply(self, collective: Callable[[Any], Any], arrays: Sequence[Any]) -> list[Any]:
        """Applies an elementwise collective to every array, packed; results in the order of `arrays`."""
        return _packed_in(self.groups(arrays), collective, arrays)

    def groups(self, arrays: Sequence[Any]) -> list[list[int]]:
        """Groups arrays that travel together: indices of neighbours of one dtype."""
        if not self.bytes_per_pack and not self.number:
            return [[index] for index in range(len(arrays))]
        kinds: dict[Any, list[int]] = {}
        for index, array in enumerate(arrays):
            kinds.setdefault(array.dtype, []).append(index)
        limit = self.bytes_per_pack or -(-sum(map(array_bytes, arrays)) // self.number)
        packs: list[list[int]] = []
        for members in kinds.values():
            packs.extend(_neighbours(members, arrays, limit))
        return packs


def tree_rounds(replicas: int) -> list[Pairs]:
    """Rounds of messages `(from, to)` that bring all sums to replica 0, for any number of replicas.

    Neighbours form groups of about the square root of the number; each group gathers at its first replica, then
    these gather at replica 0.
    """
    # As many groups as members of each, so that neither level has much more rounds than the other.
    size = max(1, int(np.ceil(np.sqrt(replicas))))
    first_ones = range(0, replicas, size)
    inner = [_gather_rounds(range(first, min(first + size, replicas))) for first in first_ones]
    # All groups gather at the same time: their messages of one round are one collective. A smaller last group has
    # fewer rounds, and waits.
    within = [list(chain.from_iterable(messages)) for messages in zip_longest(*inner, fillvalue=())]
    return [*within, *_gather_rounds(first_ones)]


def _gather_rounds(members: Sequence[int]) -> list[Pairs]:
    """A binomial tree: in each round every other of those left hands over to the one before it."""
    rounds: list[Pairs] = []
    left = list(members)
    while len(left) > 1:
        # An odd one at the end has nobody to hand over to, and stays.
        rounds.append(list(zip(left[1::2], left[::2], strict=False)))
        left = left[::2]
    return rounds


def _way_back(rounds: Sequence[Pairs]) -> list[Pairs]:
    """The same messages from their receivers to their senders, the last round first."""
    back: list[Pairs] = []
    for pairs in reversed(rounds):
        senders, receivers = zip(*pairs, strict=True)
        back.append(list(zip(receivers, senders, strict=True)))
    return back


def _along_tree(array: Numeric, rounds: Sequence[Pairs]) -> Any:
    for pairs in rounds:
        array = array + lax.ppermute(array, AXIS, pairs)  # zeros if nothing arrives
    return equal(_spread(array, _way_back(rounds)))


def _spread(array: Numeric, rounds: Sequence[Pairs]) -> Any:
    """Hands the first sender's array on, round by round."""
    for pairs in rounds:
        arrived = lax.ppermute(array, AXIS, pairs)
        # Every replica runs every round. To those that nothing is sent to `ppermute` gives zeros, so they keep what
        # they have.
        receives = np.isin(np.arange(lax.axis_size(AXIS)), [to for _, to in pairs])
        array = jnp.where(jnp.asarray(receives)[lax.axis_index(AXIS)], arrived, array)
    return array


@jax.custom_jvp
def _as_sent(array: Numeric, received: Leaf) -> Any:
    """`array`, rounded as the others get it.

    XLA may compute it once more as part of the sum, where a product is added without being rounded first, and the
    replicas would differ in the last bit. `n * (n + 1)` is even, which compilers do not know: so nothing is flipped,
    but they have to make the bits.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    bits = np.dtype(f"int{8 * array.dtype.itemsize}")
    n = lax.bitcast_convert_type(received.reshape(-1)[0], bits)
    zero = n * (n + bits.type(1)) & bits.type(1)
    whole = lax.bitcast_convert_type(array, bits)
    return lax.bitcast_convert_type(whole ^ jnp.broadcast_to(zero, whole.shape), array.dtype)


# Bits have no gradient, and nothing is changed.
_as_sent.defjvp(lambda primals, tangents: (_as_sent(*primals), tangents[0]))


def _psum(array: Numeric) -> Any:
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        # XLA's compiler ends the process where it would compute the sum of complex constants by itself: "shape.h Check
        # failed: buffer != nullptr", in jaxlib 0.12. Behind a barrier it does not know that they are some.
        array = lax.optimization_barrier(array)
    return reduced(lax.psum, array)


def _adjoint(total: Callable[[list[Any]], list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """`total(arrays)`, its gradient being the same sum of the cotangents, equal on all replicas as well."""
    # A program that is cut at its messages is differentiated message by message; `cutting` knows it by this name.
    total.__name__ = "jd_linear"
    call = jax.custom_vjp(total)
    call.defvjp(lambda leaves: (total(leaves), None), lambda _, cotangents: (total(cotangents),))
    return call(list(arrays))


PIECE_BYTES = 192 << 10
"""Largest size that is packed in one loop, and by default of all that shares a collective.

XLA's CPU compiler divides a larger loop among the threads of a pool, where its parts wait for the programs of other
devices: packing 340 KB in one took five times as long as the step around it.
"""


def pack(arrays: Sequence[Any]) -> Any:
    """Writes arrays of one dtype one after another into one vector, in pieces of up to `PIECE_BYTES`."""
    flat = [array.reshape(-1) for array in arrays]
    together = _neighbours(range(len(flat)), flat, PIECE_BYTES)
    pieces = [jnp.concatenate(flat[indices[0] : indices[-1] + 1]) for indices in together]
    if len(pieces) == 1:
        return pieces[0]
    buffer, offset = jnp.zeros(sum(piece.size for piece in pieces), pieces[0].dtype), 0
    for piece in pieces:  # a concatenation would be one loop
        # An offset of 32 bits: a Python number would become one of 64 where those are switched on.
        buffer = lax.dynamic_update_slice(buffer, piece, (np.int32(offset),))
        offset += piece.size
    return buffer


def unpack(buffer: Numeric, arrays: Sequence[Any]) -> list[Any]:
    """Cuts `buffer` into arrays of the shapes of `arrays`: the inverse of `pack`."""
    pieces: list[Any] = []
    offset = 0
    for array in arrays:
        pieces.append(lax.slice_in_dim(buffer, offset, offset + array.size).reshape(array.shape))
        offset += array.size
    return pieces


def groups(arrays: Sequence[jax.Array], small_bytes: int | None = None) -> list[list[int]]:
    """Groups arrays that travel together: indices of small ones grouped by dtype, each large one alone.

    Args:
      arrays: the arrays, of any shapes and dtypes.
      small_bytes: the largest size in bytes that is packed, as many together as there are; None for packs of up to
        `PIECE_BYTES`.
    """
    most = PIECE_BYTES if small_bytes is None else small_bytes
    alone: list[list[int]] = []
    together: dict[Any, list[int]] = {}
    for index, array in enumerate(arrays):
        if array_bytes(array) <= most:
            together.setdefault(array.dtype, []).append(index)
        else:
            alone.append([index])
    if small_bytes is not None:
        return [*alone, *together.values()]
    for indices in together.values():
        alone += _neighbours(indices, arrays, PIECE_BYTES)
    return alone


def _neighbours(indices: Iterable[int], arrays: Sequence[Any], limit: int) -> list[list[int]]:
    """Neighbours together, as many as fit under `limit` bytes; what is larger goes alone."""
    packs: list[list[int]] = []
    # Less than nothing, so that even an array without bytes opens a pack.
    room = -1
    for index in indices:
        size = array_bytes(arrays[index])
        if size > room:
            packs.append([])
            room = limit
        packs[-1].append(index)
        room -= size
    return packs


def array_bytes(array: Numeric) -> int:
    """The size of an array, or of one that is only described."""
    return array.size * array.dtype.itemsize


def packed_map(collective: Callable[[Any], Any], arrays: Sequence[Any], small_bytes: int | None = None) -> list[Any]:
    """Applies an elementwise collective to every array, small ones packed.

    Args:
      collective: a function of an array that keeps its shape, such as an all-reduce.
      arrays: arrays of any shapes and dtypes.
      small_bytes: see `groups`; 0 packs nothing but empty arrays.

    Returns:
      The results, in the order of `arrays`.
    """
    return _packed_in(groups(arrays, small_bytes), collective, arrays)


def _packed_in(packs: Sequence[Sequence[int]], collective: Callable[[Any], Any], arrays: Sequence[Any]) -> list[Any]:
    """Applies a collective to every array, those of a pack together; results in the order of `arrays`."""
    results: list[Any] = [None] * len(arrays)
    for indices in packs:
        members = [arrays[index] for index in indices]
        # Packed alone, an array would be copied twice for nothing.
        sums = [collective(members[0])] if len(members) == 1 else unpack(collective(pack(members)), members)
        for index, result in zip(indices, sums, strict=True):
            results[index] = result
    return results
