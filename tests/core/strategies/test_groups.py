"""Replicas of several devices: the losses of one device, in a part of its memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import jaxtribute as jd
import trained_together
from grouped_programs import batches, build, by_hand, devices, grouped, train
from jaxtribute.errors import ArgumentError, ArgumentTypeError, DeviceError, ShapeError, TraceError
from replicas import here
from samples import ALL_CASES, chosen

SHAPES = [(1, 2), (2, 2), (1, 4), (2, 4), (4, 2)]
"""Replicas, and devices of each."""
KINDS = (jd.MirroredStrategy, jd.FullyShardedStrategy)


CASES = [
    *((*shape, kind, "compiled") for shape, kind in chosen(SHAPES, KINDS)),
    (1, 4, jd.FullyShardedStrategy, "lockstep"),
]


@pytest.fixture(scope="module")
def alone() -> Any:
    """The losses of an MLP, a transformer and a conv net on one device."""
    return trained_together.by_hand()


@pytest.mark.slow
@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("replicas", "each", "kind", "executor"), CASES if ALL_CASES else CASES[1:2])
def test_fifty_losses_are_those_of_one_device(replicas: int, each: int, kind: Any, executor: str, alone: Any) -> None:
    options: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    strategy = kind(devices(replicas * each), devices_per_replica=each, layout=trained_together.LAYOUTS, **options)
    compiled = executor == "compiled"
    epochs = trained_together.EPOCHS if compiled else 1  # half a second a step in lockstep
    losses = trained_together.train(strategy, epochs, compiled=compiled)
    assert len(losses) >= (50 if compiled else 3)
    np.testing.assert_allclose(losses, alone[: len(losses)], rtol=1e-5, atol=1e-6)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("shape", "kind"), chosen(SHAPES, KINDS[::-1])[:: 1 if ALL_CASES else 3])
def test_lockstep_losses_are_those_of_one_device(shape: tuple[int, int], kind: Any) -> None:
    options: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    losses, _, _ = train(grouped(*shape, kind, **options), "lockstep", epochs=1)
    np.testing.assert_allclose(losses, by_hand(epochs=1), rtol=1e-5, atol=1e-6)


def spec(variable: Any) -> Any:
    return variable.stored.sharding.spec


def test_variables_and_slots_lie_in_parts() -> None:
    strategy = grouped(2, 4)
    assert strategy.num_replicas_in_sync == 2
    _, variables, optimizer = train(strategy, epochs=1)
    assert [spec(v) for v in variables] == [
        PartitionSpec(None, "model"), PartitionSpec("model"), PartitionSpec("model"), PartitionSpec()
    ]  # fmt: skip
    slots = {v.name.removesuffix(":0"): v for v in optimizer.variables}
    assert spec(slots["w1/mu"]) == spec(slots["w1/nu"]) == PartitionSpec(None, "model")


def held(variables: Any) -> int:
    """Bytes on the first device."""
    return sum(variable.stored.addressable_shards[0].data.nbytes for variable in variables)


@pytest.mark.parametrize("executor", ["compiled", "lockstep"])
@pytest.mark.parametrize(("replicas", "each"), [(1, 2), (2, 2), (2, 4)])
def test_memory_is_divided(replicas: int, each: int, executor: str) -> None:
    layouts = {"w": (None, "model")}
    for kind, parts in ((jd.MirroredStrategy, each), (jd.FullyShardedStrategy, each * replicas)):
        strategy: Any = kind(devices(replicas * each), devices_per_replica=each, layout=layouts)
        with strategy.scope():
            w = jd.Variable(np.ones((128, 64), np.float32), name="w")
            optimizer = jd.Optimizer(optax.adam(0.1), [w])
        whole = 3 * w.size * 4

        def step(optimizer: Any = optimizer, w: Any = w) -> None:
            optimizer.apply_gradients([jnp.ones((128, 64)) * w])

        def run(strategy: Any = strategy, step: Any = step) -> None:
            strategy.run(step)

        for _ in range(2):
            (jd.function(run) if executor == "compiled" else run)()
        assert held([w, *optimizer.variables]) <= whole / parts * 1.05


@pytest.mark.parametrize(
    "collective",
    [
        lambda x: jax.lax.psum(x, jd.REPLICA_AXIS),
        lambda x: jax.lax.pmax(x, jd.REPLICA_AXIS),
        jax.jit(lambda x: jax.lax.psum_scatter(x, jd.REPLICA_AXIS, tiled=True)),
        jax.grad(lambda x: jax.lax.all_gather(x, jd.REPLICA_AXIS).sum().astype(jnp.float32)),
    ],
)
def test_a_collective_of_ones_own_that_would_end_the_process_is_refused(collective: Any) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"], devices_per_replica=2)
    x = strategy.place(jnp.ones(4, jnp.bfloat16))
    with pytest.raises(TraceError, match=r"of bfloat16\[.*\] at .*test_groups.py.*ends the process.*HINT"):
        jd.function(lambda x: strategy.run(collective, (x,)))(x)


def test_a_file_named_after_bfloat16_is_not_refused() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"], devices_per_replica=2)
    own: dict[str, Any] = {"jax": jax, "axis": jd.REPLICA_AXIS}
    exec(compile("def fn(x):\n    return jax.lax.psum(x, axis)", "/models/bfloat16.py", "exec"), own)
    total = jd.function(lambda x: strategy.run(own["fn"], (x,)))(strategy.place(jnp.ones(4)))
    np.testing.assert_array_equal(strategy.experimental_local_results(total)[0], np.full(4, 2))


@pytest.mark.quick_cases(6, whole=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
def test_sums_of_every_kind_of_number(dtype: str, kind: Any) -> None:
    """XLA's compiler for CPUs ends the process at some of them, if they are left to it as they are."""
    options: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    strategy = kind(devices(4), devices_per_replica=2, layout={"w": (None, "model")}, **options)
    with strategy.scope():
        w = jd.Variable(np.zeros((4, 8), dtype), name="w")
        total = jd.Variable(jnp.zeros(4, dtype), aggregation="SUM")
        optimizer = jd.Optimizer(optax.sgd(1.0), [w])
    parts = strategy.experimental_distribute_values_from_function(
        lambda context: np.full(4, 1 + context.replica_id_in_sync_group, dtype)
    )

    def replica(part: Any) -> Any:
        total.assign_add(part)
        if dtype != "int8":  # gradients of integers there are none
            optimizer.apply_gradients([jnp.ones((4, 8), dtype) * part[0]])
        context = here()
        total_of_w = jnp.sum(w.read_value().astype(np.float32))
        return context.all_reduce("SUM", part), context.all_gather(part, axis=0), total_of_w

    def step() -> Any:
        return strategy.run(replica, (parts,))

    for number, run in enumerate((step, jd.function(step))):
        added, gathered, weights = run()
        assert float(strategy.reduce("MEAN", weights, axis=None)) == (0 if dtype == "int8" else -96 * (number + 1))
        for own, rows in zip(*map(strategy.experimental_local_results, (added, gathered)), strict=True):
            np.testing.assert_array_equal(np.asarray(own, np.float32), np.full(4, 3))
            np.testing.assert_array_equal(np.asarray(rows, np.float32), [1, 1, 1, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(np.asarray(total.numpy(), np.float32), np.full(4, 6))
    np.testing.assert_array_equal(np.asarray(w.numpy(), np.float32), np.full((4, 8), 0 if dtype == "int8" else -6))


def test_without_a_layout_fully_sharded_variables_lie_over_all_devices() -> None:
    strategy = jd.FullyShardedStrategy(devices(4), devices_per_replica=2, min_bytes=0)
    with strategy.scope():
        w = jd.Variable(np.arange(35, dtype=np.float32).reshape(5, 7), name="w")
    assert held([w]) == 9 * 4  # of 35 elements, padded to a multiple of four
    np.testing.assert_array_equal(w.numpy(), np.arange(35).reshape(5, 7))


def test_axes_that_a_layout_does_not_leave_are_cut_further_or_kept() -> None:
    strategy = jd.FullyShardedStrategy(
        devices(4), devices_per_replica=2, min_bytes=0, layout={"b": ("model",), "c": ("model",)}
    )
    with strategy.scope():
        b, c = jd.Variable(np.arange(8.0), name="b"), jd.Variable(np.arange(6.0), name="c")
    assert spec(b) == PartitionSpec(("replica", "model"))
    assert spec(c) == PartitionSpec("model")  # six elements cannot be cut into four parts
    np.testing.assert_array_equal(b.numpy(), np.arange(8.0))


AXES = st.sampled_from([None, "a", "b", ("a", "b")])


@st.composite
def laid_out(draw: Any) -> Any:
    """A shape with a layout over axes of 2 and 2 that fits it."""
    rank = draw(st.integers(1, 3))
    layout: list[Any] = []
    shape: list[int] = []
    left = {"a", "b"}
    for _ in range(rank):
        axis = draw(AXES)
        names = set() if axis is None else {axis} if isinstance(axis, str) else set(axis)
        if not names <= left:
            axis, names = None, set()
        left -= names
        layout.append(axis)
        shape.append(draw(st.integers(1, 4)) * 2 ** len(names))
    return tuple(shape), tuple(layout)


@settings(max_examples=12)
@given(case=laid_out(), kind=st.sampled_from([jd.MirroredStrategy, jd.FullyShardedStrategy]), compiled=st.booleans())
def test_any_layout_keeps_what_a_variable_is(case: Any, kind: Any, compiled: bool) -> None:
    shape, layout = case
    options: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    strategy = kind(devices(8), replica_shape={"a": 2, "b": 2}, **options)
    first = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with strategy.scope():
        v = jd.Variable(first, layout=layout, aggregation="SUM")

    def program() -> Any:
        mine = v * (here().replica_id_in_sync_group + np.int32(1)).astype(np.float32)
        v.assign_add(mine)
        return mine

    def step() -> Any:
        return strategy.reduce("SUM", strategy.run(program), axis=None)

    total = (jd.function(step) if compiled else step)()
    np.testing.assert_allclose(total, 3 * first, rtol=1e-6)
    np.testing.assert_allclose(v.numpy(), 4 * first, rtol=1e-6)
    v.assign(first)
    np.testing.assert_array_equal(v.numpy(), first)


@pytest.mark.parametrize("executor", ["compiled", "lockstep"])
def test_local_values_and_collectives(executor: str) -> None:
    strategy = grouped(2, 2)
    with strategy.scope():
        seen = jd.Variable(np.zeros((2, 4), np.float32), synchronization="ON_READ", aggregation="SUM",
                           layout=(None, "model"))  # fmt: skip

    def program() -> Any:
        context = here()
        number = context.replica_id_in_sync_group.astype(np.float32) + 1
        seen.assign_add(jnp.ones((2, 4)) * number)
        gathered = context.all_gather(jnp.ones((1, 2)) * number, 0)
        merged = context.merge_call(lambda strategy, x: strategy.reduce("SUM", x, None), (number,))
        return context.all_reduce("SUM", number), gathered, merged

    def step() -> Any:
        return strategy.run(program)

    total, gathered, merged = (jd.function(step) if executor == "compiled" else step)()
    assert float(total) == float(merged) == 3
    np.testing.assert_array_equal(gathered, [[1, 1], [2, 2]])
    assert spec(seen) == PartitionSpec("replica", None, "model")
    np.testing.assert_array_equal(seen.numpy(), np.full((2, 4), 3))


CAPTURING: dict[str, Any] = {
    "indexed": lambda x, v: x * 2 + x[0],
    "set": lambda x, v: x.at[1].set(x[1] * 3),
    "met": lambda x, v: jnp.sort(x) * v.read_value(),
    "differentiated": lambda x, v: jd.grad(lambda: jnp.sum(jax.jit(jnp.square)(x) * v), v)(),
}


@pytest.mark.quick_cases(5, whole=True)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CAPTURING)
def test_arrays_in_parts_from_around_the_function_are_right_or_refused(name: str, *, compiled: bool) -> None:
    strategy = grouped(2, 2)
    with strategy.scope():
        v = jd.Variable(np.arange(4, dtype=np.float32) + 3, layout=("model",))
    x, program = v.read_value(), CAPTURING[name]
    expected = 2 * program(jnp.asarray(np.asarray(x)), jd.Variable(v.numpy()))

    def total(*args: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda given=x: program(given, v), args), axis=None)

    step = jd.function(total) if compiled else total
    np.testing.assert_allclose(step(x), expected)
    try:
        np.testing.assert_allclose(step(), expected)
    except ValueError as error:  # JAX's own
        assert "HINT: pass arrays that lie elsewhere, or on the devices of all" in "".join(error.__notes__)  # noqa: PT017


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("options", [{"accumulate_steps": 2}, {"shard_update": True}])
@pytest.mark.parametrize("kind", [jd.MirroredStrategy, jd.FullyShardedStrategy])
def test_options_of_optimizers(kind: Any, options: Any) -> None:
    def losses(strategy: jd.Strategy) -> list[float]:
        step, _, _ = build(strategy, **options)
        return [float(step(x, y)) for x, y in strategy.experimental_distribute_dataset(batches())]

    sharded: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    expected = losses(jd.OneDeviceStrategy("CPU:0"))
    np.testing.assert_allclose(losses(grouped(2, 2, kind, **sharded)), expected, rtol=1e-5, atol=1e-6)


def test_checkpoints_restore_onto_any_mesh(tmp_path: Any) -> None:
    _, variables, optimizer = train(grouped(2, 4, jd.FullyShardedStrategy, min_bytes=0), epochs=1)
    path = jd.Checkpoint(model=variables, optimizer=optimizer).save(tmp_path / "saved", block=True)
    whole = [np.asarray(v.read_value()) for v in (*variables, *optimizer.variables)]
    meshes = [jd.OneDeviceStrategy("CPU:0"), jd.MirroredStrategy(devices(8)), grouped(4, 2), grouped(1, 2)]
    meshes.append(grouped(2, 2, jd.FullyShardedStrategy, min_bytes=0))
    for strategy in meshes:
        _, others, slots = build(strategy)
        places = [v.stored.sharding for v in others]
        jd.Checkpoint(model=others, optimizer=slots).restore(path)
        for variable, value in zip((*others, *slots.variables), whole, strict=True):
            np.testing.assert_array_equal(np.asarray(variable.read_value()), value)
        assert [v.stored.sharding for v in others] == places


def test_a_model_is_pickled_with_its_groups() -> None:
    import pickle

    strategy = grouped(2, 2)
    value = strategy.run(lambda: here().replica_id_in_sync_group)
    again = pickle.loads(pickle.dumps(value))
    assert again.mesh == strategy.extended.mesh
    assert [int(one) for one in again.values] == [0, 1]


def test_pictures_and_checks_know_groups() -> None:
    strategy = grouped(2, 2)
    _, variables, _ = build(strategy)
    text = str(strategy.visualize(variables))
    assert "2 replica(s) of 2 devices" in text
    html = strategy._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html.count("this process") == 4
    assert "0:8" in text
    jd.debug.check_replicas(variables)
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: np.full((2, 3), context.replica_id_in_sync_group, np.float32)
    )
    number = strategy.run(lambda: here().replica_id_in_sync_group)
    assert str(strategy.visualize([rows, number])).count("CPU:3") == 1


def test_a_replica_names_its_devices_and_can_be_the_one_that_adds_up() -> None:
    strategy = jd.MirroredStrategy(devices(4), jd.ReductionToOneDevice("CPU:3"), devices_per_replica=2)
    names: list[Any] = []

    def program() -> Any:
        names.append([name[-5:] for name in here().devices])
        return here().all_reduce("SUM", here().replica_id_in_sync_group + np.int32(1))

    assert int(strategy.run(program)) == 3
    assert names == [["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]]
    assert int(jd.function(strategy.run)(program)) == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"devices_per_replica": 3}, DeviceError, "4 devices cannot be divided into replicas of 3"),
        ({"devices_per_replica": 8}, DeviceError, "4 devices"),
        ({"devices_per_replica": 0}, ArgumentError, "devices_per_replica"),
        ({"devices_per_replica": 2, "replica_shape": {"a": 4}}, ArgumentError, "has 4"),
        ({"replica_shape": 2}, ArgumentTypeError, "replica_shape"),
        ({"devices_per_replica": 2, "layout": {"w": (None, "modle")}}, ArgumentError, "'w' names the axis 'modle'"),
        ({"replica_shape": {"replica": 2}}, ArgumentError, "'replica'"),
        ({"layout": [1]}, ArgumentTypeError, "layout is"),
    ],
)
def test_settings_that_make_no_sense(options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=f"{words}.*HINT"):
        jd.MirroredStrategy(devices(4), **options)


def test_a_layout_that_does_not_divide_names_the_variable() -> None:
    with grouped(1, 4).scope(), pytest.raises(ShapeError, match=r"of w1 splits.*10 elements into 4.*HINT"):
        jd.Variable(np.zeros((3, 10)), name="w1")


@pytest.mark.quick_cases(3, whole=True)
@pytest.mark.parametrize("transformation", ["lamb", "lars", "fromage"])
@pytest.mark.parametrize("devices_per_replica", [1, 2])
def test_norms_of_variables_are_the_same_on_all_replicas(transformation: str, devices_per_replica: int) -> None:
    # Within groups JAX moves constants to the mesh, by an operation that has to be known.
    make: Any = getattr(optax, transformation)
    strategy = jd.MirroredStrategy(
        [f"CPU:{number}" for number in range(4)],
        devices_per_replica=devices_per_replica,
        layout={"kernel": (None, "model")} if devices_per_replica > 1 else None,
    )
    params: Any = {"kernel": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4), "bias": np.ones(3, np.float32)}
    with strategy.scope():
        variables = {name: jd.Variable(value, name=name) for name, value in params.items()}
        optimizer = jd.Optimizer(make(0.1), variables)
    grads = {"kernel": np.full((2, 4), 0.5, np.float32), "bias": np.arange(3, dtype=np.float32)}
    share = jax.tree.map(lambda grad: grad / strategy.num_replicas_in_sync, grads)
    step = jd.function(lambda: strategy.run(lambda: optimizer.apply_gradients(share)))
    with jax.numpy_dtype_promotion("standard"):  # Optax
        state = make(0.1).init(params)
        for _ in range(2):
            step()
            updates, state = make(0.1).update(grads, state, params)
            params = optax.apply_updates(params, updates)
    for name, value in params.items():
        np.testing.assert_allclose(variables[name].numpy(), value, rtol=1e-5, atol=1e-6)
