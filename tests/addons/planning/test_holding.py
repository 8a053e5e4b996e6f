"""What variables and slots take of a device is what plans count, for every setting that changes it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.planning.holding import Held, held_on, holdings
from jaxtribute.planning import cost_of

LARGE = (1024, 513)
SHAPES = {"large": LARGE, "odd": (37, 13), "few": (3,), "one": (), "rows": (96, 8)}
COLUMNS = jd.LayoutMap({"large": ("model", None), "rows": (None, "model"), "frozen": ("model",)})


def adam(variables: Sequence[jd.Variable], **options: Any) -> list[jd.Variable]:
    return [*jd.Optimizer(optax.adam(0.1), variables, **options).variables]


def factored(variables: Sequence[jd.Variable], **options: Any) -> list[jd.Variable]:
    return [*jd.Optimizer(optax.adafactor(0.1, min_dim_size_to_factor=8), variables, **options).variables]


class Setting(NamedTuple):
    """A way to keep a model on `replicas` replicas of `each` devices."""

    strategy: Callable[[int], jd.Strategy]
    each: int = 1
    optimizer: Callable[..., list[jd.Variable]] = adam
    options: Mapping[str, Any] = MappingProxyType({})


def mirrored(**options: Any) -> Callable[[int], jd.Strategy]:
    each = int(np.prod([*options.get("replica_shape", {"model": options.get("devices_per_replica", 1)}).values()]))
    return lambda replicas: jd.MirroredStrategy(replicas * each, **options)


def sharded(**options: Any) -> Callable[[int], jd.Strategy]:
    each = int(np.prod([*options.get("replica_shape", {"model": options.get("devices_per_replica", 1)}).values()]))
    return lambda replicas: jd.FullyShardedStrategy(replicas * each, **options)


SETTINGS = {
    "mirrored": Setting(mirrored()),
    "update whole": Setting(mirrored(), options={"shard_update": False}),
    "update in slices": Setting(mirrored(), options={"shard_update": True}),
    "slots of other shapes": Setting(mirrored(), optimizer=factored),
    "slots of other shapes in slices": Setting(mirrored(), optimizer=factored, options={"shard_update": True}),
    "sums": Setting(mirrored(), options={"accumulate_steps": 2}),
    "groups": Setting(mirrored(devices_per_replica=2), 2),
    "groups, in slices": Setting(mirrored(devices_per_replica=2), 2, options={"shard_update": True}),
    "layout": Setting(mirrored(devices_per_replica=2, layout=COLUMNS), 2),
    "layout, in slices": Setting(
        mirrored(devices_per_replica=2, layout=COLUMNS), 2, options={"shard_update": True, "accumulate_steps": 2}
    ),
    "two axes": Setting(mirrored(replica_shape={"model": 2, "sequence": 2}, layout=COLUMNS), 4),
    "automatic": Setting(mirrored(devices_per_replica=2, layout="auto"), 2),
    "sharded": Setting(sharded()),
    "sharded, all": Setting(sharded(min_bytes=0)),
    "sharded, large": Setting(sharded(min_bytes=1 << 20)),
    "sharded, whole update": Setting(sharded(min_bytes=1 << 20), options={"shard_update": False}),
    "sharded, sums": Setting(sharded(), options={"accumulate_steps": 3}),
    "sharded, slots of other shapes": Setting(sharded(min_bytes=0), optimizer=factored),
    "sharded, groups": Setting(sharded(min_bytes=0, devices_per_replica=2), 2),
    "sharded, layout": Setting(sharded(min_bytes=0, devices_per_replica=2, layout=COLUMNS), 2),
    "sharded, two axes": Setting(sharded(min_bytes=0, replica_shape={"model": 2, "sequence": 2}, layout=COLUMNS), 4),
}


def state_of(setting: Setting, replicas: int) -> list[jd.Variable]:
    """Variables, slots and sums of a model."""
    with setting.strategy(replicas).scope():
        variables = [jd.Variable(np.zeros(shape, np.float32), name=name) for name, shape in SHAPES.items()]
        frozen = jd.Variable(np.zeros(LARGE[:1], np.float16), trainable=False, name="frozen")
        metric = jd.Variable(0.0, synchronization="ON_READ", aggregation="SUM", name="metric")
        return [*variables, frozen, metric, *setting.optimizer(variables, **setting.options)]


def on_a_device(state: Sequence[jd.Variable]) -> int:
    """Bytes on the fullest device."""
    held: dict[Any, int] = {}
    for variable in state:
        for shard in variable.stored.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values())


@pytest.mark.quick_cases(8, whole=True)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_device_holds_what_was_told_of_it(name: str) -> None:
    setting = SETTINGS[name]
    numbers = [count for count in (1, 2, 3, 4, 8) if count * setting.each <= len(jax.devices())]
    states = {count: state_of(setting, count) for count in numbers}
    real = {count: on_a_device(state) for count, state in states.items()}
    # Whatever number the script was looked at on.
    for state in states.values():
        saved = tuple(Held.loaded(json.loads(json.dumps(asdict(one)))) for one in holdings(state))
        assert saved == holdings(state)
        assert {count: held_on(saved, count) for count in numbers} == real


def test_tables() -> None:
    def state(replicas: int) -> list[jd.Variable]:
        with jd.MirroredStrategy(replicas).scope():
            table = jd.nn.ShardedTable(1003, 7, name="table")
            return [table, *adam([table])]

    numbers = (2, 3, 8)
    real = {count: on_a_device(state(count)) for count in numbers}
    for seen in numbers:
        assert {count: held_on(holdings(state(seen)), count) for count in numbers} == real


@pytest.mark.parametrize("strategy", [lambda: jd.OneDeviceStrategy("CPU:0"), jd.get_strategy])
def test_one_device_is_planned_on_more_as_mirrored(strategy: Callable[[], jd.Strategy]) -> None:
    for options in ({}, {"shard_update": False}):
        alone = state_of(Setting(lambda _: strategy(), options=options), 1)
        for count in (1, 2, 4, 8):
            wanted = on_a_device(state_of(Setting(mirrored(), options=options), count))
            assert held_on(holdings(alone), count) == wanted


def test_what_others_keep_is_as_it_was_seen() -> None:
    """A policy of somebody's own may do on other numbers what it likes."""
    with jd.CentralStorageStrategy(["CPU:1", "CPU:2"], parameter_device="CPU:0").scope():
        w = jd.Variable(np.zeros((4, 4), np.float32))
    assert [held_on(holdings([w]), count) for count in (1, 2, 8)] == [64, 64, 64]


@pytest.mark.parametrize("shard_update", [False, True, "auto"])
def test_the_memory_of_a_step_follows_the_setting(shard_update: Any) -> None:
    def cost(replicas: int) -> Any:
        strategy = jd.MirroredStrategy(replicas)
        with strategy.scope():
            w = jd.Variable(np.zeros((16, 1 << 15), np.float32), name="w")
            frozen = jd.Variable(np.ones(1 << 15, np.float32), trainable=False, name="frozen")
            optimizer = jd.Optimizer(optax.adam(0.1), [w], shard_update=shard_update)

        def update(x: jax.Array) -> None:
            def loss() -> jax.Array:
                return jnp.sum((x @ w + frozen.read_value()[None]) ** 2)

            _, gradients = jd.value_and_grad(loss, [w])()
            optimizer.apply_gradients(gradients)

        step = jd.function(lambda batch: strategy.run(update, (batch,)))
        state = [w, frozen, *optimizer.variables]
        batch = next(iter(strategy.experimental_distribute_dataset([np.ones((8, 16), np.float32)])))
        return cost_of(step, batch), on_a_device(state)

    seen, real = cost(2)
    assert held_on(seen.state, 2) == real
    for count in (4, 8):
        there, wanted = cost(count)
        assert held_on(seen.state, count) == held_on(there.state, count) == wanted
        assert seen.memory_on(count, 4) - seen.memory_on(2, 4) == wanted - real
