"""Fully sharded training: the losses of mirrored training, in a fraction of its memory."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import ArgumentError, ArgumentTypeError, DeviceError, StrategyMixError
from replicas import mirrored, variable

DEVICES = [f"CPU:{i}" for i in range(4)]
SHARDED = jd.FullyShardedStrategy(DEVICES, min_bytes=0)
SHAPES = [(6, 9), (9,), (9, 3)]
TRANSFORMS = {
    "clipped": optax.chain(optax.clip_by_global_norm(0.05), optax.adamw(1e-2)),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=3),
    "flattened": optax.flatten(optax.trace(0.9)),
}


def build(strategy: jd.Strategy, transform: Any, executor: str = "compiled", **options: Any) -> Any:
    """A step, its variables and its optimizer; the same numbers under every strategy."""
    rng = np.random.default_rng(0)
    with strategy.scope():
        w, b, u = (
            jd.Variable(rng.normal(size=shape).astype(np.float32) / 3, name=n)
            for shape, n in zip(SHAPES, "wbu", strict=True)
        )
        optimizer = jd.Optimizer(transform, [w, b, u], **options)

    def replica_step(x: Any) -> Any:
        def loss() -> Any:
            hidden = jnp.tanh(x @ w + b.read_value()[None])
            return jd.nn.compute_average_loss(((hidden @ u) ** 2).mean(-1), global_batch_size=8)

        value, grads = jd.value_and_grad(loss, [w, b, u])()
        optimizer.apply_gradients(grads)
        return value

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (x,)), axis=None)

    return (jd.function(step) if executor == "compiled" else step), [w, b, u], optimizer


def train(
    strategy: jd.Strategy, transform: Any, executor: str = "compiled", sizes: Any = (8, 8), **options: Any
) -> Any:
    step, variables, _ = build(strategy, transform, executor, **options)
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=(size, 6)).astype(np.float32) for size in sizes]
    losses = [float(step(x)) for x in strategy.experimental_distribute_dataset(batches)]
    return losses, [v.numpy() for v in variables]


def check_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_losses_are_those_of_mirrored_training(name: str) -> None:
    check_same(train(SHARDED, TRANSFORMS[name]), train(mirrored(4), TRANSFORMS[name]))


@pytest.fixture
def in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that keep arrays in tiles, and a first matrix whose columns are cut there, as its rows cannot be."""
    monkeypatch.setattr(ReplicaMesh, "in_tiles", True)
    monkeypatch.setitem(globals(), "SHAPES", [(6, 8), (8,), (8, 3)])


@pytest.mark.slow
@pytest.mark.usefixtures("in_tiles")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_pieces_of_whole_tiles_train_the_same(name: str, tmp_path: Path) -> None:
    expected = train(mirrored(1), TRANSFORMS[name], sizes=(8, 3, 8))
    check_same(train(SHARDED, TRANSFORMS[name], sizes=(8, 3, 8)), expected)
    check_same(train(SHARDED, TRANSFORMS[name], "lockstep", sizes=(8, 3, 8)), expected)
    step, variables, optimizer = build(SHARDED, TRANSFORMS[name])
    assert [v.policy.cut and v.policy.cut.axis for v in variables] == [1, None, 0]
    (x,) = SHARDED.experimental_distribute_dataset([np.ones((8, 6), np.float32)])
    step(x)
    path = jd.Checkpoint(variables=variables, optimizer=optimizer).save(tmp_path / "ckpt", block=True)
    for tiled, strategy in ((True, jd.FullyShardedStrategy(DEVICES[:2], min_bytes=0)), (False, SHARDED)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ReplicaMesh, "in_tiles", tiled)
            _, others, slots = build(strategy, TRANSFORMS[name])
            jd.Checkpoint(variables=others, optimizer=slots).restore(path).assert_consumed()
        for a, b in zip((*others, *slots.variables), (*variables, *optimizer.variables), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.slow
@pytest.mark.usefixtures("in_tiles")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_slices_of_updates_in_whole_tiles_train_the_same(name: str) -> None:
    expected = train(mirrored(1), TRANSFORMS[name])
    check_same(train(mirrored(4), TRANSFORMS[name], shard_update=True), expected)


@pytest.mark.slow
def test_lockstep_does_the_same() -> None:
    two = jd.FullyShardedStrategy(DEVICES[:2], min_bytes=0)
    check_same(train(two, optax.sgd(0.1), "lockstep", (3, 8)), train(mirrored(1), optax.sgd(0.1), sizes=(3, 8)))


@pytest.mark.slow
@settings(max_examples=1)
@given(size=st.integers(1, 3), replicas=st.integers(3, 4))
@example(size=3, replicas=4)  # the last replica has nothing
def test_last_batches_of_any_size_on_any_number_of_replicas(size: int, replicas: int) -> None:
    strategy = jd.FullyShardedStrategy(DEVICES[:replicas], min_bytes=64)
    check_same(train(strategy, optax.adam(1e-2), sizes=(size,)), train(mirrored(1), optax.adam(1e-2), sizes=(size,)))


@pytest.mark.parametrize("options", [{}, {"min_bytes": 64}])
def test_a_variable_is_cut_from_the_smallest_size_on(options: dict[str, Any]) -> None:
    bytes_ = options.get("min_bytes", 16 * 1024)  # by the guide
    with jd.FullyShardedStrategy(DEVICES[:2], **options).scope():
        for size, parts in ((bytes_, 2), (bytes_ - 1, 1)):
            v = jd.Variable(np.zeros(size, np.int8))
            assert v.stored.size == v.stored.addressable_shards[0].data.size * parts


def held(variables: Any) -> dict[jax.Device, int]:
    """Bytes of the variables on each device."""
    found: dict[jax.Device, int] = {}
    for v in variables:
        for shard in v.stored.addressable_shards:
            found[shard.device] = found.get(shard.device, 0) + shard.data.nbytes
    return found


def test_parameters_and_slots_take_a_quarter_of_the_memory() -> None:
    totals: list[int] = []
    for strategy in (mirrored(4), jd.FullyShardedStrategy(DEVICES)):
        with strategy.scope():
            variables = [jd.Variable(np.zeros((257, 128), np.float32)), jd.Variable(np.zeros(128, np.float32))]
            optimizer = jd.Optimizer(optax.adam(1e-2), variables, shard_update=False)
        before = held([*variables, *optimizer.variables])
        assert set(before) == set(jax.devices()[:4])

        @jd.function
        def step(strategy: Any = strategy, optimizer: Any = optimizer, variables: Any = variables) -> Any:
            strategy.run(lambda: optimizer.apply_gradients([jnp.ones((257, 128)), jnp.ones(128)]))

        step()
        assert held([*variables, *optimizer.variables]) == before
        totals.append(max(before.values()))
    assert totals[1] <= 0.27 * totals[0]


@pytest.mark.slow
def test_gradients_given_across_replicas_and_in_a_merge_call() -> None:
    results: list[Any] = []
    for strategy in (mirrored(4), SHARDED):
        _, variables, optimizer = build(strategy, optax.adam(1e-2))
        grads = [np.ones(shape, np.float32) for shape in SHAPES]
        optimizer.apply_gradients(grads)
        jd.function(lambda optimizer=optimizer, grads=grads: optimizer.apply_gradients(grads))()

        def merged(_: jd.Strategy, optimizer: Any = optimizer, grads: Any = grads) -> None:
            optimizer.apply_gradients(grads)

        def fn(merged: Any = merged) -> None:
            jd.get_replica_context().merge_call(merged)  # pyright: ignore[reportOptionalMemberAccess]

        jd.function(lambda s=strategy, fn=fn: s.run(fn))()
        results.append(([1.0], [v.numpy() for v in (*variables, *optimizer.variables)]))
    check_same(*results)


@pytest.mark.slow
def test_a_checkpoint_restores_on_another_number_of_devices_and_under_mirrored(tmp_path: Path) -> None:
    step, variables, optimizer = build(SHARDED, optax.adam(1e-2), accumulate_steps=2)
    (x,) = SHARDED.experimental_distribute_dataset([np.ones((8, 6), np.float32)])
    for _ in range(3):
        step(x)
    expected = [v.numpy() for v in (*variables, *optimizer.variables)]
    path = jd.Checkpoint(variables=variables, optimizer=optimizer).save(tmp_path / "ckpt", block=True)
    for strategy in (jd.FullyShardedStrategy(DEVICES[:3], min_bytes=0), mirrored(2)):
        _, others, slots = build(strategy, optax.adam(1e-2), accumulate_steps=2)
        jd.Checkpoint(variables=others, optimizer=slots).restore(path).assert_consumed()
        for v, value in zip((*others, *slots.variables), expected, strict=True):
            np.testing.assert_allclose(v.numpy(), value, rtol=1e-6)


def test_on_one_device_it_costs_nothing() -> None:
    strategy = jd.FullyShardedStrategy(["CPU:1"], min_bytes=0)
    v = variable(strategy, np.arange(4.0))
    assert v.stored.shape == (4,)
    check_same(train(strategy, optax.adam(1e-2)), train(mirrored(1), optax.adam(1e-2)))


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"min_bytes is -1\. HINT"):
        jd.FullyShardedStrategy(DEVICES, min_bytes=-1)
    with pytest.raises(DeviceError, match="named twice"):
        jd.FullyShardedStrategy(["CPU:0", "CPU:0"])
    with pytest.raises(ArgumentTypeError, match="must be a list"):
        jd.FullyShardedStrategy("CPU:0")  # pyright: ignore[reportArgumentType]
    with pytest.raises(StrategyMixError), SHARDED.scope():
        mirrored(2).run(lambda: 0)
    assert repr(SHARDED) == "<FullyShardedStrategy with 4 replica(s)>"


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("how", ["disable_jit", "a collective in a loop"])
def test_replicas_see_whole_values_where_nothing_is_compiled(how: str, replicas: int) -> None:
    strategy = jd.FullyShardedStrategy([f"CPU:{i}" for i in range(replicas)], min_bytes=0)
    value, scale = np.arange(24, dtype=np.float32).reshape(8, 3), float(replicas)
    with strategy.scope():
        weight = jd.Variable(value, aggregation="only_first_replica")

    def summed(value: Any) -> Any:
        context = jd.get_replica_context()
        assert context is not None
        return context.all_reduce("SUM", value)

    def replica(x: Any) -> None:
        def body(carry: Any) -> Any:
            return carry[0] + 1, summed(carry[1])

        total = x.sum()
        if how != "disable_jit":
            total = jax.lax.while_loop(lambda carry: carry[0] < 1, body, (0, total))[1] / scale
        (grad,) = jd.grad(lambda: (weight.read_value() ** 2).sum() * total, [weight])()
        assert grad.shape == weight.read_value().shape == (8, 3)
        weight.assign(weight - summed(grad) * 0.1)

    def step(rows: Any) -> None:
        strategy.run(replica, (rows,))

    (rows,) = strategy.experimental_distribute_dataset([np.ones(2 * replicas + 1, np.float32)])
    with jax.disable_jit(how == "disable_jit"):
        (step if how == "disable_jit" else jd.function(step))(rows)
    np.testing.assert_allclose(weight.numpy(), value * (1 - 0.2 * (2 * replicas + 1)), rtol=1e-5)
