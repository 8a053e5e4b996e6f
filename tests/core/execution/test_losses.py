"""Losses that gradients take along: one collective less, and the same numbers whatever is done with the loss."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.capture import Capture
from replicas import fraction, mirrored, per_replica, variable

RATE = 0.5
VALUES = [np.array([1.0, 2.0], np.float32), np.array([3.0, 5.0], np.float32)]


class Training:
    """`w` is to become the mean of the data: the loss of a replica is the sum of its squared differences."""

    def __init__(self, strategy: jd.Strategy | None = None) -> None:
        self.strategy = strategy or mirrored(2)
        self.w = variable(self.strategy, 0.0)
        with self.strategy.scope():
            self.optimizer = jd.Optimizer(optax.sgd(RATE), [self.w])

    def loss(self, data: Any) -> Any:
        return jnp.sum((self.w - data) ** 2)

    def train(self, data: Any) -> Any:
        loss, grads = jd.value_and_grad(lambda: self.loss(data), [self.w])()
        self.optimizer.apply_gradients(grads)
        return loss

    def collectives(self, step: Any, *leaves: Any) -> int:
        """How many collectives a step is."""
        text = str(Capture.of(lambda given: step(*given), contexts.current(), leaves).closed)
        return text.count("psum") + text.count("_reduce_split")


def split() -> Any:
    return per_replica(mirrored(2), VALUES)


@pytest.mark.parametrize(("op", "expected"), [("SUM", 39.0), ("MEAN", 19.5)])
def test_the_loss_needs_no_collective_of_its_own(op: str, expected: float) -> None:
    training = Training()

    def step(data: Any) -> Any:
        return training.strategy.reduce(op, training.strategy.run(training.train, (data,)), axis=None)

    assert training.collectives(step, split()) == 1
    loss = jd.function(step)(split())
    assert float(loss) == expected
    assert loss.shape == ()
    assert len(loss.devices()) == 2
    assert float(training.w.numpy()) == pytest.approx(RATE * 2 * sum(value.sum() for value in VALUES))


def test_each_of_several_steps_has_its_own() -> None:
    training, plain = Training(), Training()

    def step(data: Any) -> Any:
        return training.strategy.reduce("SUM", training.strategy.run(training.train, (data,)), axis=None)

    several = jd.function(lambda data: jnp.stack([step(data) for _ in range(3)]))
    losses = np.asarray(several(split()))
    w = 0.0
    for loss in losses:
        assert loss == pytest.approx(sum(((w - value) ** 2).sum() for value in VALUES))
        w -= RATE * 2 * sum((w - value).sum() for value in VALUES)
    assert float(plain.w.numpy()) == 0.0


def test_what_is_made_of_a_loss_is_reduced_by_itself() -> None:
    training = Training()

    def replica(data: Any) -> Any:
        loss = training.train(data)
        return {"loss": loss, "doubled": 2 * loss, "id": fraction()}

    @jd.function
    def step(data: Any) -> Any:
        results = training.strategy.run(replica, (data,))
        results["root"] = jax.tree.map(jnp.sqrt, results["loss"])  # a pytree: not the value that was summed
        return training.strategy.reduce("SUM", results, axis=None)

    found = {name: float(value) for name, value in step(split()).items()}
    assert found == pytest.approx({"loss": 39.0, "doubled": 78.0, "id": 1.0, "root": np.sqrt(5) + np.sqrt(34)})


def test_a_loss_in_a_branch_stays_there() -> None:
    training = Training()

    def replica(data: Any) -> Any:
        before = training.train(data)
        with_branch = lax.cond(
            data.sum() > 4, lambda: jd.grad(lambda: training.loss(data), [training.w])()[0], lambda: 0.0
        )
        return before, with_branch

    @jd.function
    def step(data: Any) -> Any:
        return training.strategy.reduce("SUM", training.strategy.run(replica, (data,)), axis=None)

    loss, grad = step(split())
    assert float(loss) == 39.0
    assert float(grad) == pytest.approx(2 * (2 * 11.0 - 8.0)), "only replica 1 takes the branch, at w = 11"


def test_a_loss_of_another_dtype_goes_alone() -> None:
    training = Training()

    def replica(data: Any) -> Any:
        half, grads = jd.value_and_grad(lambda: training.loss(data).astype(jnp.float16), [training.w])()
        training.optimizer.apply_gradients(grads)
        return half

    def step(data: Any) -> Any:
        return training.strategy.reduce("SUM", training.strategy.run(replica, (data,)), axis=None)

    assert training.collectives(step, split()) == 2
    loss = jd.function(step)(split())
    assert loss.dtype == jnp.float16
    assert float(loss) == 39.0


def test_a_loss_does_not_take_part_in_sums_of_the_users_own() -> None:
    largest = jd.ReductionToOneDevice(accumulation_fn=lambda parts: jnp.maximum(*parts))
    training = Training(jd.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=largest))

    @jd.function
    def step(data: Any) -> Any:
        return training.strategy.reduce("SUM", training.strategy.run(training.train, (data,)), axis=None)

    assert float(step(per_replica(training.strategy, VALUES))) == 39.0
    assert float(training.w.numpy()) == pytest.approx(RATE * 2 * 3.0), "the larger of the gradients -6 and -16"


def test_numbers_in_place_of_arrays() -> None:
    training = Training()

    def replica(data: Any) -> Any:
        with pytest.warns(UserWarning, match="reads none of its variables"):
            loss, _ = jd.value_and_grad(lambda: 3.0, [training.w])()
        training.optimizer.apply_gradients([1.0])
        return loss + 0 * data.sum()

    step = jd.function(lambda data: training.strategy.reduce("SUM", training.strategy.run(replica, (data,)), axis=None))
    assert float(step(split())) == 6.0
    assert float(training.w.numpy()) == -2 * RATE


def test_a_gradient_alone_takes_nothing_along() -> None:
    training = Training()

    def replica(data: Any) -> None:
        training.optimizer.apply_gradients(jd.grad(lambda: training.loss(data), [training.w])())

    def step(data: Any) -> Any:
        return training.strategy.run(replica, (data,))

    text = str(Capture.of(lambda given: step(*given), contexts.current(), [split()]).closed)
    assert text.count("psum") == 1
    assert "concatenate" not in text


def test_the_total_is_no_weak_number() -> None:
    training = Training()

    def replica(data: Any) -> Any:
        weak = lambda: jnp.where(data.sum() > 4, 1.0, 2.0) + 0 * training.w  # noqa: E731
        loss, grads = jd.value_and_grad(weak, [training.w])()
        training.optimizer.apply_gradients(grads)
        return loss

    @jd.function
    def step(data: Any) -> Any:
        return training.strategy.reduce("SUM", training.strategy.run(replica, (data,)), axis=None)

    total = step(split())
    assert float(total) == 3.0
    assert not total.weak_type


def test_unequal_parts_are_reduced_as_ever() -> None:
    training = Training()
    ragged = per_replica(training.strategy, [VALUES[0], VALUES[1][:1]])

    @jd.function
    def step(data: Any) -> Any:
        return training.strategy.reduce("SUM", training.strategy.run(training.train, (data,)), axis=None)

    assert float(step(ragged)) == 1 + 4 + 9
    assert float(training.w.numpy()) == pytest.approx(RATE * 2 * 6)


def test_one_step_within_a_loop() -> None:
    training = Training()

    @jd.function
    def step(data: Any) -> Any:
        def body(_: Any, total: Any) -> Any:
            per = training.strategy.run(
                lambda x: jd.value_and_grad(lambda: training.loss(x), [training.w])()[0], (data,)
            )
            return total + training.strategy.reduce("SUM", per, axis=None)

        return lax.fori_loop(0, 3, body, jnp.float32(0))

    assert float(step(split())) == 3 * 39.0
