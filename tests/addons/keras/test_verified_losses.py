"""`verify` on loops of one's own with loss objects of Keras, and other divisions by a number that a shape gives."""

import re
import sys
import types
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute import testing

ROWS = 8
LOSSES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "one number a row": (keras.losses.MeanSquaredError, (4,)),
    "numbers for a row": (keras.losses.MeanAbsoluteError, (3, 4)),
    "an image of them": (keras.losses.Huber, (2, 3, 4)),
    "of labels": (keras.losses.BinaryCrossentropy, (4,)),
}


def verdict_of(loss_of: Any, shape: tuple[int, ...]) -> Any:
    """A loop of one's own, whose loss `loss_of(y, out, x)` computes."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 0.9, (ROWS, *shape)).astype("f")
    with strategy.scope():
        model = keras.Sequential([keras.Input(shape), keras.layers.Dense(2, activation="sigmoid")])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    @jd.function
    def train(x: Any, y: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            loss, grads = jd.value_and_grad(lambda: loss_of(y, model(x), x), model.trainable_variables)()
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

    return testing.verify(train, x, np.round(x[..., :2]), strategy=strategy, raises=False)


@pytest.fixture(autouse=True)
def _without_names_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have imported them, and loss objects are divided by the replicas then."""
    monkeypatch.delitem(sys.modules, "jaxtribute.compat.tf", raising=False)


@pytest.mark.parametrize("of_tensorflow", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_the_advice_for_a_loss_object_makes_the_step_right(
    name: str, of_tensorflow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if of_tensorflow:  # the object divides by the number of replicas: by a wrong one if batches do not divide
        monkeypatch.setitem(sys.modules, "jaxtribute.compat.tf", types.ModuleType("tf"))
    kind, shape = LOSSES[name]
    loss_fn = kind()
    found = verdict_of(lambda y, out, x: loss_fn(y, out), shape)
    expected = "default-batch-size" if of_tensorflow else "local-mean"
    assert [one.culprit.pattern.name for one in found.findings] == [expected], str(found)
    advised = re.search(r"then (jd\.nn\.\S.*), with reduction=None where the loss object is made[,;]", str(found))
    assert advised is not None, str(found)
    advice = compile(advised[1], "advice", "eval")

    def mended(y: Any, out: Any, x: Any) -> Any:
        context = jd.get_replica_context()
        assert context is not None
        count = context.all_reduce("SUM", x.shape[0])
        given = {"jd": jd, "loss_fn": kind(reduction=None), "y": y, "out": out, "count": count}
        return eval(advice, given)

    right = verdict_of(mended, shape)
    assert right.right, str(right)


@pytest.mark.parametrize(
    "divided",
    [
        lambda values: values.sum() / jnp.prod(jnp.array(values.shape)),
        lambda values: values.sum() / jnp.prod(jnp.array(values.shape), dtype=jnp.float32),
        lambda values: keras.ops.divide(keras.ops.sum(values), keras.ops.prod(keras.ops.shape(values))),
        lambda values: values.sum() / jnp.maximum(jnp.prod(jnp.array(values.shape)), 1),
    ],
)
def test_a_product_of_lengths_makes_a_mean_of_the_replicas_rows(divided: Any) -> None:
    found = verdict_of(lambda y, out, x: divided((y - out) ** 2), (4,))
    assert [one.culprit.pattern.name for one in found.findings] == ["local-mean"], str(found)
