import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.policies.plain import PlainPolicy
from replicas import components, each_executor, execute, fraction, mirrored, one_device, variable


@each_executor
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_every_replicas_write_reaches_the_one_copy(executor: str, replicas: int) -> None:
    v = jd.Variable([1.0, 1.0])
    execute(executor, mirrored(replicas), lambda: (v.assign_add(jnp.ones(2) * (fraction() + 1)), None)[1])
    assert components(v) == [[1 + replicas * (replicas + 1) / 2] * 2]
    execute(executor, mirrored(replicas), lambda: (v.assign_sub(jnp.ones(2)), None)[1])
    execute(executor, mirrored(replicas), lambda: (v.assign(jnp.ones(2) * fraction()), None)[1])
    assert components(v) == [[replicas - 1.0] * 2]


@pytest.mark.quick_cases(5, whole=True)
@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16"])
@each_executor
def test_the_last_replicas_assignment_stays(executor: str, dtype: str) -> None:
    v = jd.Variable(jnp.zeros(2, dtype))
    execute(executor, mirrored(2), lambda: (v.assign(jnp.ones(2, dtype) * fraction().astype(dtype)), None)[1])
    assert v.dtype == dtype
    assert components(v) == [jnp.ones(2, dtype).tolist()]


def test_it_serves_programs_on_different_devices_in_turn() -> None:
    shared = jd.Variable(1.0)
    expected = 1.0
    placed = [variable(one_device(1), 1.0), variable(mirrored(2), 1.0), variable(one_device(3), 1.0), jd.Variable(1.0)]
    for _ in range(2):
        for v in placed:

            @jd.function
            def step(v: jd.Variable) -> None:
                shared.assign_add(v)

            step(v)
            expected += 1
            assert shared.numpy() == expected
            assert shared.assign_add(1.0).numpy() == expected + 1
            expected += 1
    mirrored(3).run(lambda: (shared.assign_add(1.0), None)[1])
    assert shared.numpy() == expected + 3


def test_an_eager_write_leaves_it_where_it_is() -> None:
    v = jd.Variable(1.0)
    v.assign(jax.device_put(jnp.float32(2), jax.devices()[3]))
    assert v.device[-5:] == "CPU:0"
    assert not v.read_value().committed
    w = variable(one_device(2), 1.0)
    w.assign(v)
    assert w.device[-5:] == "CPU:2"


def test_where_it_is_made() -> None:
    assert variable(one_device(2), 1.0).device[-5:] == "CPU:2"
    assert variable(mirrored(1), 1.0).device[-5:] == "CPU:0"
    assert isinstance(variable(mirrored(1), 1.0).policy, PlainPolicy)
    assert not jd.Variable(1.0).read_value().committed
