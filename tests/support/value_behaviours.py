"""Rows of the table of behaviours about values: what kinds are reduced, gathered and kept, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from behaviours import AGG, ON_READ, ROWS, Parts, Row, across, everywhere, in_replica
from jaxtribute._src.core.jaxprs.core import is_traced
from replicas import here, variable

Make = Callable[[Any], Any]


def counts(x: Any) -> Any:
    """A vector of ints: how many of the numbers in each column are positive."""
    return (x > 0).sum(0).astype(np.int32)


VALUES: dict[str, tuple[Make, tuple[Any, ...]]] = {
    "floats": (lambda x: x.sum(), (None,)),
    "ints": (lambda x: (x > 0).sum().astype(np.int32), (None,)),
    "flags": (lambda x: x.sum() > 0, (None,)),
    "vectors": (lambda x: x.sum(0), (None, 0)),
    "vectors of ints": (counts, (None, 0)),
    "vectors of flags": (lambda x: x.sum(0) > 0, (None, 0)),
    "rows": (lambda x: x, (0, (0, 1))),
    "nests": (lambda x: {"a": x.sum(0), "b": (counts(x),)}, (None, 0)),
}
"""What each replica makes of its input, and the axes along which that is reduced."""
OPERATIONS = ("SUM", "MEAN")


def reduced(make: Make, axes: tuple[Any, ...]) -> Callable[[Parts], list[Any]]:
    """What the reductions of values give, by NumPy."""

    def leaf(op: str, axis: Any, *parts: Any) -> Any:
        along = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
        total = np.sum([part.sum(along) for part in parts], 0)
        each = [np.prod([part.shape[one] for one in along]) for part in parts]
        return total if op == "SUM" else total / np.sum(each)

    def all_of(parts: Parts) -> Any:
        values = list(map(make, parts))
        return {op: [jax.tree.map(partial(leaf, op, axis), *values) for axis in axes] for op in OPERATIONS}

    return everywhere(all_of)


def _reduce(name: str, make: Make, axes: tuple[Any, ...], ragged: bool = True) -> None:
    def merged(strategy: jd.Strategy, x: Any) -> Any:
        return {op: [strategy.reduce(op, x, axis=axis) for axis in axes] for op in OPERATIONS}

    across(f"reduce {name}", reduced(make, axes), ragged=ragged)(
        lambda strategy, x: merged(strategy, strategy.run(make, (x,)))
    )
    in_replica(f"merge_call that reduces {name}", reduced(make, axes), ragged=ragged)(
        lambda x: here().merge_call(merged, (make(x),))
    )


for _name, (_make, _axes) in VALUES.items():
    _reduce(_name, _make, _axes)
_reduce("matrices of one shape", lambda x: x, (None, 1), ragged=False)


def gathered(make: Make, axis: int) -> Callable[[Parts], list[Any]]:
    """What a gather gives, by NumPy."""
    return everywhere(lambda parts: jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *map(make, parts)))


for _name in ("vectors", "vectors of ints", "vectors of flags", "nests"):
    across(f"gather of {_name}", gathered(VALUES[_name][0], 0))(
        lambda strategy, x, make=VALUES[_name][0]: strategy.gather(strategy.run(make, (x,)), axis=0)
    )
    in_replica(f"all_gather of {_name}", gathered(VALUES[_name][0], 0))(
        lambda x, make=VALUES[_name][0]: here().all_gather(make(x), axis=0)
    )
across("gather along axis 1", gathered(lambda x: x, 1), ragged=False)(lambda s, x: s.gather(x, axis=1))


# Rows of a table.
def slices(x: Any) -> jd.IndexedSlices:
    """Rows of a table of four, as many as the input has: replicas give some twice."""
    return jd.IndexedSlices(x, jnp.arange(x.shape[0], dtype=np.int32) * 2, (4, 3))


def table(slices: jd.IndexedSlices) -> Any:
    return jnp.zeros((4, 3), np.float32).at[slices.indices].add(slices.values)


def _tables(parts: Parts) -> Any:
    total = np.zeros((4, 3), np.float32)
    for part in parts:
        total[: 2 * len(part) : 2] += part
    return total


@in_replica("all_reduce of IndexedSlices", everywhere(lambda p: (_tables(p), {"mean": _tables(p) / len(p)})))
def _(x: Any) -> Any:
    total, more = here().all_reduce("SUM", (slices(x), {"n": jnp.float32(0)}))
    return table(total), {"mean": table(here().all_reduce("MEAN", slices(x))) + more["n"]}


in_replica("all_gather of IndexedSlices", everywhere(_tables))(lambda x: table(here().all_gather(slices(x), axis=0)))


# Python numbers.
@across("SUM of Python numbers", everywhere(lambda parts: np.sum([part.sum() for part in parts])), compiles=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(lambda x: float(x.sum()), (x,)), axis=None)


@across("MEAN of lengths", everywhere(lambda parts: np.mean(list(map(len, parts)))))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.reduce("MEAN", strategy.run(lambda x: x.shape[0], (x,)), axis=None)


@across("Python numbers made for each replica", everywhere(lambda parts: (len(parts) - 1) / 2))
def _(strategy: jd.Strategy, x: Any) -> Any:
    numbers = strategy.experimental_distribute_values_from_function(lambda c: float(c.replica_id_in_sync_group))
    return strategy.reduce("MEAN", numbers, axis=None)


@across("Python numbers as arguments", lambda parts: [part + i for i, part in enumerate(parts)])
def _(strategy: jd.Strategy, x: Any) -> Any:
    numbers = strategy.experimental_distribute_values_from_function(lambda c: float(c.replica_id_in_sync_group))
    return strategy.run(lambda x, n: x + n, (x, numbers))


def _with_numbers(strategy: jd.Strategy) -> Callable[[Any], Any]:
    def merged(strategy: jd.Strategy, total: Any, factor: float, *, more: int) -> Any:
        return strategy.reduce("SUM", total, axis=None) * factor + more

    return lambda x: strategy.run(lambda x: here().merge_call(merged, (x.sum(), 2.0), {"more": 1}), (x,))


ROWS["merge_call: numbers beside values"] = Row(
    _with_numbers, everywhere(lambda parts: np.sum([part.sum() for part in parts]) * 2 + 1)
)


# Where values come from.
OUTSIDE = np.arange(3, dtype=np.float32)


@in_replica("an array from around", everywhere(lambda parts: OUTSIDE))
def _(x: Any) -> Any:
    return jnp.asarray(OUTSIDE)


SOURCES: dict[str, Callable[[jd.Strategy], Any]] = {
    "an array of NumPy": lambda strategy: OUTSIDE,
    "an array": lambda strategy: jnp.asarray(OUTSIDE),
    "an array on a device": lambda strategy: jax.device_put(OUTSIDE, strategy.extended.mesh.local_devices[0]),
    "a placed array": lambda strategy: strategy.place(OUTSIDE),
    "a reduced array": lambda strategy: strategy.reduce("MEAN", strategy.place(OUTSIDE), axis=None),
}


def _as_argument(strategy: jd.Strategy, source: Callable[[jd.Strategy], Any]) -> Callable[[Any], Any]:
    value = source(strategy)
    return lambda x: strategy.run(lambda x, y: (x.sum() + y, y), (x, value))


def _summed(strategy: jd.Strategy, source: Callable[[jd.Strategy], Any]) -> Callable[[Any], Any]:
    value = source(strategy)

    def step(x: Any) -> Any:
        total = strategy.reduce("SUM", strategy.run(lambda y: y * 2, (value,)), axis=None)
        return total, strategy.reduce("MEAN", value, axis=None), strategy.reduce("SUM", value, axis=0)

    return step


for _name, _source in SOURCES.items():
    ROWS[f"values: {_name} as an argument"] = Row(
        lambda strategy, source=_source: _as_argument(strategy, source),
        lambda parts: [(part.sum() + OUTSIDE, OUTSIDE) for part in parts],
    )
    ROWS[f"values: {_name} summed up"] = Row(
        lambda strategy, source=_source: _summed(strategy, source),
        everywhere(lambda parts: (OUTSIDE * 2 * len(parts), OUTSIDE, OUTSIDE.sum() * len(parts))),
    )


def _from_around(strategy: jd.Strategy) -> Callable[[Any], Any]:
    own = strategy.experimental_distribute_values_from_function(
        lambda context: np.full(2, context.replica_id_in_sync_group + 1.0, np.float32)
    )
    joined = strategy.gather(own, axis=0)
    return lambda x: (
        strategy.reduce("SUM", own, axis=None),
        joined.sum(),
        strategy.reduce("SUM", strategy.run(lambda x, y: x.sum() + y, (x, own)), axis=None),
    )


ROWS["values: the replicas' own from around the function"] = Row(
    _from_around,
    everywhere(
        lambda parts: (
            np.full(2, np.arange(len(parts) + 1).sum()),
            2 * np.arange(len(parts) + 1).sum(),
            np.sum([part.sum() + np.full(2, place + 1) for place, part in enumerate(parts)], 0),
        )
    ),
)


@across("local results", everywhere(lambda parts: 1), compiles=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    found = strategy.experimental_local_results(x)
    return len(found) // len(strategy.extended.mesh.local_ids)


# Destinations.
def whole(value: Any) -> Any:
    """The array of a mirrored value."""
    return value.data if isinstance(value, jd.DistributedValues) else value  # pyright: ignore[reportAttributeAccessIssue]


@across("reduce_to a variable, a value and a device", everywhere(lambda p: [np.sum(p, 0)] * 4), ragged=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    v, device = variable(strategy, 0.0), strategy.extended.worker_devices[0]
    results = [strategy.extended.reduce_to("SUM", x, where) for where in (v, x, device)]
    results.append(jd.ReductionToOneDevice().reduce("SUM", x, x))  # directly, also over workers
    return [
        getattr(result, "data", result) if isinstance(result, jd.DistributedValues) else result for result in results
    ]


@across("batch_reduce_to", everywhere(lambda p: [np.mean(p, 0), np.mean([q.sum() for q in p])]), ragged=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    totals = strategy.run(lambda x: x.sum(), (x,))
    results = strategy.extended.batch_reduce_to("MEAN", [(x, x), (totals, totals)])
    return [
        getattr(result, "data", result) if isinstance(result, jd.DistributedValues) else result for result in results
    ]


# Variables that replicas keep for themselves, and that code of all replicas writes.
def _total(parts: Parts) -> Any:
    return np.sum([part.sum() for part in parts])


ON_READS: dict[Any, Callable[[Parts], Any]] = {
    AGG.SUM: lambda parts: len(parts) + _total(parts),
    AGG.MEAN: lambda parts: 1 + _total(parts) / len(parts),
    AGG.ONLY_FIRST_REPLICA: lambda parts: 1 + parts[0].sum(),
}


def _kept(strategy: jd.Strategy, aggregation: Any) -> Callable[[Any], Any]:
    v = variable(strategy, 1.0, synchronization=ON_READ, aggregation=aggregation)

    def step(x: Any) -> Any:
        strategy.run(lambda x: (v.assign_add(x.sum()), None)[1], (x,))
        with strategy.scope():
            whole = v.read_value()
            v.assign(2.0)
            return whole, v.read_value(), strategy.run(v.read_value)

    return step


def _on_read_row(aggregation: Any, read: Callable[[Parts], Any]) -> Row:
    def expected(parts: Parts) -> list[Any]:
        own = 2 / len(parts) if aggregation is AGG.SUM else 2
        return [(read(parts), 2, own)] * len(parts)

    return Row(lambda strategy: _kept(strategy, aggregation), expected, kept_apart=True)


for _aggregation, _read in ON_READS.items():
    ROWS[f"variable: ON_READ {_aggregation.name}"] = _on_read_row(_aggregation, _read)


def _assigned(strategy: jd.Strategy, aggregation: Any) -> Callable[[Any], Any]:
    v = variable(strategy, 1.0, aggregation=aggregation)

    def step(x: Any) -> Any:
        with strategy.scope():
            v.assign(5.0)
            v.assign_add(strategy.reduce("SUM", strategy.run(lambda x: x.sum(), (x,)), axis=None))
            v.assign_sub(jnp.float32(1))
            strategy.extended.update(v, lambda v, by: v.assign(v * by), args=(2.0,))
            return v.read_value(), strategy.run(v.read_value)

    return step


for _aggregation in AGG:
    ROWS[f"variable: assigned by code of all replicas, {_aggregation.name}"] = Row(
        lambda strategy, aggregation=_aggregation: _assigned(strategy, aggregation),
        everywhere(lambda parts: ((4 + _total(parts)) * 2,) * 2),
    )


def _update_each(strategy: jd.Strategy) -> Callable[[Any], Any]:
    v = variable(strategy, 1.0, synchronization=ON_READ, aggregation=AGG.SUM)

    def step(x: Any) -> Any:
        totals = strategy.run(lambda x: x.sum(), (x,))
        strategy.extended.update(v, lambda v, by: v.assign_add(by), args=(totals,))
        return strategy.run(v.read_value)

    return step


ROWS["variable: update of each replica's own"] = Row(
    _update_each, lambda parts: [1 + part.sum() for part in parts], kept_apart=True
)


# Datasets whose last batches leave some replicas fewer rows, or none.
ROWS_OF_DATA = np.arange(18, dtype=np.float32).reshape(9, 2)


def _epoch(strategy: jd.Strategy, compiled: bool) -> Callable[[Any], Any]:
    v = variable(strategy, 0.0, aggregation=AGG.MEAN)

    def replica(rows: Any) -> Any:
        v.assign(here().all_reduce("SUM", rows.sum()))
        return rows * 2, rows.mean()

    def one(rows: Any) -> Any:
        doubled, _ = strategy.run(replica, (rows,))
        return (
            strategy.reduce("SUM", doubled, axis=0),
            strategy.reduce("MEAN", doubled, axis=(0, 1)),
            strategy.gather(doubled, axis=0).sum(),
            v.read_value(),
        )

    step = jd.function(one) if compiled else one

    def epoch(x: Any) -> Any:
        dataset = strategy.experimental_make_numpy_dataset(ROWS_OF_DATA).batch(8)
        return [step(batch) for batch in strategy.experimental_distribute_dataset(dataset)]

    return epoch


def _epoch_by_hand(parts: Parts) -> Any:
    batches = [ROWS_OF_DATA[:8], ROWS_OF_DATA[8:]]
    return [(2 * batch.sum(0), 2 * batch.mean(), 2 * batch.sum(), batch.sum()) for batch in batches]


for _compiled in (False, True):
    ROWS[f"dataset: an epoch, {'compiled' if _compiled else 'eager'}"] = Row(
        lambda strategy, compiled=_compiled: _epoch(strategy, compiled),
        everywhere(_epoch_by_hand),
        ragged=False,
        compiles=False,
    )


@across("the loss of a batch that nobody distributed", everywhere(lambda parts: np.float32(len(parts))))
def _whole_batch(strategy: jd.Strategy, x: Any) -> Any:
    def loss(x: Any) -> Any:
        return jd.nn.compute_average_loss(x, global_batch_size=8)

    batch, several = np.ones(8, np.float32), strategy.num_replicas_in_sync > 1
    with pytest.warns(RuntimeWarning, match="whole") if several else nullcontext():
        losses = strategy.run(loss, (batch,))
    return strategy.reduce("SUM", losses, axis=None)


@across("the mean of means of unequal batches", everywhere(lambda parts: np.mean([part.mean() for part in parts])))
def _mean_of_means(strategy: jd.Strategy, x: Any) -> Any:
    means = strategy.run(lambda x: x.mean(), (x,))
    # Code that runs eagerly shows numbers alone, not how they were made.
    told = isinstance(x, jd.PerReplica) and x.shapes is not None and is_traced()
    with pytest.warns(RuntimeWarning, match="the mean of the replicas' means") if told else nullcontext():
        return strategy.reduce("MEAN", means, axis=None)
