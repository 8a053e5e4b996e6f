"""Steps that change what is trained by rounding alone, or by little: a mistake in them is found, or a doubt is told."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute._src.addons.verify.doubts import HIDDEN, WRONG

pytestmark = pytest.mark.filterwarnings("ignore:.*mean over the replicas", "ignore:.*mean of the replicas")
ROWS, UNEVEN = 12, 11
STILL = "so that a wrong gradient is not seen"
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 4)).astype("f")
WHOLE = RANDOM.integers(-3, 4, size=(ROWS, 4)).astype("f")
WARM_UP = optax.linear_schedule(0.0, 1e-3, 10_000)


def part(errors: Any) -> Any:
    context: Any = jd.get_replica_context()
    count = context.all_reduce("SUM", errors.shape[0])
    return jd.nn.compute_average_loss(errors**2, global_batch_size=count)


def means(errors: Any) -> Any:
    return jnp.mean(errors**2)


def verified(
    loss: Callable[[Any], Any], transform: Any, *, x: Any = X, y: Any = None, first: float = 1.0, whole: bool = True
) -> testing.Verdict:
    """What comes of a step whose first weights are the solution, if `y` is left out."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(np.full(4, first, "f"))
        optimizer = jd.Optimizer(transform, [w])

    def replica(x: Any, y: Any) -> Any:
        value, gradients = jd.value_and_grad(lambda: loss(x @ w - y), [w])()
        optimizer.apply_gradients(gradients, "SUM" if loss is part else "MEAN")
        return value

    @jd.function
    def step(*batch: Any) -> Any:
        results = strategy.run(replica, batch)
        return strategy.reduce("SUM" if loss is part else "MEAN", results, axis=None) if whole else None

    batch = x[:UNEVEN], (x.sum(1) * np.float32(first) if y is None else y)[:UNEVEN]
    return testing.verify(step, *batch, strategy=strategy, raises=False)


TRANSFORMS = [optax.sgd(0.1), optax.sgd(1.0), optax.sgd(0.1, momentum=0.9), optax.adam(0.1), optax.sgd(1e-9)]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("transform", TRANSFORMS, ids="sgd fast momentum adam slow".split())
@pytest.mark.parametrize("first", [1.0, 0.3])
def test_a_mistake_behind_first_weights_that_are_the_solution_is_found(transform: Any, first: float) -> None:
    found = verified(means, transform, first=first)
    assert found.status in (WRONG, HIDDEN), str(found)
    assert not found.right
    found = verified(means, transform, first=first, whole=False)
    assert found.status in (WRONG, HIDDEN), str(found)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("transform", TRANSFORMS[:-1], ids="sgd fast momentum adam".split())
@pytest.mark.parametrize("first", [1.0, 0.3])
def test_a_right_step_behind_them_raises_no_alarm(transform: Any, first: float) -> None:
    found = verified(part, transform, first=first)
    assert not found.findings, str(found)


@pytest.mark.parametrize("loss", [part, means])
@pytest.mark.parametrize("transform", TRANSFORMS[::2], ids="sgd momentum slow".split())
def test_a_gradient_that_is_zero_everywhere_is_told(loss: Any, transform: Any) -> None:
    found = verified(loss, transform, x=WHOLE)
    assert (found.status, found.findings) == (HIDDEN, []), str(found)
    assert STILL in str(found)


def test_a_gradient_that_is_rounding_of_64_bits_is_told() -> None:
    """It is as large as any change of the order of sums."""

    def loss(errors: Any) -> Any:
        return means(errors * 1e-12)

    found = verified(loss, optax.sgd(0.1))
    assert (found.status, found.findings) == (HIDDEN, []), str(found)
    assert STILL in str(found)


def test_what_becomes_nan_is_told_as_that() -> None:
    found = verified(lambda errors: part(jnp.log(-1.0 - errors**2)), optax.sgd(0.1))
    assert "NaN on one device" in str(found)
    assert STILL not in str(found)


@pytest.mark.parametrize("broken", [0, 1])
def test_what_becomes_nan_is_told_if_another_variable_has_its_name(broken: int) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        both = [jd.Variable(np.ones(4, "f"), aggregation="MEAN") for _ in range(2)]
    (batch,) = strategy.experimental_distribute_dataset([X])

    def replica(x: Any) -> None:
        context: Any = jd.get_replica_context()
        total = context.all_reduce("SUM", x.sum(0))
        for number, variable in enumerate(both):
            variable.assign_sub(jnp.log(-1.0 - total**2) if number == broken else total)

    found = testing.verify(lambda x: strategy.run(replica, (x,)), batch, strategy=strategy, raises=False)
    assert "NaN on one device" in str(found)


SMALL = [
    optax.sgd(1e-9),
    optax.sgd(WARM_UP),
    optax.adam(1e-9),
    optax.adam(WARM_UP),
    optax.chain(optax.clip_by_global_norm(1.0), optax.adam(WARM_UP)),
    optax.MultiSteps(optax.sgd(1e-8), 3),
]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("loss", [part, means])
@pytest.mark.parametrize("transform", SMALL, ids="sgd sgd-up adam adam-up clipped accumulated".split())
def test_a_small_rate_is_no_doubt_and_hides_no_mistake(transform: Any, loss: Any) -> None:
    found = verified(loss, transform, y=np.ones(ROWS, "f"), whole=False)
    assert (found.status == 0) == (loss is part), str(found)
    assert bool(found.findings) == (loss is means), str(found)
    assert STILL not in str(found)


@pytest.mark.parametrize("kind", ["frozen part", "metrics"])
def test_what_rightly_trains_nothing_is_no_doubt(kind: str) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        frozen, w = jd.Variable(np.ones(4, "f")), jd.Variable(np.ones(4, "f"))
        labels = {"frozen": "frozen", "w": "w"}
        transform = optax.partition({"frozen": optax.set_to_zero(), "w": optax.sgd(0.1)}, labels)
        optimizer = jd.Optimizer(transform, {"frozen": frozen, "w": w})
        total = jd.Variable(0.0, trainable=False, aggregation="sum")

    def replica(x: Any) -> None:
        if kind == "metrics":
            total.assign(((x @ w) ** 2).sum())
        else:
            optimizer.apply_gradients(jd.grad(lambda: part(x @ w + x @ frozen), {"frozen": frozen, "w": w})())

    found = testing.verify(jd.function(lambda x: strategy.run(replica, (x,))), X, strategy=strategy)
    assert found.right, str(found)
