"""Images: decoding a type, random flips and crops, brightness, resizing, standardization in `map`."""

import json

import numpy as np
import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE
IMG_SIZE = 16
rng = np.random.default_rng(2)
images = rng.integers(0, 255, size=(96, 12, 12, 3)).astype(np.uint8)
labels = (images.mean(axis=(1, 2, 3)) > 127).astype(np.int32)


def resize_and_rescale(image, label):
    image = tf.cast(image, tf.float32)
    image = tf.image.resize(image, [IMG_SIZE, IMG_SIZE])
    image = image / 255.0
    return image, label


def augment(image, label):
    image, label = resize_and_rescale(image, label)
    image = tf.image.resize_with_crop_or_pad(image, IMG_SIZE + 4, IMG_SIZE + 4)
    image = tf.image.random_crop(image, size=[IMG_SIZE, IMG_SIZE, 3])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=0.1)
    image = tf.image.random_contrast(image, 0.9, 1.1)
    image = tf.clip_by_value(image, 0, 1)
    return image, label


def prepare(image, label):
    image, label = resize_and_rescale(image, label)
    return tf.image.per_image_standardization(image), label


train_ds = (
    tf.data.Dataset.from_tensor_slices((images, labels))
    .shuffle(96)
    .map(augment, num_parallel_calls=AUTOTUNE)
    .batch(24)
    .prefetch(AUTOTUNE)
)
val_ds = tf.data.Dataset.from_tensor_slices((images, labels)).map(prepare, num_parallel_calls=AUTOTUNE).batch(24)

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((IMG_SIZE, IMG_SIZE, 3)),
            tf.keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(2),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(train_ds, epochs=2, verbose=0)
loss, _ = model.evaluate(val_ds, verbose=0)

first = next(iter(val_ds))[0]
gray = tf.image.rgb_to_grayscale(first)
flipped = tf.image.flip_left_right(first)
cropped = tf.image.central_crop(first, 0.5)
boxed = tf.image.convert_image_dtype(tf.constant(images[:2]), tf.float32)
print(
    json.dumps(
        {
            "sane_loss": float(loss),
            "standard": float(tf.reduce_sum(first[:, 2:5, 1:4] ** 2)),
            "gray": float(tf.reduce_mean(tf.abs(gray))),
            "flipped": float(tf.reduce_sum(flipped[:, :, 0])),
            "cropped": float(tf.reduce_sum(tf.abs(cropped))) / 1000,
            "converted": float(tf.reduce_mean(boxed)),
        }
    )
)
