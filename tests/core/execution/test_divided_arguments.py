"""Arrays that another library has divided over devices: one replica takes the whole, several are not guessed at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxtribute as jd
from grouped_programs import grouped
from jaxtribute.errors import ArgumentError
from replicas import mirrored, one_device

X = np.arange(8, dtype=np.float32).reshape(4, 2)


def laid_out(*spec: Any, shape: tuple[int, ...] = (2,), names: tuple[str, ...] = ("data",)) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)
    return jax.device_put(X, NamedSharding(mesh, PartitionSpec(*spec)))


def totals(strategy: jd.Strategy, compiled: bool, argument: Any) -> list[float]:
    def run(argument: Any) -> Any:
        return strategy.run(lambda nest: jnp.sum(nest["x"]), ({"x": argument},))

    result = (jd.function(run) if compiled else run)(argument)
    return [float(each) for each in strategy.experimental_local_results(result)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [jd.MirroredStrategy, jd.FullyShardedStrategy, jd.CentralStorageStrategy])
@pytest.mark.parametrize("spec", [("data",), (None, "data")])
def test_parts_of_an_array_are_no_argument_of_several_replicas(kind: Any, spec: Any, compiled: bool) -> None:
    strategy = kind(["CPU:0", "CPU:1"])
    with pytest.raises(ArgumentError, match=r"shape \(4, 2\) lies in parts on 2 devices.*HINT"):
        totals(strategy, compiled, laid_out(*spec))
    for whole in (laid_out(), np.asarray(laid_out(*spec)), jax.device_put(X, jax.devices()[3]), strategy.place(X)):
        assert totals(strategy, compiled, whole) == [28, 28]


@pytest.mark.parametrize("compiled", [False, True])
def test_one_replica_takes_the_whole(compiled: bool) -> None:
    for strategy in (one_device(0), mirrored(1), jd.get_strategy()):
        assert totals(strategy, compiled, laid_out("data")) == [28]


@pytest.mark.parametrize("compiled", [False, True])
def test_an_array_that_is_whole_on_each_replica_may_be_divided_within_it(compiled: bool) -> None:
    strategy = grouped(2, 2)
    whole = laid_out(None, "model", shape=(2, 2), names=("data", "model"))
    assert totals(strategy, compiled, whole) == [28, 28]
    with pytest.raises(ArgumentError, match="in parts on 4 devices"):
        totals(strategy, compiled, laid_out("data", "model", shape=(2, 2), names=("data", "model")))
    with pytest.raises(ArgumentError, match="in parts on 8 devices"):  # of which four are the strategy's
        totals(strategy, compiled, laid_out(None, "model", shape=(4, 2), names=("data", "model")))


@pytest.mark.parametrize("calls", [1, 2, 5])
@pytest.mark.parametrize("writes", [False, True])
def test_a_later_call_is_asked_too(calls: int, writes: bool) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        total = jd.Variable(jnp.zeros(()), aggregation="mean")

    @jd.function
    def step(rows: Any, x: Any) -> Any:
        def replica(rows: Any, x: Any) -> Any:
            if writes:
                total.assign_add(jnp.sum(x))
            return jnp.sum(x) + rows

        return strategy.run(replica, (rows, x))

    for _ in range(calls):
        step(1.0, laid_out())
    with pytest.raises(ArgumentError, match="in parts on 2 devices"):
        step(1.0, laid_out("data"))
    assert [float(each) for each in strategy.experimental_local_results(step(1.0, laid_out()))] == [29, 29]
    assert float(total) == (28 * (calls + 1) if writes else 0)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_the_library_has_divided_is_whole(compiled: bool) -> None:
    """XLA lays some results in slices of its own accord, such as a gradient around `strategy.run`."""
    strategy = jd.FullyShardedStrategy(["CPU:0", "CPU:1"])
    result = jax.device_put(X, strategy.extended.mesh.split)
    assert totals(strategy, compiled, result) == [28, 28]
