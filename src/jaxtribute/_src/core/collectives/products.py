"""Sums of products over the replicas, computed from the products' factors if those are fewer bytes to send.

The gradient of a matrix that multiplies a batch is a product: of what came in and of the cotangent of what came out,
added up over the examples. The sum of the replicas' products is the product of all replicas' factors, joined along that
axis. Where a replica has fewer examples than the matrix has rows, the factors are smaller than the product: replicas
then gather them, and each multiplies for all. The sum is the same but for the order of additions.

While a replica's program is traced, sums are *put off*: an operation of its own, `jd_sum`, stands for them. Once the
program is whole it is known where the summed arrays come from, and `evaluated` makes the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxtribute._src.core.collectives.summation import Summation, array_bytes, groups, pack
from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, aval, bind, opened
from jaxtribute._src.core.jaxprs.kinds import moves
from jaxtribute._src.core.jaxprs.making import Own
from jaxtribute._src.core.jaxprs.walking import called, evaluate
from jaxtribute._src.core.types import Numeric
from jaxtribute._src.core.values.mesh import AXIS

_PRODUCT = "dot_general"

sum_p = Own("jd_sum")
"""Stands for the sums of its operands over the replicas, until `evaluated` makes them."""
sum_p.multiple_results = True
sum_p.def_abstract_eval(lambda *avals, **_: list(avals))


class PutOff(Summation):
    """A sum that is made once the whole program is known.

    Args:
      summation: how it is made then, but for products whose factors are cheaper.
    """

    def __init__(self, summation: Summation) -> None:
        self.summation = summation

    def __call__(self, arrays: Sequence[Any], replicas: int) -> list[Any]:
        """Stands for the sums, where one of the arrays is large enough to ask where it comes from."""
        if max(map(array_bytes, arrays), default=0) <= self.shared_bytes:
            return self.summation(arrays, replicas)
        return sum_p.bind(*arrays, summation=self.summation, replicas=replicas, axis_name=AXIS)

    @property
    def shared_bytes(self) -> int:
        return self.summation.shared_bytes


def evaluated(program: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    """Runs one replica's program and makes the sums that it has put off."""
    evaluation = _Evaluation()
    for eqn in opened(program).eqns:
        if eqn.primitive is sum_p:
            evaluation.expect(opened(program), eqn)
    return evaluate(program, inputs, evaluation.handle)


@dataclass(frozen=True, slots=True)
class _Product:
    """An array that is a product of two others, moved.

    Attributes:
      eqn: the product.
      factors: its two operands.
      moves: what became of the product: operations of one operand.
    """

    eqn: JaxprEqn
    factors: tuple[Any, Any]
    moves: tuple[JaxprEqn, ...] = ()

    @property
    def axes(self) -> tuple[int, int]:
        """The axis of each factor that the examples lie along: the first of those that are summed."""
        (left, right), _ = self.eqn.params["dimension_numbers"]
        return left[0], right[0]

    @property
    def operations(self) -> int:
        """Multiplications and additions of one replica's product."""
        (contracted, _), (batch, _) = self.eqn.params["dimension_numbers"]
        left, right = self.factors
        shared = math.prod(left.shape[axis] for axis in (*contracted, *batch))
        return 2 * left.size * (right.size // shared)

    def pays(self, replicas: int, summation: Summation) -> bool:
        """True if it takes less time to gather the factors and multiply for all replicas than to sum the product."""
        product = aval(self.eqn.outvars[0])
        # What a replica sends: in a ring nearly twice the product, and its own factors to each of the others.
        summed = 2 * (replicas - 1) * array_bytes(product) * summation.sent_share / replicas
        gathered = (replicas - 1) * sum(map(array_bytes, self.factors))
        return (summed - gathered) * summation.operations_per_byte > (replicas - 1) * self.operations

    def of_all(self, factors: Sequence[Any]) -> Any:
        """The sum over the replicas, of the factors of all of them."""
        (result,) = bind(self.eqn, factors)
        for eqn in self.moves:
            (result,) = bind(eqn, [result])
        return result


class _Evaluation:
    """One run of a program, in which it is known which arrays are products, and of what."""

    def __init__(self) -> None:
        # By the identity of the array, which is kept beside it: else it might be freed, and its id be another's.
        self._products: dict[int, tuple[Any, _Product]] = {}
        self._opened: dict[int, ClosedJaxpr] = {}
        """By the identity of calls, the programs in which products are made or moved that are summed outside."""
        self._makers: dict[int, dict[Any, tuple[JaxprEqn, int]]] = {}
        """By the identity of programs, what makes each of their values, and as which of its results."""

    def expect(self, jaxpr: Jaxpr, sums: JaxprEqn) -> None:
        """Notes the calls in which products are made that sums of a program ask for."""
        for atom in sums.invars:
            if array_bytes(aval(atom)) > sums.params["summation"].shared_bytes:
                self._origin(jaxpr, atom)

    def handle(self, eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
        """The results of sums, and of calls with products inside; None for what is run as it is."""
        if eqn.primitive is sum_p:
            return self._summed(operands, eqn.params["summation"], eqn.params["replicas"])
        inner = self._opened.get(id(eqn))
        if inner is not None:
            return evaluate(inner, operands, self.handle)
        product = self._product(eqn, operands)
        if product is None:
            return None
        (result,) = bind(eqn, operands)
        self._products[id(result)] = result, product
        return [result]

    def _origin(self, jaxpr: Jaxpr, atom: Any) -> Any:
        """Finds what an array of a program was before it was moved: a product's operation, an input, or neither."""
        makers = self._makers.get(id(jaxpr))
        if makers is None:
            makers = {var: (eqn, place) for eqn in jaxpr.eqns for place, var in enumerate(eqn.outvars)}
            self._makers[id(jaxpr)] = makers
        while not isinstance(atom, Literal) and atom in makers:
            eqn, place = makers[atom]
            if moves(eqn):
                (atom,) = eqn.invars
                continue
            inner = called(eqn) if eqn.primitive.name == "jit" else None
            if inner is None:
                return eqn if eqn.primitive.name == _PRODUCT else None
            origin = self._origin(opened(inner), opened(inner).outvars[place])
            if origin is None:
                return None
            self._opened[id(eqn)] = inner
            if isinstance(origin, JaxprEqn):
                return origin
            # A call that only moves what it is given.
            atom = eqn.invars[opened(inner).invars.index(origin)]
        return atom if atom in jaxpr.invars else None

    def _product(self, eqn: JaxprEqn, operands: list[Any]) -> _Product | None:
        """The product that an operation gives; None if it gives something else."""
        if eqn.primitive.name == _PRODUCT:
            (contracted, _), _ = eqn.params["dimension_numbers"]
            # What is empty XLA refuses to gather.
            return _Product(eqn, (operands[0], operands[1])) if contracted and operands[0].size else None
        known = self._products.get(id(operands[0])) if moves(eqn) else None
        if known is None:
            return None
        product = known[1]
        return _Product(product.eqn, product.factors, (*product.moves, eqn))

    def _summed(self, arrays: list[Any], summation: Summation, replicas: int) -> list[Any]:
        """The sums over the replicas: of products from their factors where that pays."""
        chosen: dict[int, _Product] = {}
        for place, array in enumerate(arrays):
            known = self._products.get(id(array))
            # What is small shares a message with other arrays, and costs next to nothing.
            if known is None or array_bytes(array) <= summation.shared_bytes:
                continue
            if known[1].pays(replicas, summation):
                chosen[place] = known[1]
        # Several products may have a factor in common, such as the input of several matrices.
        factors = {id(factor): factor for product in chosen.values() for factor in product.factors}
        gathered = dict(zip(factors, _gathered(list(factors.values()), summation.shared_bytes), strict=True))
        rest = [array for place, array in enumerate(arrays) if place not in chosen]
        others = iter(summation(rest, replicas))
        totals: list[Any] = []
        for place in range(len(arrays)):
            product = chosen.get(place)
            if product is None:
                totals.append(next(others))
                continue
            rows = map(gathered.__getitem__, map(id, product.factors))
            totals.append(product.of_all(list(map(_joined, rows, product.axes))))
        return totals


def _gathered(arrays: Sequence[Any], small_bytes: int) -> list[Any]:
    """Every replica's arrays along a new first axis; small ones share messages."""
    results: list[Any] = [None] * len(arrays)
    for indices in groups(arrays, small_bytes):
        members = [arrays[index] for index in indices]
        if len(members) == 1:
            results[indices[0]] = lax.all_gather(members[0], AXIS)
            continue
        rows, offset = lax.all_gather(pack(members), AXIS), 0
        for index, array in zip(indices, members, strict=True):
            piece = lax.slice_in_dim(rows, offset, offset + array.size, axis=1)
            results[index], offset = piece.reshape(-1, *array.shape), offset + array.size
    return results


def _joined(rows: Numeric, axis: int) -> Any:
    """Arrays along a first axis, joined along one of their own."""
    moved = jnp.moveaxis(rows, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
