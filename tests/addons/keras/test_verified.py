"""The callback that verifies the steps of `fit`."""

import contextlib
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute.integrations.keras import Verify


@pytest.mark.slow
def test_keras_fit_is_verified_by_a_callback() -> None:
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(40, size)).astype(np.float32) for size in (4, 1))
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model: Any = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(6, "relu"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
    verify = Verify()
    model.fit(x, y, batch_size=20, epochs=2, validation_split=0.5, verbose=0, callbacks=[verify])
    names = [one.name for one in verify.verdicts]
    assert names == ["training step on 20 rows", "validation step on 20 rows"]
    assert all(one.right and len(one.tried) >= 5 and not one.unverified for one in verify.verdicts), verify.verdicts

    def hardest(y: Any, out: Any) -> Any:
        return keras.ops.max((y - out) ** 2)

    model.compile("adam", hardest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's steps warn of it, too
        model.fit(x, y, batch_size=20, verbose=0)  # a step that has run is verified as well
        before = model.get_weights()
        with pytest.raises(testing.NotOneDeviceError, match=rf"{Path(__file__).name}:\d+.*\n(.*\n)*.*INSTEAD"):
            model.fit(x, y, batch_size=20, verbose=0, callbacks=[Verify()])
    assert all(np.array_equal(one, other) for one, other in zip(before, model.get_weights(), strict=True))


def test_the_callback_says_if_there_was_no_step_of_a_strategy() -> None:
    model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="Verify.. has verified nothing: no step of .*HINT"):
        model.evaluate(np.ones((4, 4)), np.ones((4, 1)), verbose=0, callbacks=[Verify()])


@pytest.mark.slow
def test_steps_of_padded_batches_are_verified_where_a_replica_has_no_rows() -> None:
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    y = (x[:, :1] > 0).astype(np.int32)
    with jd.MirroredStrategy([f"CPU:{number}" for number in range(4)]).scope():
        model: Any = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    verify = Verify()
    model.fit(x, y, batch_size=50, verbose=0, validation_split=0.5, callbacks=[verify])
    assert len(verify.verdicts) == 2, verify.verdicts
    assert all(one.right and "not verified" not in str(one) for one in verify.verdicts), verify.verdicts


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "batch"), [(10, 4), (20, 8), (10, 3), (9, 6)])
def test_a_plain_fit_of_batches_that_are_filled_up_raises_no_alarm(rows: int, batch: int) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(rows, 5)).astype(np.float32), random.integers(0, 3, rows)
    with jd.MirroredStrategy([f"CPU:{number}" for number in range(4)]).scope():
        model: Any = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    verify = Verify()
    model.fit(x, y, batch_size=batch, epochs=2, verbose=0, callbacks=[verify])
    assert verify.verdicts
    for one in verify.verdicts:
        assert (one.right, bool(one.tried), one.findings) == (True, True, []), str(one)
        assert "not verified" not in str(one), str(one)


def _context() -> Any:
    context = jd.get_replica_context()
    assert context is not None
    return context


def _count(y: Any, out: Any, *, right: bool) -> Any:
    mask = keras.ops.cast(y > 0, "float32")
    count: Any = keras.ops.sum(mask)
    count = _context().all_reduce("SUM", count) if right else count
    return keras.ops.sum((y - out) ** 2 * mask) / count


def _largest(y: Any, out: Any, *, right: bool) -> Any:
    loss: Any = keras.ops.max((y - out) ** 2)
    if right:
        loss = _context().all_gather(loss[None], axis=0).max()
        loss = loss * y.shape[0] / _context().all_reduce("SUM", y.shape[0])
    return loss


def _root(y: Any, out: Any, *, right: bool) -> Any:
    total: Any = keras.ops.sum((y - out) ** 2)
    rows = y.shape[0]
    if not right:
        return keras.ops.sqrt(total / rows)
    total, count = _context().all_reduce("SUM", (total, rows))
    return keras.ops.sqrt(total / count) * rows / count


class _Total(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        total: Any = keras.ops.sum((y_true - y_pred) ** 2)
        return total / 40


NUMBERS: dict[str, Any] = {
    "sum": lambda y, out: keras.ops.sum((y - out) ** 2 / 40),
    "mean": lambda y, out: keras.ops.mean((y - out) ** 2),
    "class": _Total(),
    "rows": lambda y, out: keras.ops.mean((y - out) ** 2, axis=-1),
    "reduced": lambda y, out: _context().all_reduce("SUM", keras.ops.sum((y - out) ** 2)) / 40,
}
"""Loss functions: those that return one number of a replica's rows, and two as the report says."""


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("weights", ["sample_weight", "ones", "class_weight"])
@pytest.mark.parametrize("loss", NUMBERS)
def test_one_number_that_weights_of_rows_multiply_is_named_where_the_loss_is(
    loss: str, weights: str, heads: int
) -> None:
    if (weights, heads) == ("class_weight", 2):
        pytest.skip("Keras has class weights for models of one output alone")
    if (loss, weights) == ("reduced", "ones"):
        pytest.skip("rows of opposite signs have weights whose sum is zero, and so is the loss that they multiply")
    random = np.random.default_rng(0)
    x = random.normal(size=(48, 4)).astype(np.float32)
    y = (x[:, :1] > 0).astype(np.int32)
    given: Any = random.uniform(0.1, 2, 48) if weights == "sample_weight" else np.ones(48)
    with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        entry = keras.Input((4,))
        inner = keras.layers.Dense(4, "tanh")(entry)
        outputs = [keras.layers.Dense(1)(inner) for _ in range(heads)]
        model: Any = keras.Model(entry, outputs if heads > 1 else outputs[0])
        model.compile("adam", [NUMBERS[loss], "huber"] if heads > 1 else NUMBERS[loss])
    verify = Verify(raises=False)
    how: dict[str, Any] = {"class_weight": {0: 1.0, 1: 0.5}} if weights == "class_weight" else {"sample_weight": given}
    if heads > 1:
        how["sample_weight"] = [given, random.uniform(0.1, 2, 48)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's steps warn of it, too
        model.fit(x, [y, y] if heads > 1 else y, batch_size=24, verbose=0, callbacks=[verify], **how)
    (verdict,) = verify.verdicts
    if loss in ("rows", "reduced"):
        assert verdict.right, str(verdict)
        return
    first = verdict.findings[0].culprit
    assert first.place is not None
    assert Path(first.place.file) == Path(__file__), str(verdict)
    assert "keras.ops." in first.place.whole or first.place.whole == "return total / 40", str(verdict)
    assert "INSTEAD: let the loss function return a value for each row" in str(verdict)
    assert "leave the factor out" not in str(verdict)


SHARE = "its share by rows: loss * x.shape[0] / jd.get_replica_context().all_reduce('SUM', x.shape[0])"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        (_count, "all_reduce('SUM', keras.ops.sum(mask)). fit adds up what is a sum over the rows"),
        (_largest, SHARE),
        (_root, SHARE),
    ],
)
@pytest.mark.parametrize("own", [True, False], ids=["own_step", "loss"])
def test_what_is_said_to_write_in_the_steps_of_fit_is_right_there(loss: Any, advice: str, own: bool) -> None:
    class Own(keras.Sequential):
        def train_step(self, state: Any, data: Any) -> Any:
            (trainable, others, slots, metrics), (x, y) = state, data

            def loss_of(trainable: Any) -> Any:
                out, after = self.stateless_call(trainable, others, x, training=True)[:2]
                return loss(y, out, right=self.right), after

            (value, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
            return {"loss": value}, (trainable, others, slots, metrics)

    random = np.random.default_rng(0)
    x, y = (random.normal(size=(12, size)).astype(np.float32) for size in (4, 1))
    found: list[testing.Verdict] = []
    for right in (False, True):
        with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model: Any = (Own if own else keras.Sequential)([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("adam", lambda y, out, right=right: loss(y, out, right=right))
            model.right = right
        verify = Verify(raises=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the wrong ones are warned of
            model.fit(x, y, batch_size=12, verbose=0, callbacks=[verify])
        found += verify.verdicts
    wrong, right = found
    assert wrong.findings, str(wrong)
    assert advice in str(wrong), str(wrong)
    assert "apply_gradients" not in str(wrong)
    assert right.right, str(right)
    assert not right.findings, str(right)
    assert len(right.tried) >= 5, str(right)


class Total(keras.metrics.Mean):
    """Tells its sum, which every replica adds to."""

    def result(self) -> Any:
        return self.total


@pytest.mark.parametrize(
    ("metric", "value", "names"),
    [
        # A mean to which each replica adds one number of its rows: only replicas with other numbers of rows spoil it.
        (keras.metrics.Mean, jnp.mean, {"mean-of-means"}),
        (keras.metrics.Mean, lambda x: x, set()),
        (keras.metrics.Mean, lambda x: x.sum() / 12, {"mean-of-sums"}),
        # The same numbers, but who tells the sum has it once for each replica.
        (Total, jnp.mean, {"local-mean"}),
        (Total, lambda x: x, set()),
    ],
    ids="numbers rows parts sum_of_numbers sum_of_rows".split(),
)
def test_a_mean_counts_what_each_replica_adds(metric: Any, value: Any, names: set[str]) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        told = metric("loss")

    def replica(x: Any) -> None:
        told.update_state(value(x))

    @jd.function
    def step(x: Any) -> None:
        strategy.run(replica, (x,))

    batch = next(iter(strategy.experimental_distribute_dataset([np.exp(-np.arange(12, dtype=np.float32))])))
    found = testing.verify(step, batch, strategy=strategy, raises=False)
    assert {one.culprit.pattern.name for one in found.findings} == names, str(found)
    assert found.right == (names <= {"mean-of-means"}), str(found)
    for one in found.findings:
        assert Path(__file__).name in str(one.culprit.place), str(found)


@pytest.mark.parametrize("made", ["in the scope", "outside"])
def test_replicas_of_a_custom_loop_drop_other_numbers(made: str) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope() if made == "in the scope" else contextlib.nullcontext():
        dropout: Any = keras.layers.Dropout(0.5)

    @jd.function
    def step(x: Any) -> Any:
        return strategy.run(lambda x: dropout(x, training=True), (x,))

    first, then = (np.ones((12, 8), np.float32) for _ in range(2))
    batches = list(strategy.experimental_distribute_dataset([first, then]))
    found = [value for batch in batches for value in map(np.asarray, step(batch).values)]
    assert len({value.tobytes() for value in found}) == 4, found
    testing.verify(step, first, strategy=strategy)
