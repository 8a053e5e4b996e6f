"""The axes of a program's arrays that go together: split one, and all of them can stay split without communication.

Every axis of every array belongs to a *class*. An operation joins the classes of the axes that it carries from operands
to results, or multiplies with each other. The columns of one kernel and the rows of the next one so come into one
class, with the bias between them, the axis of attention's heads, the gradients, and an optimizer's slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtribute.extending import Jaxpr, JaxprEqn, Literal, Programs


class Traced(NamedTuple):
    """An array of the program.

    Attributes:
      shape: its shape.
      axes: for each axis a member of its class.
      source: the number of the variable that alone it is computed from, if there is one.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    source: int | None = None

    def members(self, places: Sequence[int]) -> list[int]:
        """Members of the classes of some axes."""
        return [self.axes[place] for place in places]


class Use(NamedTuple):
    """A use of a variable in a product or a look-up.

    Attributes:
      kind: `columns`, `rows` or `batch` of a matrix product; `outputs` or `inputs` of a convolution; `lookup`.
      axis: the axis of which that is said.
    """

    kind: str
    axis: int


class AxisClasses:
    """The classes of the axes of a program.

    Args:
      program: the program's jaxpr.

    Attributes:
      inputs: the program's inputs.
      uses: for each input the uses in products and look-ups, in the order of the program.
    """

    def __init__(self, program: Jaxpr) -> None:
        self._parents: list[int] = []
        self._units: list[int] = []
        self._batches: list[int] = []
        self.inputs: list[Traced] = []
        self.uses: dict[int, list[Use]] = {}
        for number, atom in enumerate(program.invars):
            self.inputs.append(self._fresh(atom, number))
            self.uses[number] = []
        self._run(program, self.inputs)

    def find(self, axis: int) -> int:
        """The class of an axis, as the number of one of its members."""
        # Classes are a forest of parents (union-find); each search halves the path to the root.
        while self._parents[axis] != axis:
            self._parents[axis] = axis = self._parents[self._parents[axis]]
        return axis

    def unit(self, axis: int) -> int:
        """The greatest number of parts into which all axes of a class can be split."""
        return self._units[self.find(axis)]

    def batches(self) -> frozenset[int]:
        """Classes that are batches of products of activations, as the heads of attention are."""
        return frozenset(map(self.find, self._batches))

    def _axis(self, size: int) -> int:
        self._parents.append(len(self._parents))
        self._units.append(size)
        return len(self._parents) - 1

    def _fresh(self, atom: Any, source: int | None = None) -> Traced:
        shape = _shape(atom)
        return Traced(shape, tuple(map(self._axis, shape)), source)

    def _join(self, one: int, other: int) -> None:
        one, other = self.find(one), self.find(other)
        if one != other:
            self._parents[other] = one
            # All axes of a class are split alike, so the parts must divide each of them.
            self._units[one] = math.gcd(self._units[one], self._units[other])

    def _join_alike(self, one: Traced, other: Traced) -> None:
        """Joins the axes of two arrays that lie at the same place and are equally long."""
        if len(one.shape) == len(other.shape):
            for size, mine, length, its in zip(one.shape, one.axes, other.shape, other.axes, strict=True):
                if size == length:
                    self._join(mine, its)

    def _run(self, jaxpr: Jaxpr, given: Sequence[Traced]) -> list[Traced]:
        """Goes through a program; returns its outputs."""
        known: dict[Any, Traced] = {}

        def write(atoms: Sequence[Any], values: Sequence[Traced]) -> None:
            for atom, one in zip(atoms, values, strict=True):
                # Where a program is one replica's, arrays that are cut among the replicas are shorter than outside.
                known[atom] = one._replace(shape=_shape(atom))

        def read(atom: Any) -> Traced:
            # Constants have no axes that anybody could split: each time they are others.
            if isinstance(atom, Literal) or atom not in known:
                return self._fresh(atom)
            return known[atom]

        write(jaxpr.invars, given)
        for eqn in jaxpr.eqns:
            write(eqn.outvars, self._through(eqn, list(map(read, eqn.invars))))
        return list(map(read, jaxpr.outvars))

    def _through(self, eqn: JaxprEqn, given: list[Traced]) -> list[Traced]:
        name = eqn.primitive.name
        if name == "scan":
            return self._scan(eqn, given)
        if name == "while":
            tests = eqn.params["cond_nconsts"]
            return self._turned(Programs.opened(eqn.params["body_jaxpr"]), given[tests:], eqn.params["body_nconsts"])
        if name == "cond":
            # The first operand says which branch runs; the branches do not get it.
            branches = [self._run(Programs.opened(branch), given[1:]) for branch in eqn.params["branches"]]
            # Whichever branch runs, the result is laid out alike.
            for others in branches[1:]:
                for one, other in zip(branches[0], others, strict=True):
                    self._join_alike(one, other)
            return branches[0]
        inner = eqn.params["jaxpr"] if name == "shard_map" else Programs.called(eqn)
        return self._operation(eqn, given) if inner is None else self._run(Programs.opened(inner), given)

    def _turned(self, body: Jaxpr, given: list[Traced], consts: int) -> list[Traced]:
        """The values that a loop carries, which go out of its body as they go in."""
        carry = given[consts:]
        # What comes out of one turn goes into the next, so both lie alike.
        for one, other in zip(carry, self._run(body, given), strict=False):
            self._join_alike(one, other)
        return carry

    def _scan(self, eqn: JaxprEqn, given: list[Traced]) -> list[Traced]:
        consts, carries, length = Programs.scan_counts(eqn)
        end = consts + carries
        # An array's rows are as the array is, without the axis over which the scan goes.
        rows = [Traced(one.shape[1:], one.axes[1:], one.source) for one in given[end:]]
        outs = self._run(Programs.opened(eqn.params["jaxpr"]), [*given[:end], *rows])
        for one, other in zip(given[consts:end], outs[:carries], strict=True):
            self._join_alike(one, other)
        stacked = [Traced((length, *out.shape), (self._axis(length), *out.axes)) for out in outs[carries:]]
        return [*given[consts:end], *stacked]

    def _operation(self, eqn: JaxprEqn, given: list[Traced]) -> list[Traced]:
        arrays = [one for one in given if one.shape]
        put_together = eqn.primitive.name == "jd_whole"  # its second operand is zeros
        # What is made of one variable alone, such as its transpose or its copy in another dtype, still is that variable
        # where it meets a product.
        sources = {one.source for one in (arrays[:1] if put_together else arrays)}
        source = sources.pop() if len(sources) == 1 else None
        results = [self._fresh(atom, source) for atom in eqn.outvars]
        # One method for each operation that moves axes about. Of all others only axes that lie alike are joined: a
        # class that is too small costs a try of the search, one that is too large a layout that communicates.
        special = getattr(self, f"_of_{eqn.primitive.name.replace('-', '_')}", None)
        if special is not None:
            special(eqn, given, results if len(results) > 1 else results[0])
        elif eqn.primitive.name.startswith(("reduce_", "arg")) and "axes" in eqn.params:
            self._dropped(given[0], results, eqn.params["axes"])
        elif len(given) == len(results):
            for one, result in zip(given, results, strict=True):
                self._join_alike(one, result)
        else:
            for result in results:
                for one in arrays:
                    self._join_alike(one, result)
        return results

    def _dropped(self, given: Traced, results: Sequence[Traced], dropped: Sequence[int]) -> None:
        """Results without some axes of an operand."""
        kept = given.members(_others(given.axes, dropped))
        for result in results:
            for axis, its in zip(kept, result.axes, strict=False):
                self._join(axis, its)

    def _of_squeeze(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        self._dropped(given[0], [result], eqn.params["dimensions"])

    def _of_unstack(self, eqn: JaxprEqn, given: list[Traced], results: list[Traced]) -> None:
        self._dropped(given[0], results, [eqn.params["axis"]])

    def _of_transpose(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        for place, axis in zip(eqn.params["permutation"], result.axes, strict=True):
            self._join(given[0].axes[place], axis)

    def _of_broadcast_in_dim(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        for place, to in enumerate(eqn.params["broadcast_dimensions"]):
            if given[0].shape[place] == result.shape[to]:
                self._join(given[0].axes[place], result.axes[to])

    def _of_reshape(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        """Joins the longest strides: an axis split into equal runs is split there when it is cut or merged."""
        old, new = _long(given[0].shape), _long(result.shape)
        while old and new:
            self._join(given[0].axes[old[0]], result.axes[new[0]])
            before, after = given[0].shape[old.pop(0)], result.shape[new.pop(0)]
            # The side with fewer elements takes further axes until both have gone through equally many.
            while before != after and (old if before < after else new):
                if before < after:
                    before *= given[0].shape[old.pop(0)]
                else:
                    after *= result.shape[new.pop(0)]

    def _of_all_gather(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        """Axes as they were; where it is not tiled, a new one among them."""
        axes = list(result.axes)
        if len(axes) > len(given[0].axes):
            del axes[eqn.params["all_gather_dimension"]]
        for one, other in zip(given[0].axes, axes, strict=True):
            self._join(one, other)

    def _of_jd_whole(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        """The value put together from pieces of an axis; of flat ones nothing is known."""
        for operand in given:
            if len(operand.axes) == len(result.axes):
                for one, other in zip(operand.axes, result.axes, strict=True):
                    self._join(one, other)

    def _of_reduce_scatter(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        self._of_jd_whole(eqn, given, result)

    def _note(self, operand: Traced, kind: str, places: Sequence[int]) -> None:
        if operand.source is not None:
            for axis in operand.members(places):
                self.uses[operand.source].append(Use(kind, axis))

    def _of_dot_general(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        contracted, batched = eqn.params["dimension_numbers"]
        for pairs in (contracted, batched):
            for one, other in zip(*pairs, strict=True):
                self._join(given[0].axes[one], given[1].axes[other])
        # The result's axes: the batch, then what is free in the left and in the right operand.
        axes = given[0].members(batched[0])
        for side, operand in enumerate(given):
            free = _others(operand.axes, (*contracted[side], *batched[side]))
            axes += operand.members(free)
            self._note(operand, "columns", free)
            self._note(operand, "rows", contracted[side])
            self._note(operand, "batch", batched[side])
        # With a variable it would be a layer; between activations it is attention, whose heads are worth splitting.
        if given[0].source is None and given[1].source is None:
            self._batches += axes[: len(batched[0])]
        for one, other in zip(axes, result.axes, strict=True):
            self._join(one, other)

    def _of_conv_general_dilated(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        numbers = eqn.params["dimension_numbers"]
        left, right, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
        # A spec has the batch and the features, of a kernel the outputs and the inputs, before the axes of space.
        pairs = [
            (given[0], left[0], result, out[0]),
            (given[0], left[1], given[1], right[1]),
            (given[1], right[0], result, out[1]),
        ]
        for one, place, other, to in pairs:
            # Groups of features or of the batch make one of the two longer than the other.
            if one.shape[place] == other.shape[to]:
                self._join(one.axes[place], other.axes[to])
        self._note(given[1], "outputs", right[:1])
        self._note(given[1], "inputs", right[1:2])

    def _of_gather(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        numbers = eqn.params["dimension_numbers"]
        gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        for place, to in zip(_others(given[0].axes, gone), numbers.offset_dims, strict=True):
            # Only an axis that is taken whole stays what it was.
            if eqn.params["slice_sizes"][place] == given[0].shape[place]:
                self._join(given[0].axes[place], result.axes[to])
        for place, to in enumerate(_others(result.axes, numbers.offset_dims)):
            self._join(given[1].axes[place], result.axes[to])
        self._note(given[0], "lookup", numbers.collapsed_slice_dims)

    def _of_scatter_add(self, eqn: JaxprEqn, given: list[Traced], result: Traced) -> None:
        numbers = eqn.params["dimension_numbers"]
        self._join_alike(given[0], result)
        gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        for place, to in zip(_others(given[0].axes, gone), numbers.update_window_dims, strict=True):
            if given[0].shape[place] == given[2].shape[to]:
                self._join(given[0].axes[place], given[2].axes[to])

    _of_scatter = _of_scatter_add


def _shape(atom: Any) -> tuple[int, ...]:
    """The shape of a variable or literal of a program; that of a scalar for what is no array."""
    return tuple(getattr(Programs.aval(atom), "shape", ()))


def _others(axes: Sequence[int], places: Sequence[int]) -> list[int]:
    """The places of an array's axes without some of them."""
    return [place for place in range(len(axes)) if place not in places]


def _long(shape: tuple[int, ...]) -> list[int]:
    """The places of the axes that have more than one element, or none at all."""
    return [place for place, size in enumerate(shape) if size != 1]
