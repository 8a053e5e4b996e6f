"""The table of behaviours: every public operation, with what it must give under every strategy, by every executor.

A row is an operation in the context that it is for: a replica function, `merge_call`, or cross-replica code. Each says
what it must give, worked out by NumPy from the replicas' inputs; the executors must agree with that, and so with each
other. Replica i holds `X[i]`: two rows of three numbers, or with an executor of uneven inputs `2 - i % 2` rows.
"""

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd
from replicas import here, per_replica, variable

AGG, ON_READ = jd.VariableAggregation, jd.VariableSynchronization.ON_READ
Parts = list[np.ndarray[Any, Any]]
X = [np.asarray(np.random.default_rng(i).integers(-4, 5, (2, 3)), np.float32) / 4 for i in range(4)]
EXECUTORS = ("lockstep", "compiled", "lockstep, uneven", "ragged")


@dataclass(frozen=True)
class Row:
    """One operation.

    Attributes:
      act: makes, for a strategy, a function of the replicas' inputs that returns nests of distributed values.
      expected: what each replica's component must be, from all replicas' inputs.
      ragged: whether it takes inputs of unequal shapes.
      compiles: whether it can be part of a `jd.function`; Python numbers of traced values cannot.
      kept_apart: whether it needs variables with a value for each replica, which central storage has none of.
    """

    act: Callable[[jd.Strategy], Callable[[Any], Any]]
    expected: Callable[[Parts], list[Any]]
    ragged: bool = True
    compiles: bool = True
    kept_apart: bool = False

    def takes(self, executor: str) -> bool:
        """Whether the executor can do it."""
        return (self.ragged or not is_uneven(executor)) and (self.compiles or not is_compiled(executor))


def is_uneven(executor: str) -> bool:
    return executor in ("lockstep, uneven", "ragged")


def is_compiled(executor: str) -> bool:
    return executor in ("compiled", "ragged")


ROWS: dict[str, Row] = {}


def in_replica(name: str, expected: Callable[[Parts], list[Any]], **limits: bool) -> Callable[[Any], Any]:
    """Adds a row: what a replica returns for its input."""

    def add(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        ROWS[f"replica: {name}"] = Row(lambda strategy: lambda x: strategy.run(fn, (x,)), expected, **limits)
        return fn

    return add


def in_merge(name: str, expected: Callable[[Parts], list[Any]], **limits: bool) -> Callable[[Any], Any]:
    """Adds a row: what `merge_call` makes of all inputs."""

    def add(fn: Callable[[jd.Strategy, Any], Any]) -> Callable[[jd.Strategy, Any], Any]:
        def act(strategy: jd.Strategy) -> Callable[[Any], Any]:
            return lambda x: strategy.run(lambda x: here().merge_call(fn, (x,)), (x,))

        ROWS[f"merge_call: {name}"] = Row(act, expected, **limits)
        return fn

    return add


def across(name: str, expected: Callable[[Parts], list[Any]], **limits: bool) -> Callable[[Any], Any]:
    """Adds a row: what cross-replica code makes of all inputs."""

    def add(fn: Callable[[jd.Strategy, Any], Any]) -> Callable[[jd.Strategy, Any], Any]:
        ROWS[f"cross-replica: {name}"] = Row(lambda strategy: lambda x: fn(strategy, x), expected, **limits)
        return fn

    return add


def with_variable(
    name: str, expected: Callable[[Parts], list[Any]], value: Any = 1.0, *, ragged: bool = True, **options: Any
) -> Callable[[Any], Any]:
    """Adds a row: what replicas see, and what remains, after `fn(v, x)` on each."""

    def add(fn: Callable[[jd.Variable, Any], Any]) -> Callable[[jd.Variable, Any], Any]:
        def act(strategy: jd.Strategy) -> Callable[[Any], Any]:
            v = variable(strategy, value, **options)

            def step(x: Any) -> Any:
                seen = strategy.run(lambda x: fn(v, x), (x,))
                with strategy.scope():
                    return seen, v.read_value()

            return step

        ROWS[f"variable: {name}"] = Row(act, expected, ragged)
        return fn

    return add


def everywhere(fn: Callable[[Parts], Any]) -> Callable[[Parts], list[Any]]:
    """The same for all replicas."""
    return lambda parts: [fn(parts)] * len(parts)


def sums(parts: Parts) -> Any:
    return np.sum([part.sum() for part in parts])


# What a replica does with its own input.
in_replica("local arithmetic", lambda parts: [part * 2 + 1 for part in parts])(lambda x: x * 2 + 1)
in_replica("its number", lambda parts: list(range(len(parts))))(lambda x: here().replica_id_in_sync_group)
in_replica("how many there are", everywhere(len))(lambda x: jnp.int32(here().num_replicas_in_sync))
in_replica("nests", lambda parts: [{"a": (p.sum(), p[:, 0])} for p in parts])(lambda x: {"a": (x.sum(), x[:, 0])})
in_replica("numbers and nothing", everywhere(lambda parts: (3, None)))(lambda x: (3, None))
in_replica("loops", lambda parts: [p.sum() * 8 for p in parts])(
    lambda x: jax.lax.scan(lambda c, _: (c * 2, None), x.sum(), None, 3)[0]
)

# Collectives.
in_replica("all_reduce SUM", everywhere(sums))(lambda x: here().all_reduce("SUM", x.sum()))
in_replica("all_reduce MEAN", everywhere(lambda p: sums(p) / len(p)))(lambda x: here().all_reduce("MEAN", x.sum()))
in_replica("all_reduce of a nest", everywhere(lambda p: (sums(p), {"n": sum(map(len, p))})))(
    lambda x: here().all_reduce("SUM", (x.sum(), {"n": jnp.int32(x.shape[0])}))
)
in_replica("all_reduce of flags", everywhere(lambda p: sum(part.sum() > 0 for part in p)))(
    lambda x: here().all_reduce(jd.ReduceOp.SUM, x.sum() > 0)
)
in_replica("all_reduce with options", everywhere(sums))(
    lambda x: here().all_reduce("SUM", x.sum(), jd.experimental.CommunicationOptions(bytes_per_pack=64))
)
in_replica("all_gather", everywhere(np.concatenate))(lambda x: here().all_gather(x, axis=0))
in_replica("all_gather axis 1", everywhere(lambda p: np.concatenate(p, 1)), ragged=False)(
    lambda x: here().all_gather(x, axis=1)
)
in_replica("two collectives in turn", everywhere(lambda p: sums(p) * len(p)))(
    lambda x: here().all_reduce("SUM", here().all_reduce("SUM", x.sum()))
)
in_replica("example_keys", lambda p: np.split(_draws(sum(map(len, p))), np.cumsum([len(part) for part in p])[:-1]))(
    lambda x: jax.vmap(jax.random.uniform)(here().example_keys(jax.random.key(0), x.shape[0]))
)
in_replica("fold_in", lambda p: [jax.random.uniform(jax.random.fold_in(jax.random.key(0), i)) for i in range(len(p))])(
    lambda x: jax.random.uniform(here().fold_in(jax.random.key(0)))
)


def _draws(count: int) -> Any:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(count))
    return np.asarray(jax.vmap(jax.random.uniform)(keys))


# Gradients: each replica's loss is its own, and collectives pass cotangents between them.
in_replica("gradient", lambda parts: [2 * part for part in parts])(jax.grad(lambda x: (x * x).sum()))
in_replica("gradient of all_reduce", lambda p: [np.full_like(q, 2 * len(p) * sums(p)) for q in p])(
    jax.grad(lambda x: here().all_reduce("SUM", x.sum()) ** 2)
)
in_replica("gradient of all_reduce MEAN", lambda p: [np.full_like(q, 2 * sums(p) / len(p)) for q in p])(
    jax.grad(lambda x: here().all_reduce("MEAN", x.sum()) ** 2)
)
in_replica("gradient of all_gather", lambda p: [2 * len(p) * part for part in p])(
    jax.grad(lambda x: (here().all_gather(x, axis=0) ** 2).sum())
)


def _places(parts: Parts) -> list[Any]:
    """For each row its place among those of all replicas, from 0 up."""
    ends = np.cumsum([len(part) for part in parts])
    return [np.arange(end - len(part), end, dtype=np.float32) for end, part in zip(ends, parts, strict=True)]


@in_replica("gradient of all_gather of several lengths", lambda p: [len(p) * (3 * q + 0.5) for q in _places(p)])
def _(x: Any) -> Any:
    return jax.grad(_gathered_by_place)(x[:, 0])


def _gathered_by_place(rows: Any) -> Any:
    all_rows = here().all_gather({"once": rows, "twice": jnp.repeat(rows, 2), "number": jnp.int32(rows[:1])}, axis=0)
    places = jnp.arange(len(all_rows["twice"]), dtype=jnp.float32)
    return (all_rows["once"] * places[: len(all_rows["once"])]).sum() + (all_rows["twice"] * places / 2).sum()


# merge_call.
@in_merge("reduce", everywhere(sums))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.reduce("SUM", x, axis=(0, 1))


@in_merge("reduce MEAN", everywhere(lambda p: np.concatenate(p).mean(0)))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.reduce("MEAN", x, axis=0)


@in_merge("gather", everywhere(np.concatenate))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.gather(x, axis=0)


@in_merge("reduce_to", everywhere(lambda p: np.sum(p, 0)), ragged=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.extended.reduce_to("SUM", x, x)


@in_merge("batch_reduce_to", everywhere(lambda p: [np.mean(p, 0), np.mean(p, 0)]), ragged=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.extended.batch_reduce_to("MEAN", [(x, x), (x, x)])


@in_merge("nothing distributed", everywhere(lambda p: 7.0))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return jnp.float32(7.0)


@in_merge("values pass through", lambda parts: parts)
def _(strategy: jd.Strategy, x: Any) -> Any:
    return x


# Cross-replica code.
@across("reduce SUM over the batch", everywhere(lambda p: np.concatenate(p).sum(0)))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.reduce("SUM", x, axis=0)


@across("reduce MEAN over the batch", everywhere(lambda p: np.concatenate(p).mean(0)))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.reduce("MEAN", x, axis=0)


@across("reduce over replicas", everywhere(lambda p: np.sum(p, 0)), ragged=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.reduce("SUM", x, axis=None)


@across("reduce of a result", everywhere(sums))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(lambda x: x.sum(), (x,)), axis=None)


@across("gather", everywhere(np.concatenate))
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.gather(x, axis=0)


@across("a run of a run's result", lambda parts: [part * 6 for part in parts])
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.run(lambda y: y * 3, (strategy.run(lambda x: x * 2, (x,)),))


@across("keyword arguments", lambda parts: [part + 2 for part in parts])
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.run(lambda x, by: x + by, (x,), {"by": 2})


def _slope(parts: Parts) -> Any:
    """The slope, at 0.5, of the sum of each replica's share times exp(h) times what all have."""
    return np.exp(0.5) * sums(parts) ** 2


@across("a gradient around run, of all_reduce", everywhere(_slope))
def _(strategy: jd.Strategy, x: Any) -> Any:
    def share(h: Any, x: Any) -> Any:
        return x.sum() * here().all_reduce("SUM", (jnp.exp(h) * x).sum())

    return _differentiated(strategy, share, x)


@across("a gradient around run, of all_gather", everywhere(_slope))
def _(strategy: jd.Strategy, x: Any) -> Any:
    def share(h: Any, x: Any) -> Any:
        return x.sum() * here().all_gather(jnp.exp(h) * x, axis=0).sum()

    return _differentiated(strategy, share, x)


@across("a gradient around run, of the whole batch's", everywhere(_slope))
def _(strategy: jd.Strategy, x: Any) -> Any:
    def share(h: Any, x: Any) -> Any:
        own = jax.grad(lambda w: (jnp.exp(h) * w * x).sum())(jnp.float32(1.0))
        return x.sum() * here().all_reduce("SUM", own)

    return _differentiated(strategy, share, x)


def _differentiated(strategy: jd.Strategy, share: Callable[[Any, Any], Any], x: Any) -> Any:
    def whole(h: Any, x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(share, (h, x)), axis=None)

    return jd.function(jax.grad(whole))(jnp.float32(0.5), x)


def _weighted(strategy: jd.Strategy, x: Any, call: Callable[[Any], Any]) -> Any:
    """The derivatives by what all replicas have, and by their own numbers, of a loss made in `strategy.run`."""

    def share(h: Any, x: Any) -> Any:
        return x.sum() * here().all_reduce("SUM", (jnp.exp(h) * x).sum())

    def whole(h: Any, x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(share, (h, x)), axis=None)

    return jax.grad(call(whole), argnums=(0, 1))(jnp.float32(0.5), x)


def _slopes(parts: Parts) -> list[Any]:
    """The slope at 0.5, and that by each replica's numbers."""
    return [(_slope(parts), np.full_like(part, 2 * np.exp(0.5) * sums(parts))) for part in parts]


@across("a gradient around run in eager code", _slopes, ragged=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    return _weighted(strategy, x, lambda whole: whole)


@across("a gradient around a compiled function", _slopes, ragged=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    return _weighted(strategy, x, jd.function)


@across("extended.reduce_to", everywhere(lambda p: np.mean(p, 0)), ragged=False)
def _(strategy: jd.Strategy, x: Any) -> Any:
    return strategy.extended.reduce_to("MEAN", x, x)


# Variables: what replicas see after writing, and what remains.
def both(seen: Callable[[Parts], Any], left: Callable[[Parts], Any]) -> Callable[[Parts], list[Any]]:
    return lambda parts: [(seen(parts), left(parts))] * len(parts)


def total(parts: Parts) -> Any:
    return 1 + sums(parts)


@with_variable("assign_add SUM", both(total, total), aggregation=AGG.SUM)
def _(v: jd.Variable, x: Any) -> Any:
    return v.assign_add(x.sum()).read_value()


@with_variable("assign MEAN", both(lambda p: sums(p) / len(p), lambda p: sums(p) / len(p)), aggregation=AGG.MEAN)
def _(v: jd.Variable, x: Any) -> Any:
    return v.assign(x.sum()).read_value()


@with_variable(
    "assign_sub ONLY_FIRST_REPLICA",
    both(lambda p: 1 - p[0].sum(), lambda p: 1 - p[0].sum()),
    aggregation=AGG.ONLY_FIRST_REPLICA,
)
def _(v: jd.Variable, x: Any) -> Any:
    return v.assign_sub(x.sum()).read_value()


@with_variable("read in arithmetic", lambda p: [(part.sum() + 1, 1.0) for part in p])
def _(v: jd.Variable, x: Any) -> Any:
    return v + x.sum()


@with_variable("gradient", lambda p: [(q.sum(0, keepdims=True), np.ones((1, 3))) for q in p], np.ones((1, 3), "f"))
def _(v: jd.Variable, x: Any) -> Any:
    return jd.grad(lambda: (v * x).sum(), v)()  # noqa: PLW0108 (reads what it differentiates)


@with_variable("extended.update", both(total, total))
def _(v: jd.Variable, x: Any) -> Any:
    def merged(strategy: jd.Strategy, x: Any) -> None:
        gained = strategy.reduce("SUM", x, axis=None)
        strategy.extended.update(v, jd.Variable.assign_add, args=(gained,))

    here().merge_call(merged, (x.sum(),))
    return v.read_value()


def _trained(parts: Parts) -> Any:
    return 1 - 0.5 * np.concatenate(parts).sum(0, keepdims=True)


def _optimizer(strategy: jd.Strategy) -> Callable[[Any], Any]:
    v = variable(strategy, np.ones((1, 3), np.float32))
    optimizer = jd.Optimizer(optax.sgd(0.5), [v])

    def replica(x: Any) -> None:
        optimizer.apply_gradients(jd.grad(lambda: (v * x).sum(), [v])())  # noqa: PLW0108 (reads what it differentiates)

    def step(x: Any) -> Any:
        strategy.run(replica, (x,))
        with strategy.scope():
            return v.read_value()

    return step


ROWS["cross-replica: Optimizer"] = Row(_optimizer, everywhere(_trained))


def _momentum(parts: Parts) -> Any:
    return np.ones((7, 1)) * np.concatenate(parts).sum(0)


def _slots(strategy: jd.Strategy) -> Callable[[Any], Any]:
    """What replicas, `merge_call` and the code around see of slots that lie in slices."""
    v = variable(strategy, np.ones((7, 3), np.float32))
    optimizer = jd.Optimizer(optax.sgd(0.5, momentum=0.5), [v], shard_update=True)
    (slot,) = optimizer.variables

    def replica(x: Any) -> Any:
        optimizer.apply_gradients(jd.grad(lambda: (v * x.sum(0, keepdims=True)).sum(), [v])())  # noqa: PLW0108 (reads what it differentiates)
        merged = here().merge_call(lambda _strategy: slot.read_value())
        return slot.read_value(), optax.tree.norm(optimizer.state), merged

    def step(x: Any) -> Any:
        seen = strategy.run(replica, (x,))
        with strategy.scope():
            slot.assign(2 * slot.read_value())
            return *seen, *strategy.run(lambda: (slot.read_value(),))

    return step


def _slots_expected(parts: Parts) -> Any:
    held = _momentum(parts)
    return held, np.linalg.norm(held), held, 2 * held


ROWS["cross-replica: slots in slices"] = Row(_slots, everywhere(_slots_expected))


def _metric(strategy: jd.Strategy) -> Callable[[Any], Any]:
    v = variable(strategy, 0.0, synchronization=ON_READ, aggregation=AGG.SUM)

    def step(x: Any) -> Any:
        strategy.run(lambda x: (v.assign_add(x.sum()), None)[1], (x,))
        with strategy.scope():
            return v.read_value()

    return step


ROWS["cross-replica: ON_READ metric"] = Row(_metric, everywhere(sums))


def inputs(strategy: jd.Strategy, executor: str) -> Parts:
    parts = X[: strategy.num_replicas_in_sync]
    return [part[: 2 - i % 2] for i, part in enumerate(parts)] if is_uneven(executor) else parts


def check_rows(strategy: jd.Strategy, executor: str, rows: Sequence[Row]) -> None:
    """Does what rows say on this worker's replicas, as one program if any, and compares what comes with what must."""
    parts = inputs(strategy, executor)
    x = per_replica(strategy, parts)
    acts = [row.act(strategy) for row in rows]

    def step(x: Any) -> list[Any]:
        return [act(x) for act in acts]

    results = jd.function(step)(x) if is_compiled(executor) else step(x)
    for row, result in zip(rows, results, strict=True):
        compare(strategy, result, row.expected(parts))


BUNDLE = 12
"""Number of rows that one program does together: most of the time goes to compiling, and one needs less of it."""


def bundles(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Names of rows, some at a time."""
    rest = list(names)
    return [tuple(rest[start : start + BUNDLE]) for start in range(0, len(rest), BUNDLE)]


def error_of(strategy: jd.Strategy, executor: str, names: Sequence[str]) -> str:
    """What is wrong with rows, in a line or some; nothing if all is well."""
    try:
        check_rows(strategy, executor, [ROWS[name] for name in names])
    except Exception as error:  # noqa: BLE001 (all rows are run, and each failure is told)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
    return ""


def compare(strategy: jd.Strategy, result: Any, expected: list[Any]) -> None:
    """Checks each local replica's component; what is the same for all may come back once."""
    expected = [expected[replica] for replica in strategy.extended.mesh.local_ids]
    parts = strategy.experimental_local_results(result)
    parts = parts * len(expected) if len(parts) == 1 else parts
    assert len(parts) == len(expected)
    for i, (part, wanted) in enumerate(zip(parts, expected, strict=True)):
        assert jax.tree.structure(part) == jax.tree.structure(wanted)
        for got, want in zip(jax.tree.leaves(part), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(
                np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=1e-6, atol=1e-6, err_msg=f"replica {i}"
            )
