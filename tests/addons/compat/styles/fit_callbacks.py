"""Keras's compile and fit under a strategy, with callbacks that save, stop and change the learning rate."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

folder = tempfile.mkdtemp()
rng = np.random.default_rng(0)
x_train = rng.normal(size=(320, 12)).astype("float32")
y_train = rng.normal(size=(12, 3)).astype("float32")
y_train = np.argmax(x_train @ y_train, axis=1)
x_val, y_val = x_train[256:], y_train[256:]
x_train, y_train = x_train[:256], y_train[:256]

strategy = tf.distribute.MirroredStrategy()
batch_size = 32
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(batch_size)
val_dataset = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(batch_size)


def get_compiled_model():
    inputs = keras.Input(shape=(12,))
    x = layers.Dense(32, activation="relu")(inputs)
    outputs = layers.Dense(3)(x)
    model = keras.Model(inputs, outputs)
    model.set_weights([rng.normal(size=w.shape).astype("float32") * 0.2 for w in model.get_weights()])
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def decay(epoch):
    if epoch < 3:
        return 1e-2
    return 1e-3


class PrintLR(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("\nLearning rate for epoch {} is {}".format(epoch + 1, self.model.optimizer.learning_rate.numpy()))


with strategy.scope():
    model = get_compiled_model()

checkpoint_path = os.path.join(folder, "ckpt-{epoch}.weights.h5")
callbacks = [
    keras.callbacks.ModelCheckpoint(filepath=checkpoint_path, save_weights_only=True, save_freq="epoch"),
    keras.callbacks.LearningRateScheduler(decay),
    keras.callbacks.EarlyStopping(monitor="val_loss", patience=3),
    keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2),
    keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
    PrintLR(),
]
history = model.fit(train_dataset, epochs=5, validation_data=val_dataset, callbacks=callbacks, verbose=2)
loss, accuracy = model.evaluate(val_dataset, verbose=0)
print("written:", sorted(os.listdir(folder))[:2])
print(json.dumps({"loss": float(loss), "train_loss": float(history.history["loss"][-1])}))
