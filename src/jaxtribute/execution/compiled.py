"""`strategy.run` inside a traced program: one `shard_map` over the replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxtribute.collectives import manual
from jaxtribute.context import Context, Frame, entered
from jaxtribute.errors import TraceError, VariableError
from jaxtribute.execution.frames import TracedFrame, lift
from jaxtribute.execution.inference import varying_outputs
from jaxtribute.execution.nests import flatten, is_array
from jaxtribute.execution.replica_context import ReplicaContext
from jaxtribute.values.distributed import Mirrored, PerReplica
from jaxtribute.values.enums import ReduceOp
from jaxtribute.values.mesh import AXIS, ReplicaMesh

if TYPE_CHECKING:
    from jaxtribute.strategies.base import Strategy

_SPLIT, _WHOLE = PartitionSpec(AXIS), PartitionSpec()


@jax.tree_util.register_dataclass
@dataclass(slots=True, repr=False, eq=False)
class LocalPerReplica(PerReplica):
    """A per-replica value seen from inside a compiled `merge_call`: `data` is this replica's component."""

    @property
    def values(self) -> tuple[Any, ...]:
        """All replicas' components, gathered."""
        return tuple(manual.rows(self.data))


class TracedLink:
    """How one replica of a compiled program reaches the others."""

    def __init__(self, strategy: Strategy, mesh: ReplicaMesh, frame: TracedFrame) -> None:
        self._strategy, self._mesh, self._frame = strategy, mesh, frame

    def all_reduce(self, values: list[Any], op: ReduceOp) -> list[Any]:
        """Each array reduced over the replicas, small ones in one collective."""
        return manual.all_reduce(values, op, self._mesh.size)

    def all_gather(self, values: list[Any], axis: int) -> list[Any]:
        """Each array concatenated over the replicas."""
        return [manual.all_gather(value, axis) for value in values]

    def select(self, value: Any, replica: int) -> Any:
        """The array of replica `replica`."""
        return manual.from_replica(value, replica)

    def merge(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs `fn(strategy, ...)` once for all replicas: here, the same program on each of them."""
        leaves, tree = flatten((args, kwargs))
        wrapped = [LocalPerReplica(jnp.asarray(x), self._mesh, jnp.ndim(x) == 0) if is_array(x) else x for x in leaves]
        args, kwargs = tree.unflatten(wrapped)
        with entered(Context(self._strategy, None, self._frame)):
            result = fn(self._strategy, *args, **kwargs)
        leaves, tree = flatten(result)
        return tree.unflatten([x.data if isinstance(x, (PerReplica, Mirrored)) else x for x in leaves])


@dataclass(slots=True)
class _Arguments:
    """The flattened arguments of a replica function: which are inputs of the program, and how they are split."""

    leaves: list[Any]
    tree: Any
    inputs: list[Any]
    split: list[bool]
    scalar: list[bool]
    places: list[int]

    @classmethod
    def of(cls, nest: Any, mesh: ReplicaMesh) -> _Arguments:
        leaves, tree = flatten(nest)
        self = cls(leaves, tree, [], [], [], [])
        for place, leaf in enumerate(leaves):
            self._add(place, leaf, mesh)
        return self

    def _add(self, place: int, leaf: Any, mesh: ReplicaMesh) -> None:
        split = scalar = False
        if isinstance(leaf, PerReplica):
            if leaf.is_ragged:
                leaf = stacked(leaf, mesh)
                if not isinstance(leaf, PerReplica):
                    self.leaves[place] = leaf
                    return
            leaf, split, scalar = leaf.data, True, leaf.scalar
        elif isinstance(leaf, Mirrored):
            leaf = leaf.data
        elif not is_array(leaf):
            return
        self.places.append(place)
        self.inputs.append(leaf)
        self.split.append(split)
        self.scalar.append(scalar)

    def local_avals(self, mesh: ReplicaMesh) -> list[jax.ShapeDtypeStruct]:
        """What one replica sees of each input."""
        avals: list[jax.ShapeDtypeStruct] = []
        for value, split, scalar in zip(self.inputs, self.split, self.scalar, strict=True):
            shape = tuple(value.shape)
            if split:
                shape = () if scalar else (shape[0] // mesh.size, *shape[1:])
            avals.append(jax.ShapeDtypeStruct(shape, value.dtype, weak_type=getattr(value, "weak_type", False)))
        return avals

    def fill(self, local: tuple[Any, ...]) -> Any:
        """The arguments with one replica's values in place of the inputs."""
        leaves = list(self.leaves)
        for place, value in zip(self.places, local, strict=True):
            leaves[place] = value
        return self.tree.unflatten(leaves)


def stacked(value: PerReplica, mesh: ReplicaMesh) -> Any:
    """Python numbers, one a replica, as one per-replica array, or as the number itself if all are the same."""
    values = value.data
    if all(type(x) is type(values[0]) and not is_array(x) and x == values[0] for x in values):
        return values[0]
    if not all(isinstance(x, (bool, int, float, complex)) for x in values):
        raise TraceError(
            f"the replicas' values {values!r} cannot be one array of a compiled program. "
            "HINT: pass numbers or arrays of one shape and dtype, or call strategy.run outside jd.function."
        )
    return PerReplica(jnp.asarray(np.asarray(values)), mesh, scalar=True)


@dataclass(slots=True)
class _Traced:
    """One replica's program: its jaxpr, what it returns besides arrays, and the variables that it touches."""

    closed: jex.ClosedJaxpr
    frame: TracedFrame
    results: list[Any]
    tree: Any
    places: list[int]


def run(strategy: Strategy, mesh: ReplicaMesh, fn: Callable[..., Any], args: Any, kwargs: Any, outer: Frame) -> Any:
    """Runs `fn` on every replica as part of the program that `outer` traces.

    Args:
      strategy: the strategy whose replicas run.
      mesh: the replicas' devices, more than one.
      fn: the replica function.
      args: positional arguments; per-replica values anywhere in them are split, all else is shared.
      kwargs: keyword arguments, likewise.
      outer: the frame of the surrounding program.

    Returns:
      `fn`'s result, its arrays wrapped as `PerReplica` or, where they are the same on all replicas, `Mirrored`.
    """
    arguments = _Arguments.of((args, kwargs), mesh)
    traced = _trace(strategy, mesh, fn, arguments)
    variables = traced.frame.inputs
    splits = [*arguments.split, *(variable.policy.split for variable in variables)]
    varying = varying_outputs(traced.closed.jaxpr, splits)
    results, writes = varying[: len(traced.places)], varying[len(traced.places) :]
    written = list(traced.frame.written)
    for variable, varies in zip(written, writes, strict=True):
        if varies and not variable.policy.split:
            raise VariableError(
                f"{variable.name} would get a different value on each of {mesh.size} replicas. HINT: reduce the value "
                "before it is assigned (strategy.reduce, ctx.all_reduce), or create the variable with an aggregation."
            )
    out_split = [*results, *(variable.policy.split for variable in written)]
    consts = list(traced.closed.consts)
    mapped = jax.shard_map(
        _replica_program(traced.closed, len(consts), arguments.scalar, out_split),
        mesh=mesh.mesh,
        in_specs=(*(_WHOLE for _ in consts), *(_SPLIT if split else _WHOLE for split in splits)),
        out_specs=tuple(_SPLIT if split else _WHOLE for split in out_split),
        check_vma=False,
    )
    outputs = mapped(*consts, *arguments.inputs, *(outer.get(variable) for variable in variables))
    for variable, value in zip(written, outputs[len(results) :], strict=True):
        outer.set(variable, value)
    return _wrap(traced, outputs, results, mesh)


def _trace(strategy: Strategy, mesh: ReplicaMesh, fn: Callable[..., Any], arguments: _Arguments) -> _Traced:
    seen: list[Any] = []

    def program(*local: Any) -> list[Any]:
        frame = TracedFrame(local=True)
        link = TracedLink(strategy, mesh, frame)
        context = ReplicaContext(strategy, lax.axis_index(AXIS), link)
        args, kwargs = arguments.fill(local)
        with entered(Context(strategy, context, frame)):
            result = fn(*args, **kwargs)
        leaves, tree = flatten(result)
        leaves = [leaf.data if isinstance(leaf, Mirrored) else leaf for leaf in leaves]
        places = [place for place, leaf in enumerate(leaves) if is_array(leaf)]
        seen.extend((frame, leaves, tree, places))
        return [*(leaves[place] for place in places), *(frame.values[variable] for variable in frame.written)]

    closed = jax.make_jaxpr(program, axis_env=[(AXIS, mesh.size)])(*arguments.local_avals(mesh))
    return _Traced(lift(closed), *seen)


def _replica_program(
    closed: jex.ClosedJaxpr, consts: int, scalar: list[bool], out_split: list[bool]
) -> Callable[..., Any]:
    """The traced program with scalars, which have no axis to split, carried in vectors."""

    def program(*inputs: Any) -> tuple[Any, ...]:
        bound, rest = inputs[:consts], list(inputs[consts:])
        for place, is_scalar in enumerate(scalar):
            if is_scalar:
                rest[place] = rest[place].reshape(())
        outputs = jex.jaxpr_as_fun(jex.ClosedJaxpr(closed.jaxpr, bound))(*rest)
        return tuple(
            out.reshape(1) if split and jnp.ndim(out) == 0 else out
            for out, split in zip(outputs, out_split, strict=True)
        )

    return program


def _wrap(traced: _Traced, outputs: Any, varying: list[bool], mesh: ReplicaMesh) -> Any:
    leaves = list(traced.results)
    for place, output, varies in zip(traced.places, outputs, varying, strict=False):
        if varies:
            leaves[place] = PerReplica(output, mesh, np.ndim(leaves[place]) == 0)
        else:
            leaves[place] = Mirrored(output, mesh)
    return traced.tree.unflatten(leaves)
