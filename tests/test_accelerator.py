"""What holds on CPU devices holds on the default device, and on CPU devices beside it.

On a machine with an accelerator `make test-accelerator` runs these tests on it. Elsewhere the
default device is one of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from behaviours import EXECUTORS, ROWS, bundles, error_of, is_uneven
from jaxtribute._src.core.devices import device_name
from random_programs import Program, check, programs
from samples import ALL_CASES
from training_programs import Training, check_training, trainings

STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "one device": lambda: jd.OneDeviceStrategy(jax.devices()[0]),
    "mirrored": lambda: jd.MirroredStrategy(jax.devices()[:1]),
    "sharded": lambda: jd.FullyShardedStrategy(jax.devices()[:1], min_bytes=0),
    "central": lambda: jd.CentralStorageStrategy(jax.devices()[:1], "CPU:0"),
    "CPU beside it": lambda: jd.MirroredStrategy(["CPU:1", "CPU:2"]),
    "central, on CPU beside it": lambda: jd.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0"),
}


slowly = [HealthCheck.too_slow, HealthCheck.data_too_large]


@cache
def strategy_of(name: str) -> jd.Strategy:
    return STRATEGIES[name]()


@pytest.fixture(autouse=True)
def whole_products() -> Any:
    """Products of float32 as on a CPU: an accelerator multiplies fewer bits of them by default."""
    with jax.default_matmul_precision("highest"):
        yield


def rows_of(executor: str, name: str) -> list[str]:
    """The rows that mean something there: every sixth, with each executor others; on an accelerator all."""
    place = list(STRATEGIES).index(name) + EXECUTORS.index(executor)
    every = 1 if ALL_CASES or jax.default_backend() != "cpu" else 6
    rows = [row for number, row in enumerate(ROWS) if (number + place) % every == 0]
    one = strategy_of(name).num_replicas_in_sync == 1
    if is_uneven(executor) and one:
        return []
    central = name.startswith("central")
    return [row for row in rows if ROWS[row].takes(executor) and not (central and ROWS[row].kept_apart)]


@pytest.mark.quick_cases(8, whole=True)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_table_of_behaviours(name: str, executor: str) -> None:
    told: list[str] = []
    for rows in bundles(rows_of(executor, name)):
        if error_of(strategy_of(name), executor, rows):
            told += [f"{row}: {error}" for row in rows if (error := error_of(strategy_of(name), executor, [row]))]
    assert not told, "\n".join(told)


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=slowly)
@given(programs(), st.sampled_from(list(STRATEGIES)))
def test_random_programs(program: Program, name: str) -> None:
    check(program, strategy_of(name))


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=slowly)
@given(trainings(), st.sampled_from(list(STRATEGIES)))
def test_random_trainings(training: Training, name: str) -> None:
    check_training(training, strategy_of(name))


def data() -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Batches of images and labels, the last smaller."""
    random = np.random.default_rng(0)
    x = random.normal(size=(28, 8, 8, 1)).astype(np.float32)
    return [(x[at : at + 8], np.arange(28, dtype=np.int32)[at : at + 8] % 5) for at in range(0, 28, 8)]


def weights() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(1)
    shapes = {"kernel": (3, 3, 1, 4), "dense": (4 * 8 * 8, 5), "bias": (5,)}
    return {name: (random.normal(size=shape) / 10).astype(np.float32) for name, shape in shapes.items()}


def losses_of(params: Any, x: Any, y: Any) -> Any:
    hidden = jax.lax.conv_general_dilated(
        x, jnp.asarray(params["kernel"]), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    logits = jax.nn.gelu(hidden).reshape(len(x), -1) @ params["dense"] + jnp.asarray(params["bias"])[None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def by_hand() -> tuple[list[float], Any]:
    """Two epochs on a device of the CPU."""
    with jax.default_device(jax.devices("cpu")[0]), jax.numpy_dtype_promotion("standard"):
        params: Any = jax.tree.map(jnp.asarray, weights())
        transformation, told = optax.adam(1e-2), list[float]()
        state = transformation.init(params)
        for x, y in data() * 2:
            loss, gradients = jax.value_and_grad(lambda p, x=x, y=y: losses_of(p, x, y).sum() / 8)(params)
            updates, state = transformation.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
            told.append(float(loss))
        return told, jax.tree.map(np.asarray, params)


class Trainer:
    """The same by a strategy."""

    def __init__(self, strategy: jd.Strategy, *, memory: Any = None) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.params = {name: jd.Variable(value, name=name) for name, value in weights().items()}
            self.optimizer = jd.Optimizer(optax.adam(1e-2), self.params)
        self._options = {} if memory is None else {"memory": memory}
        self.checkpoint = jd.Checkpoint(params=self.params, optimizer=self.optimizer)
        self.compiled = jd.function(self.step)

    def replica(self, x: Any, y: Any) -> Any:
        loss, gradients = jd.value_and_grad(
            lambda: losses_of(self.params, x, y).sum() / 8, self.params, **self._options
        )()
        self.optimizer.apply_gradients(gradients)
        return loss

    def step(self, x: Any, y: Any) -> Any:
        return self.strategy.reduce("SUM", self.strategy.run(self.replica, (x, y)), axis=None)

    def trained(self, batches: Any, *, compiled: bool = True) -> list[float]:
        step = self.compiled if compiled else self.step
        return [float(step(*batch)) for batch in self.strategy.experimental_distribute_dataset(batches)]

    def values(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: np.asarray(v.read_value()) for name, v in self.params.items()}


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_training_is_that_by_hand(name: str, *, compiled: bool) -> None:
    trainer, (told, params) = Trainer(strategy_of(name)), by_hand()
    np.testing.assert_allclose(trainer.trained(data() * 2, compiled=compiled), told, rtol=1e-4)
    for key, value in trainer.values().items():
        np.testing.assert_allclose(value, params[key], atol=2e-4, err_msg=key)


def test_state_goes_between_the_device_and_the_cpu(tmp_path: Path) -> None:
    names = ["mirrored", "CPU beside it", "central", "sharded", "mirrored"]
    first = other = Trainer(strategy_of(names[0]))
    first.trained(data())
    path, values = first.checkpoint.save(tmp_path / "0"), first.values()
    for number, name in enumerate(names[1:], 1):
        other = Trainer(strategy_of(name))
        other.checkpoint.restore(path)
        for key, value in other.values().items():
            np.testing.assert_array_equal(value, values[key], err_msg=f"{name}: {key}")
        path = other.checkpoint.save(tmp_path / str(number))
    np.testing.assert_array_equal(other.trained(data()), first.trained(data()))


def test_what_a_strategy_holds_is_on_its_devices() -> None:
    for name in STRATEGIES:
        strategy = strategy_of(name)
        trainer = Trainer(strategy)
        trainer.trained(data()[:1])
        wanted = set(strategy.extended.parameter_devices)
        for v in (*trainer.params.values(), *trainer.optimizer.variables):
            assert {v.device} <= wanted, (name, v.name)
        batch = next(iter(strategy.experimental_distribute_dataset(data())))
        for part, device in zip(
            strategy.experimental_local_results(batch[0]), strategy.extended.worker_devices, strict=True
        ):
            assert [device_name(each) for each in part.devices()] == [device], name


def test_a_budget_of_memory_gives_the_gradient_of_none() -> None:
    for memory in ("auto", "100KiB"):
        with_budget, without = Trainer(strategy_of("mirrored"), memory=memory), Trainer(strategy_of("mirrored"))
        np.testing.assert_allclose(with_budget.trained(data()), without.trained(data()), rtol=1e-6)
