"""Variables whose gradient is their new value: those of training in float8 are as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute.errors import VariableError

ROWS = np.random.default_rng(0).normal(size=(23, 8)).astype("float32") * np.linspace(1, 4, 23, dtype="float32")[:, None]
WANTED = np.stack([ROWS.sum(1), ROWS[:, 0]], 1)


class Own(keras.Model):
    """A model with a step of its own, in Keras's form for JAX."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, slots, metrics = state
        x, y, *_ = data
        value = Own.differentiated(self.compute_loss_and_updates)
        (_, aux), grads = value(trainable, others, metrics, x, y, None, training=True, optimizer_variables=slots)
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        return {"loss": aux[0]}, (trainable, aux[2], slots, metrics)

    @staticmethod
    def differentiated(fn: Callable[..., Any]) -> Callable[..., Any]:
        import jax

        return jax.value_and_grad(fn, has_aux=True)


class TensorFlows(keras.Model):
    """A model with a step of its own in TensorFlow's form."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        variables = self.trainable_variables
        value, grads = jd.value_and_grad(lambda: self.compute_loss(x, y, self(x, training=True)), variables)()
        self.optimizer.apply_gradients(zip(grads, variables, strict=True))
        return {"loss": value}


def model_of(kind: Any, strategy: jd.Strategy | None, optimizer: Any, **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy is not None else jd.get_strategy().scope():
        inputs = keras.Input((8,))
        hidden = keras.layers.Dense(6, activation="tanh", name="dense")(inputs)
        outputs = keras.layers.EinsumDense("ab,bc->ac", 2, name="einsum")(hidden)
        model = kind(inputs, outputs)
        for layer in model.layers[1:]:
            layer.quantize("float8")
        model.compile(optimizer=optimizer(), loss="mse", **options)
    return model


def state_of(model: Any) -> dict[str, Any]:
    return {variable.path: np.asarray(variable.value) for variable in model.variables}


def sgd(**options: Any) -> Callable[[], Any]:
    return lambda: keras.optimizers.SGD(0.01, **options)


def scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=8.0)


CASES: dict[str, tuple[Any, Callable[[], Any], dict[str, Any]]] = {
    "fit": (keras.Model, sgd(), {}),
    "fit eagerly": (keras.Model, sgd(), {"run_eagerly": True}),
    "several steps a call": (keras.Model, sgd(), {"steps_per_execution": 2}),
    "accumulated": (keras.Model, sgd(gradient_accumulation_steps=2), {}),
    "clipped, averaged": (keras.Model, sgd(global_clipnorm=0.5, use_ema=True), {}),
    "loss scale": (keras.Model, scaled, {}),
    "adam": (keras.Model, lambda: keras.optimizers.Adam(0.01), {}),
    "own step": (Own, sgd(), {}),
    "own step of TensorFlow's form": (TensorFlows, sgd(), {}),
}
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "1": lambda: jd.MirroredStrategy(["CPU:0"]),
    "2": lambda: jd.MirroredStrategy(["CPU:0", "CPU:1"]),
    "4": lambda: jd.MirroredStrategy([f"CPU:{i}" for i in range(4)]),
    "sharded": lambda: jd.FullyShardedStrategy([f"CPU:{i}" for i in range(4)], min_bytes=0),
}


def check_alike(found: dict[str, Any], wanted: dict[str, Any], *, of_means: bool = False) -> None:
    """Compares variables.

    Args:
      found: those of several replicas.
      wanted: those of one device.
      of_means: whether a replica has differentiated a mean of its rows: the gradients in it are larger, and of an
        uneven batch in another way than on one device, so that others are beyond what 8 bits hold.
    """
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if of_means and "outputs_grad" in name:
            continue
        # Gradients are rounded to 8 bits, where other sums, or other scales, may fall to the other side.
        near = 6e-2 if of_means else 1e-3
        np.testing.assert_allclose(found[name], value, rtol=near, atol=near, err_msg=name)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rows", [16, 23, 17])
@pytest.mark.parametrize("case", CASES)
def test_fit_scales_as_on_one_device(case: str, rows: int, strategy: str) -> None:
    kind, optimizer, options = CASES[case]
    if kind is TensorFlows and (strategy == "sharded" or (rows == 17 and strategy != "1")):
        pytest.skip(
            "the same loop as under MirroredStrategy; Keras's layer takes the largest of its rows, and needs one"
        )
    states: list[dict[str, Any]] = []
    for one in (None, STRATEGIES[strategy]()):
        plain = keras.Model if one is None and kind is TensorFlows else kind
        model = model_of(plain, one, optimizer, **options)
        model.fit(ROWS[:rows], WANTED[:rows], batch_size=8, epochs=2, shuffle=False, verbose=0)
        states.append(state_of(model))
    check_alike(states[1], states[0], of_means=kind is Own)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [8, 7])
def test_a_loop_of_ones_own_does(rows: int, compiled: bool) -> None:
    plain = model_of(keras.Model, None, sgd())
    strategy = STRATEGIES["4"]()
    model = model_of(keras.Model, strategy, sgd())
    batch = ROWS[:rows], WANTED[:rows]

    def replica(x: Any, y: Any) -> None:
        variables = model.trainable_variables

        def loss() -> Any:
            errors: Any = keras.ops.mean((model(x, training=True) - y) ** 2, axis=-1)
            return jd.nn.compute_average_loss(errors, global_batch_size=rows)

        model.optimizer.apply_gradients(zip(jd.grad(loss, variables)(), variables, strict=True))

    def step(x: Any, y: Any) -> None:
        strategy.run(replica, (x, y))

    for _ in range(3):
        plain.fit(*batch, batch_size=rows, shuffle=False, verbose=0)
        (given,) = strategy.experimental_distribute_dataset([batch])
        (jd.function(step) if compiled else step)(*given)
    check_alike(state_of(model), state_of(plain))


def test_sums_that_a_program_has_made_are_refused() -> None:
    strategy = STRATEGIES["2"]()
    model = model_of(keras.Model, strategy, sgd())

    def replica(x: Any) -> None:
        context: Any = jd.get_replica_context()
        grads = jd.grad(lambda: keras.ops.sum(model(x, training=True)), model.trainable_variables)()
        reduced = context.all_reduce("SUM", grads)
        model.optimizer.apply_gradients(
            zip(reduced, model.trainable_variables, strict=True), skip_gradients_aggregation=True
        )

    (batch,) = strategy.experimental_distribute_dataset([ROWS[:4]])
    with pytest.raises(VariableError, match=r"inputs_scale is its new value .* HINT: give apply_gradients each"):
        strategy.run(replica, (batch,))
