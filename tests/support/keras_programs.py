"""Small Keras programs in the style of public guides, which must train as they do on one device.

Import it only where Keras runs on JAX. Noise is part of the data: replicas draw random numbers of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxtribute as jd

keras: Any = __import__("keras")
ops: Any = keras.ops
layers: Any = keras.layers

RNG = np.random.default_rng(0)
ROWS, BATCH = 23, 5
"""On four replicas 2, 2, 1, 0 examples of a batch, and 1, 1, 1, 0 of the last; on two 3, 2 and 2, 1."""
X = RNG.normal(size=(ROWS, 8)).astype(np.float32)
NOISE = RNG.normal(size=(ROWS, 3)).astype(np.float32)
PIXELS = RNG.uniform(size=(ROWS, 6, 6, 1)).astype(np.float32)
WORDS = RNG.integers(0, 11, (ROWS, 7))
Y = RNG.integers(0, 3, ROWS)
WEIGHTS = RNG.uniform(0.1, 2, ROWS).astype(np.float32)
Made = tuple[Any, dict[str, Any]]
"""A compiled model, and what `fit` is given."""


def dense(*units: int, inputs: int = 8, name: str | None = None) -> Any:
    """A perceptron."""
    inner = [layers.Dense(count, "tanh") for count in units[:-1]]
    return keras.Sequential([layers.Input((inputs,)), *inner, layers.Dense(units[-1])], name=name)


def crossentropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _first(data: Any) -> Any:
    """The inputs, where they come alone."""
    return data[0] if isinstance(data, (list, tuple)) else data


class Tracked(keras.Model):
    """A model whose `train_step` takes its loss from `losses_of`, and shows each part by a tracker."""

    parts: tuple[str, ...] = ("loss",)

    def __init__(self) -> None:
        super().__init__()
        self.trackers = [keras.metrics.Mean(name=name) for name in self.parts]

    @property
    def metrics(self) -> list[Any]:
        return self.trackers

    def losses_of(self, outputs: Any, data: Any) -> list[Any]:
        """The whole loss, and its parts, each one number."""
        raise NotImplementedError

    def _loss(self, trainable: Any, fixed: Any, data: Any) -> Any:
        outputs, fixed, added = self.stateless_call(trainable, fixed, data, return_losses=True)
        found = self.losses_of(outputs, data)
        return found[0] + sum(added), ([found[0] + sum(added), *found[1:]], fixed)

    def _told(self, values: Any, found: Any) -> Any:
        logs, new = {}, []
        for tracker, value in zip(self.trackers, found, strict=True):
            own = tracker.stateless_update_state(values[len(new) : len(new) + len(tracker.variables)], value)
            logs[tracker.name] = tracker.stateless_result(own)
            new += own
        return logs, new

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, fixed, optimizer, metrics = state
        (_, (found, fixed)), grads = jax.value_and_grad(self._loss, has_aux=True)(trainable, fixed, _first(data))
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        logs, metrics = self._told(metrics, found)
        return logs, (trainable, fixed, optimizer, metrics)

    def test_step(self, state: Any, data: Any) -> Any:
        trainable, fixed, metrics = state
        _, (found, fixed) = self._loss(trainable, fixed, _first(data))
        logs, metrics = self._told(metrics, found)
        return logs, (trainable, fixed, metrics)


class Autoencoder(Tracked):
    """A variational autoencoder."""

    parts = "loss", "reconstruction", "divergence"

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = dense(6, 6), dense(6, 8, inputs=3)

    def call(self, inputs: Any) -> Any:
        x, noise = inputs
        mean, spread = ops.split(self.encoder(x), 2, axis=1)
        return self.decoder(mean + ops.exp(0.5 * spread) * noise), mean, spread

    def losses_of(self, outputs: Any, data: Any) -> list[Any]:
        again, mean, spread = outputs
        off = ops.mean(ops.sum(ops.square(data[0] - again), axis=1))
        apart = ops.mean(ops.sum(-0.5 * (1 + spread - ops.square(mean) - ops.exp(spread)), axis=1))
        return [off + apart, off, apart]


def vae() -> Made:
    model = Autoencoder()
    model.compile(keras.optimizers.Adam(0.01))
    return model, {"x": (X, NOISE)}


class Quantizer(layers.Layer):
    """The nearest of a book's codes; adds the losses that bring both together."""

    def build(self, shape: Any) -> None:
        self.codes = self.add_weight(shape=(shape[-1], 5), initializer=keras.initializers.RandomNormal(seed=3))

    def call(self, x: Any) -> Any:
        far = ops.sum(x**2, axis=1, keepdims=True) + ops.sum(self.codes**2, axis=0) - 2 * ops.matmul(x, self.codes)
        chosen = ops.matmul(ops.one_hot(ops.argmin(far, axis=1), 5), ops.transpose(self.codes))
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(chosen) - x) ** 2))
        self.add_loss(ops.mean((chosen - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(chosen - x)


class Quantized(Tracked):
    """A VQ-VAE."""

    parts = "loss", "reconstruction"

    def __init__(self) -> None:
        super().__init__()
        self.net = keras.Sequential([layers.Input((8,)), layers.Dense(4, "tanh"), Quantizer(), layers.Dense(8)])

    def call(self, x: Any) -> Any:
        return self.net(x)

    def losses_of(self, outputs: Any, data: Any) -> list[Any]:
        off = ops.mean((data - outputs) ** 2) / 0.9
        return [off, off]


def vq_vae() -> Made:
    model = Quantized()
    model.compile(keras.optimizers.Adam(0.01))
    return model, {"x": X}


def loss_tracker() -> Made:
    class Plain(Tracked):
        def __init__(self) -> None:
            super().__init__()
            self.net = dense(4, 8)

        def call(self, x: Any) -> Any:
            return self.net(x)

        def losses_of(self, outputs: Any, data: Any) -> list[Any]:
            return [ops.mean(keras.losses.mean_squared_error(data, outputs))]

    model = Plain()
    model.compile(keras.optimizers.SGD(0.1))
    return model, {"x": X}


def siamese() -> Made:
    net, left, right = dense(6, 3), layers.Input((8,)), layers.Input((8,))

    def far(pair: Any) -> Any:
        return ops.sqrt(ops.maximum(ops.sum(ops.square(pair[0] - pair[1]), axis=1, keepdims=True), 1e-7))

    def contrastive(same: Any, apart: Any) -> Any:
        same = ops.cast(same, apart.dtype)
        return ops.mean((1 - same) * ops.square(apart) + same * ops.square(ops.maximum(1.0 - apart, 0)))

    output = layers.Lambda(far, output_shape=(1,))([net(left), net(right)])
    model = keras.Model([left, right], layers.Dense(1, "sigmoid")(output))
    model.compile(keras.optimizers.RMSprop(0.01), contrastive, metrics=["accuracy"])
    return model, {"x": [X, X[::-1].copy()], "y": (Y[::-1] == Y).astype(np.float32)[:, None]}


class Adversaries(keras.Model):
    """A generator and a critic, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = dense(6, 8, inputs=3), dense(6, 1)
        self.of_critic = keras.optimizers.Adam(0.01)
        self.of_critic.build(self.critic.trainable_variables)
        self.trackers = [keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")]

    @property
    def metrics(self) -> list[Any]:
        return self.trackers

    @property
    def non_trainable_variables(self) -> list[Any]:
        return [*super().non_trainable_variables, *self.of_critic.variables]

    def call(self, inputs: Any) -> Any:
        return self.critic(inputs[0]), self.generator(inputs[1])

    def train_step(self, state: Any, data: Any) -> Any:
        (trainable, fixed, optimizer, metrics), ((real, noise),) = state, data
        half = len(self.generator.trainable_variables)
        generator, critic = trainable[:half], trainable[half:]
        count = len(fixed) - len(self.of_critic.variables)

        def logits(critic: Any, generator: Any) -> Any:
            made = self.generator.stateless_call(generator, [], noise)[0]
            return self.critic.stateless_call(critic, [], real)[0], self.critic.stateless_call(critic, [], made)[0]

        def of_critic(critic: Any) -> Any:
            true, false = logits(critic, generator)
            return ops.mean(ops.softplus(-true)) + ops.mean(ops.softplus(false))

        def of_generator(generator: Any) -> Any:
            return ops.mean(ops.softplus(-logits(critic, generator)[1]))

        d_loss, grads = jax.value_and_grad(of_critic)(critic)
        critic, slots = self.of_critic.stateless_apply(fixed[count:], grads, critic)
        g_loss, grads = jax.value_and_grad(of_generator)(generator)
        both, optimizer = self.optimizer.stateless_apply(
            optimizer, [*grads, *[ops.zeros_like(one) for one in critic]], [*generator, *critic]
        )
        logs, new = {}, []
        for tracker, value in zip(self.trackers, (d_loss, g_loss), strict=True):
            own = tracker.stateless_update_state(metrics[len(new) : len(new) + 2], value)
            logs[tracker.name] = tracker.stateless_result(own)
            new += own
        return logs, (both, [*fixed[:count], *slots], optimizer, new)


def gan() -> Made:
    model = Adversaries()
    model.build([(None, 8), (None, 3)])
    model.compile(keras.optimizers.SGD(0.05))
    return model, {"x": (X, NOISE)}


class Distiller(keras.Model):
    """A student that learns from labels and from a teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = dense(6, 3), dense(3)
        self.teacher.trainable = False

    def call(self, x: Any, training: bool = False) -> Any:
        return self.student(x, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        soft = ops.softmax(self.teacher(x, training=False) / 3.0)
        near = keras.losses.KLDivergence()(soft, ops.softmax(y_pred / 3.0)) * 9.0
        return 0.3 * super().compute_loss(x, y, y_pred, sample_weight, training) + 0.7 * near


def distillation() -> Made:
    model = Distiller()
    model.compile(keras.optimizers.Adam(0.01), crossentropy(), metrics=["sparse_categorical_accuracy"])
    return model, {"x": X, "y": Y}


class Alike(keras.losses.Loss):
    """Each anchor is to be nearest to its own positive, among those of the whole batch."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        anchors, positives = ops.split(y_pred, 2, axis=1)
        context = jd.get_replica_context()
        first, among = 0, positives
        if context is not None:
            rows = context.all_gather(ops.ones((ops.shape(anchors)[0],), "int32") * context.replica_id_in_sync_group, 0)
            among = context.all_gather(positives, axis=0)
            first = ops.sum(ops.cast(rows < context.replica_id_in_sync_group, "int32"))
        labels = first + ops.arange(ops.shape(anchors)[0])
        near = ops.matmul(anchors, ops.transpose(among)) / 0.2
        return keras.losses.sparse_categorical_crossentropy(labels, near, from_logits=True)


def metric_learning() -> Made:
    net, anchor, positive = dense(6, 4), layers.Input((8,)), layers.Input((8,))
    both = [layers.UnitNormalization()(net(one)) for one in (anchor, positive)]
    model = keras.Model([anchor, positive], layers.Concatenate()(both))
    model.compile(keras.optimizers.SGD(0.05), Alike())
    return model, {"x": [X, (X + 0.1 * X[::-1])], "y": Y.astype(np.float32)}


class Byol(Tracked):
    """A network that predicts what a slowly moving copy of itself gives for another view."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = dense(6, 4), dense(6, 4)
        self.target.trainable = False
        self.head = dense(4, inputs=4)

    def call(self, views: Any) -> Any:
        return self.head(self.online(views[0])), ops.stop_gradient(self.target(views[1]))

    def losses_of(self, outputs: Any, data: Any) -> list[Any]:
        mine, other = (one / ops.norm(one, axis=1, keepdims=True) for one in outputs)
        return [ops.mean(2 - 2 * ops.sum(mine * other, axis=1))]

    def train_step(self, state: Any, data: Any) -> Any:
        logs, (trainable, fixed, optimizer, metrics) = super().train_step(state, data)
        values = dict(zip(map(id, self.trainable_variables), trainable, strict=True))
        moved = dict(zip(map(id, self.target.variables), self.online.variables, strict=True))
        places = dict(zip(map(id, self.non_trainable_variables), fixed, strict=True))
        for target, online in moved.items():
            places[target] = 0.9 * places[target] + 0.1 * values[id(online)]
        return logs, (trainable, [places[id(v)] for v in self.non_trainable_variables], optimizer, metrics)


def byol() -> Made:
    model = Byol()
    model((X[:2], X[:2]))
    model.target.set_weights(model.online.get_weights())
    model.compile(keras.optimizers.SGD(0.05))
    return model, {"x": (X, X + 0.1 * X[::-1])}


def ema() -> Made:
    model = dense(5, 3)
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3)
    model.compile(optimizer, crossentropy(), metrics=["accuracy"])
    return model, {"x": X, "y": Y}


def sample_weights() -> Made:
    model = dense(5, 3)
    model.compile("adam", crossentropy(), weighted_metrics=["accuracy"], metrics=["accuracy"])
    return model, {"x": X, "y": Y, "sample_weight": WEIGHTS, "validation_data": (X[:7], Y[:7], WEIGHTS[:7])}


def class_weights() -> Made:
    model = dense(5, 3)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), crossentropy(), metrics=["accuracy"])
    return model, {"x": X, "y": Y, "class_weight": {0: 1.0, 1: 0.3, 2: 2.5}}


def early_stopping() -> Made:
    model = dense(5, 3)
    model.compile(keras.optimizers.SGD(0.9), crossentropy(), metrics=["accuracy"])
    stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True, start_from_epoch=1)
    return model, {"x": X, "y": Y, "validation_split": 0.3, "epochs": 8, "callbacks": [stop]}


def rate_schedules() -> Made:
    model = dense(5, 1)
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 8, warmup_target=0.2, warmup_steps=2)
    model.compile(keras.optimizers.SGD(schedule, momentum=0.9), "huber", metrics=["mae"])
    return model, {"x": X, "y": Y[:, None].astype(np.float32)}


def rate_callbacks() -> Made:
    model = dense(5, 1)
    model.compile(keras.optimizers.AdamW(0.05), "mse", metrics=[keras.metrics.RootMeanSquaredError()])
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7 if epoch else rate)
    flat = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=9.0, factor=0.5)
    return model, {"x": X, "y": Y[:, None].astype(np.float32), "epochs": 3, "callbacks": [slower, flat]}


def images() -> Made:
    whole = {} if jd.get_strategy().is_default else {"synchronized": True}
    model = keras.Sequential(
        [
            layers.Input((6, 6, 1)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(momentum=0.5, **whole),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, kernel_regularizer="l2"),
        ]
    )
    model.compile("adam", crossentropy(), metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)])
    return model, {"x": PIXELS, "y": Y, "validation_data": (PIXELS[:7], Y[:7])}


def words() -> Made:
    entry = layers.Input((7,), dtype="int32")
    hidden = layers.GRU(4)(layers.Embedding(11, 4, mask_zero=True)(entry))
    model = keras.Model(
        entry, {"kind": layers.Dense(3, name="kind")(hidden), "size": layers.Dense(1, name="size")(hidden)}
    )
    model.compile(
        keras.optimizers.Adam(0.01, clipnorm=1.0),
        {"kind": crossentropy(), "size": "mae"},
        loss_weights={"kind": 1.0, "size": 0.2},
        metrics={"kind": ["accuracy"], "size": ["mse"]},
    )
    return model, {"x": WORDS, "y": {"kind": Y, "size": Y[:, None].astype(np.float32)}}


PROGRAMS: dict[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        vae, vq_vae, loss_tracker, siamese, gan, distillation, metric_learning, byol, ema, sample_weights,
        class_weights, early_stopping, rate_schedules, rate_callbacks, images, words,
    )
}  # fmt: skip


def trained(name: str, make: Callable[[], Made] | None = None) -> dict[str, Any]:
    """Trains a program in the strategy in force: its history, what `evaluate` and `predict` give, and its weights."""
    keras.utils.set_random_seed(0)
    model, given = (make or PROGRAMS[name])()
    options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, **given}
    with warnings.catch_warnings():
        # What is told of a program says that it trains otherwise. Keras itself warns of labels in 64 bits.
        warnings.simplefilter("default" if jd.get_strategy().is_default else "error", UserWarning)
        found: dict[str, Any] = dict(model.fit(**options).history)
        if hasattr(type(model), "losses_of") or "y" in given:
            shown = model.evaluate(given["x"], given.get("y"), batch_size=BATCH, verbose=0, return_dict=True)
            found |= {f"test {key}": value for key, value in shown.items()}
        outputs = model.predict(given["x"], batch_size=BATCH, verbose=0)
    found |= {f"output {place}": leaf for place, leaf in enumerate(jax.tree.leaves(outputs))}
    return found | {f"weight {place}": weight for place, weight in enumerate(model.get_weights())}
