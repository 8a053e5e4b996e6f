import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute.errors import DeviceError
from replicas import here, ident, per_replica, variable


@pytest.mark.parametrize(
    ("name", "index"),
    [("/cpu:0", 0), ("CPU:3", 3), ("/device:CPU:1", 1), ("/job:localhost/replica:0/task:0/device:CPU:2", 2)],
)
def test_everything_is_on_the_device(name: str, index: int) -> None:
    strategy = jd.OneDeviceStrategy(name)
    v = variable(strategy, [1.0, 2.0])
    full = f"/job:localhost/replica:0/task:0/device:CPU:{index}"
    assert v.device == full
    assert strategy.extended.worker_devices == strategy.extended.parameter_devices == (full,)
    for result in (
        strategy.run(lambda: jnp.ones(2)),
        strategy.run(lambda x: x + v, (jnp.ones(2),)),
        jd.function(lambda: strategy.run(lambda x: x + v, (jnp.ones(2),)))(),
        strategy.place(jnp.ones(2)),
        v.assign_add([1.0, 1.0]).read_value(),
    ):
        assert result.devices() == {jax.devices()[index]}  # pyright: ignore[reportAttributeAccessIssue]


def test_a_jax_device() -> None:
    strategy = jd.OneDeviceStrategy(jax.devices()[4])
    assert strategy.extended.worker_devices[0][-5:] == "CPU:4"


@pytest.mark.parametrize("name", ["GPU:0", "CPU:99", "nonsense", ""])
def test_devices_that_do_not_exist(name: str) -> None:
    with pytest.raises(DeviceError, match="HINT"):
        jd.OneDeviceStrategy(name)


def test_results_are_plain() -> None:
    strategy = jd.OneDeviceStrategy("CPU:1")
    marker = object()
    assert strategy.run(lambda: (marker, 3, "a")) == (marker, 3, "a")
    identity = strategy.run(ident)
    assert (int(identity), identity.dtype) == (0, jnp.int32)
    assert not isinstance(strategy.run(lambda: here().all_reduce("SUM", jnp.ones(1))), jd.DistributedValues)


def test_distributed_values_of_one() -> None:
    strategy = jd.OneDeviceStrategy("CPU:1")
    value = per_replica(strategy, [jnp.ones(2)])
    assert isinstance(value, jd.PerReplica)
    assert value.values[0].devices() == {jax.devices()[1]}
    assert strategy.run(lambda x: x * 2, (value,)).tolist() == [2.0, 2.0]
    assert float(strategy.reduce("SUM", value, axis=0)) == 2.0
    assert strategy.gather(value, axis=0).tolist() == [1.0, 1.0]


def test_it_has_no_other_replicas() -> None:
    strategy = jd.OneDeviceStrategy("CPU:1")
    v = variable(strategy, 1.0)
    strategy.run(lambda: (v.assign_add(2.0), None)[1])
    assert v.numpy() == 3.0
    assert strategy.run(lambda: here().merge_call(lambda s, x: s.reduce("SUM", x, axis=None), (4.0,))) == 4.0
