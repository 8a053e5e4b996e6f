from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.values.policies.sliced import SlicedPolicy
from jaxtribute._src.core.values.slices import Cut
from replicas import components, execute, fraction, mirrored


def sliced(replicas: int, value: Any) -> jd.Variable:
    strategy = mirrored(replicas)
    with strategy.scope():
        policy = SlicedPolicy(strategy.extended.mesh, Cut(value.shape, replicas))
        return jd.Variable.with_policy(value, policy, name="slot", strategy=strategy)


@settings(max_examples=8)
@given(shape=st.lists(st.integers(1, 4), max_size=3).map(tuple), replicas=st.sampled_from([2, 3, 4]))
def test_it_reads_whole_what_it_stores_in_slices(shape: tuple[int, ...], replicas: int) -> None:
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    v = sliced(replicas, value)
    np.testing.assert_array_equal(v.read_value(), value)
    size = -(-value.size // replicas)
    flat = np.pad(value.ravel(), (0, size * replicas - value.size))
    assert components(v) == flat.reshape(replicas, size).tolist()
    assert v.policy.local_shape(v) == (size,)


def test_each_device_holds_its_slice_only() -> None:
    v = sliced(4, np.zeros((8, 2), np.float32))
    assert [shard.data.shape for shard in v.stored.addressable_shards] == [(4,)] * 4
    assert [shard.device for shard in v.stored.addressable_shards] == jax.devices()[:4]


@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
def test_a_replica_reads_and_writes_its_slice(executor: str) -> None:
    v = sliced(2, np.arange(3, dtype=np.float32))

    def fn() -> Any:
        v.assign_add(jnp.ones(2) * (fraction() + 1))
        return v.read_value()

    assert components(execute(executor, mirrored(2), fn)) == [[1.0, 2.0], [4.0, 2.0]]
    assert v.numpy().tolist() == [1.0, 2.0, 4.0]


def test_whole_writes() -> None:
    v = sliced(2, np.zeros((3, 1), np.float32))
    v.assign(np.arange(3, dtype=np.float32).reshape(3, 1))
    jd.function(lambda: v.assign_add(jnp.ones((3, 1))))()
    assert v.numpy().tolist() == [[1.0], [2.0], [3.0]]


def test_it_shares_nothing_with_its_initial_value() -> None:
    value = jnp.arange(4.0)
    v = sliced(2, value)
    v.stored.delete()
    assert value.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_it_belongs_to_the_library() -> None:
    v = sliced(2, np.zeros(3, np.float32))
    assert not v.trainable
    assert v.name == "slot:0"
    assert repr(v).startswith("SlicedVariable:{\n  0: <jd.Variable 'slot:0' shape=(3,)")
