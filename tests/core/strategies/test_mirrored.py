import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError, DeviceError
from replicas import components, fraction, ident, variable


@pytest.mark.parametrize("devices", [None, []])
def test_all_devices_by_default(devices: list[str] | None) -> None:
    strategy = jd.MirroredStrategy(devices)
    assert strategy.num_replicas_in_sync == 8
    assert strategy.extended.mesh.devices == tuple(jax.devices())


def test_replicas_are_in_the_order_of_the_list() -> None:
    strategy = jd.MirroredStrategy(["/cpu:5", jax.devices()[1], "CPU:3"])
    assert [name[-5:] for name in strategy.extended.worker_devices] == ["CPU:5", "CPU:1", "CPU:3"]
    result = strategy.run(ident)
    assert components(result) == [0, 1, 2]
    assert [x.devices().pop().id for x in result.values] == [5, 1, 3]
    inside = jd.function(lambda: strategy.run(lambda: fraction() * 2))()
    assert components(inside) == [0.0, 2.0, 4.0]
    assert [x.devices().pop().id for x in inside.values] == [5, 1, 3]
    assert strategy.gather(strategy.run(lambda: fraction()[None]), axis=0).tolist() == [0.0, 1.0, 2.0]
    v = variable(strategy, jnp.ones(2))
    assert [x.devices().pop().id for x in v.values] == [5, 1, 3]
    assert v.device[-5:] in ("CPU:5", "CPU:1")


@pytest.mark.parametrize("cls", [jd.MirroredStrategy, jd.FullyShardedStrategy, jd.CentralStorageStrategy])
def test_a_number_of_devices(cls: type[jd.Strategy]) -> None:
    strategy = cls(3)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert strategy.extended.mesh.devices == tuple(jax.devices()[:3])
    with pytest.raises(DeviceError, match=r"9 devices are asked for, and there are 8: .*HINT: ask for at most 8, or"):
        cls(9)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(ArgumentError, match=r"devices is 0\. HINT: pass a whole number of at least 1"):
        cls(0)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="devices is True"):
        cls(True)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_a_device_named_twice() -> None:
    with pytest.raises(DeviceError, match=r"named twice in \['CPU:0', '/cpu:0'\].*HINT: one replica a device"):
        jd.MirroredStrategy(["CPU:0", "/cpu:0"])


def test_a_single_string() -> None:
    with pytest.raises(ArgumentTypeError, match=r"must be a list, not the string 'CPU:0'.*HINT: \['CPU:0'\]"):
        jd.MirroredStrategy("CPU:0")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["GPU:0", "CPU:8", "what"])
def test_devices_that_do_not_exist(name: str) -> None:
    with pytest.raises(DeviceError, match="HINT"):
        jd.MirroredStrategy(["CPU:0", name])


def test_equal_strategies_share_values_but_not_scopes() -> None:
    one, two = jd.MirroredStrategy(["CPU:0", "CPU:1"]), jd.MirroredStrategy(["CPU:0", "CPU:1"])
    v, value = variable(one, 1.0), one.run(fraction)
    assert components(two.run(lambda x: x + v, (value,))) == [1.0, 2.0]
    assert one.extended.variable_created_in_scope(v)
    assert not two.extended.variable_created_in_scope(v)
