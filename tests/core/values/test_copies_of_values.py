"""`copy.deepcopy`, `copy.copy` and pickles of variables and distributed values; what they are instances of."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportAttributeAccessIssue=false

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import (
    components,
    each_strategy,
    execute,
    fraction,
    mirrored,
    per_replica,
    variable,
)


@each_strategy
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy])
def test_a_copy_is_a_variable_of_its_own(make: Callable[[], jd.Strategy], copied: Callable[[Any], Any]) -> None:
    strategy = make()
    v = variable(strategy, [1.0, 2.0], name="v", trainable=False, aggregation="SUM")
    other = copied(v)
    assert type(other) is type(v)
    assert (other.name, other.trainable, other.aggregation) == (v.name, v.trainable, v.aggregation)
    assert other.distribute_strategy is v.distribute_strategy
    assert other.stored.sharding == v.stored.sharding
    step = jd.function(lambda: v.assign_add([10.0, 10.0]))
    step()
    step()  # donates the array of `v`
    np.testing.assert_array_equal(other, [1.0, 2.0])
    other.assign([5.0, 6.0])
    np.testing.assert_array_equal(v, [21.0, 22.0])
    execute("compiled", strategy, lambda: other.assign_add(jnp.ones(2)))
    assert float(other[0]) == 5.0 + strategy.num_replicas_in_sync


def test_a_copy_of_a_model_keeps_what_is_shared_shared() -> None:
    strategy = mirrored(2)
    w = variable(strategy, 1.0)
    model: dict[str, Any] = {"w": w, "again": [w], "strategy": strategy}
    other = copy.deepcopy(model)
    assert other["w"] is other["again"][0]
    assert other["w"] is not w
    assert other["strategy"] is strategy


def test_a_copy_of_an_on_read_variable_has_all_components() -> None:
    strategy = mirrored(2)
    v = variable(strategy, 0.0, synchronization="ON_READ", aggregation="SUM")
    strategy.run(lambda: v.assign(fraction() + 1))
    assert components(copy.deepcopy(v)) == [1.0, 2.0]
    assert float(pickle.loads(pickle.dumps(v))) == 3.0
    lone = variable(strategy, 0.0, synchronization="ON_READ")
    with pytest.raises(jd.errors.VariableError, match="HINT"):
        pickle.dumps(lone)


@each_strategy
@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_a_pickled_variable_is_made_again_where_it_is_loaded(make: Callable[[], jd.Strategy], pickler: Any) -> None:
    v = variable(make(), [1.0, 2.0], name="v", trainable=False, aggregation="MEAN")
    pickled = pickler.dumps(v)
    v.assign([0.0, 0.0])
    for strategy in (make(), mirrored(2), jd.get_strategy()):
        with strategy.scope():
            other = pickler.loads(pickled)
        assert other.distribute_strategy is strategy
        assert (other.name, other.trainable, other.aggregation.name) == ("v:0", False, "MEAN")
        np.testing.assert_array_equal(other, [1.0, 2.0])
        other.assign_add([1.0, 1.0])


def test_variables_are_not_copied_in_compiled_functions() -> None:
    v = jd.Variable(1.0)
    with pytest.raises(jd.errors.VariableError, match="HINT"):
        jd.function(lambda: float(copy.deepcopy(v)))()
    with pytest.raises(jd.errors.VariableError, match="HINT"):
        mirrored(2).run(lambda: copy.deepcopy(v))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_distributed_values(copied: Callable[[Any], Any]) -> None:
    strategy = mirrored(2)
    values = [
        strategy.place(np.array([1.0, 2.0], np.float32)),
        strategy.place(jnp.bfloat16(3)),
        per_replica(strategy, [np.array([1, 2]), np.array([3, 4])]),
        per_replica(strategy, [np.float32(1), np.float32(2)]),
        per_replica(strategy, [np.ones(2), np.ones(1)]),
        per_replica(strategy, ["a", None]),
    ]
    for value in values:
        other = copied(value)
        assert type(other) is type(value)
        assert other is not value
        assert [np.asarray(part).tolist() for part in other.values] == [np.asarray(p).tolist() for p in value.values]
        if not isinstance(value.data, tuple):
            assert other.data.sharding == value.data.sharding
            assert other.data is not value.data
            assert other.mesh == value.mesh


def test_a_pickle_from_other_devices_is_refused() -> None:
    value = mirrored(2).place(jnp.ones(2))
    pickled = pickle.dumps(value).replace(b"cpu", b"tpu")
    with pytest.raises((jd.errors.DeviceError, RuntimeError)):
        pickle.loads(pickled)


@each_strategy
def test_variables_are_distributed_values(make: Callable[[], jd.Strategy]) -> None:
    strategy = make()
    v = variable(strategy, 1.0)
    assert isinstance(v, jd.DistributedValues)
    assert isinstance(strategy.place(1.0), jd.DistributedValues) is (strategy.num_replicas_in_sync > 1)
    assert isinstance(v, jax.Array) is False
    result = strategy.run(lambda v, x: v + x["v"], (v, {"v": v}))
    assert all(part == 2.0 for part in components(result))
    assert float(strategy.reduce("MEAN", v, None)) == 1.0
    assert strategy.experimental_local_results(v)[0] == 1.0
