"""In float64 a step on several replicas is that of one device to the last digits: nothing on the way is float32."""

import pytest

from processes import run_python

_CODE = """
    import contextlib, os
    os.environ["KERAS_BACKEND"], os.environ["JAX_ENABLE_X64"] = "jax", "1"
    import jax
    import jax.numpy as jnp
    import numpy as np
    import jaxtribute as jd
    jd.config.set_logical_cpu_devices(4)
    import keras
    from keras import layers
    keras.config.set_floatx("float64")

    class OwnLogs(keras.Model):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "top": jnp.max(y_pred, -1).mean()}

    class OwnLoss(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return super().compute_loss(x, y, y_pred, sample_weight) + 0.1 * jnp.mean((y - y_pred) ** 4)

    class OwnStep(keras.Model):
        def train_step(self, state, data):
            trainable, layers, optimizer, metrics = state
            x, y, weight = keras.utils.unpack_x_y_sample_weight(data)

            def loss_of(trainable):
                predicted, ends = self.stateless_call(trainable, layers, x, training=True)
                each = jnp.mean((y - predicted) ** 2, -1)
                return jnp.mean(each) + jnp.tanh(predicted).mean(), ends

            (loss, layers), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
            return {"loss": loss}, (trainable, layers, optimizer, metrics)

    random = np.random.default_rng(0)
    x, y, w = random.normal(size=(37, 6)), random.normal(size=(37, 2)), random.random(37)

    def trained(kind, scope, regularizer="l2", metrics=("mae", "r2_score"), activation="tanh", **given):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        with scope:
            inputs = keras.Input((6,))
            hidden = layers.Dense(5, activation=activation, kernel_regularizer=regularizer)(inputs)
            # No batch normalization and no ops.mean: Keras itself computes both in float32.
            model = kind(inputs, layers.Dense(2)(hidden))
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=list(metrics), weighted_metrics=["mse"])
        history = model.fit(x, y, batch_size=9, epochs=3, verbose=0, shuffle=False, **given).history
        weights = [np.asarray(weight.value) for weight in model.weights]
        return [*weights, *history.values(), model.evaluate(x, y, batch_size=10, verbose=0)]

    padded = {"regularizer": None, "metrics": ("mae",)}
    # Keras's tanh is of float32 too, and so are gradients through it, which such a step weights afterwards.
    exact = {"regularizer": None, "activation": jnp.tanh}
    own = ((OwnLogs, {}), (OwnLoss, {}), (OwnStep, exact))
    for kind, given in ((keras.Model, padded), (keras.Model, {"sample_weight": w}), *own):
        wanted = trained(kind, contextlib.nullcontext(), **given)
        for count in (2, 4):
            strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(count)])
            for found, expected in zip(trained(kind, strategy.scope(), **given), wanted, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12, err_msg=f"{kind} {count}")
"""


@pytest.mark.slow
def test_steps_of_keras_in_float64() -> None:
    # Keras rounds means to float32 on the way; XLA leaves that out only if it optimizes.
    run_python(_CODE, env={"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"})
