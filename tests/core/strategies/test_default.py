import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute.errors import ContextError
from replicas import here, ident, mirrored, one_device, variable


def test_it_is_there_from_the_start() -> None:
    default = jd.get_strategy()
    assert default.is_default
    assert default.num_replicas_in_sync == 1
    assert jd.get_strategy() is default
    assert not jd.has_strategy()


def test_it_chooses_no_devices() -> None:
    extended = jd.get_strategy().extended
    with pytest.raises(ContextError, match=r"DefaultStrategy.*chooses no devices.*HINT: make a strategy"):
        _ = extended.worker_devices
    assert extended.home is None
    assert extended.mesh.devices == (jax.devices()[0],)


def test_run_is_a_plain_call() -> None:
    default = jd.get_strategy()
    x = jnp.ones(2)
    assert default.run(lambda y: y, (x,)) is x
    assert default.run(ident) == 0
    assert type(default.run(ident)) is int
    assert default.run(lambda: here().all_reduce("SUM", 5)) == 5


def test_run_inside_run() -> None:
    default = jd.get_strategy()
    with pytest.raises(ContextError, match=r"inside a function that strategy.run executes"):
        default.run(lambda: default.run(ident))


def test_reduce_and_gather() -> None:
    default = jd.get_strategy()
    x = jnp.arange(4.0)
    assert float(default.reduce("SUM", x, axis=0)) == 6.0
    assert float(default.reduce("MEAN", x, axis=0)) == 1.5
    assert default.reduce("SUM", x, axis=None).tolist() == x.tolist()
    assert default.gather(x, axis=0) is x


def test_it_does_not_bind_values_to_a_device() -> None:
    v = jd.Variable(1.0)
    assert not v.read_value().committed
    assert v.device[-5:] == "CPU:0"
    with jax.default_device(jax.devices()[2]):
        assert jd.Variable(1.0).device[-5:] == "CPU:2"
        assert jd.function(lambda: jnp.ones(1))().devices() == {jax.devices()[2]}


def test_it_uses_every_strategys_variables() -> None:
    for v in (variable(mirrored(2), 1.0), variable(one_device(3), 1.0), jd.Variable(1.0)):
        v.assign_add(1.0)
        jd.function(v.assign_add)(1.0)
        assert v.numpy() == 3.0


def test_merge_call_is_a_plain_call() -> None:
    assert here().merge_call(lambda s, x, *, y: (s.is_default, x + y), (1,), {"y": 2}) == (True, 3)
