"""A GAN: two models, two tapes in one step."""

import json
import time

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

BATCH_SIZE, noise_dim = 32, 4
rng = np.random.default_rng(15)
points = rng.normal(size=(256, 2)).astype("float32") * 0.3 + 2.0
train_dataset = tf.data.Dataset.from_tensor_slices(points).shuffle(256).batch(BATCH_SIZE)


def make_generator_model():
    model = tf.keras.Sequential()
    model.add(layers.Dense(16, use_bias=False, input_shape=(noise_dim,)))
    model.add(layers.BatchNormalization())
    model.add(layers.LeakyReLU())
    model.add(layers.Dense(2))
    assert model.output_shape == (None, 2)
    return model


def make_discriminator_model():
    model = tf.keras.Sequential()
    model.add(layers.Dense(16, input_shape=[2]))
    model.add(layers.LeakyReLU())
    model.add(layers.Dropout(0.3))
    model.add(layers.Dense(1))
    return model


cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True)


def discriminator_loss(real_output, fake_output):
    real_loss = cross_entropy(tf.ones_like(real_output), real_output)
    fake_loss = cross_entropy(tf.zeros_like(fake_output), fake_output)
    return real_loss + fake_loss


def generator_loss(fake_output):
    return cross_entropy(tf.ones_like(fake_output), fake_output)


generator, discriminator = make_generator_model(), make_discriminator_model()
generator_optimizer = tf.keras.optimizers.Adam(1e-2)
discriminator_optimizer = tf.keras.optimizers.Adam(1e-2)


@tf.function
def train_step(images):
    noise = tf.random.normal([BATCH_SIZE, noise_dim])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated_images = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated_images, training=True)
        gen_loss = generator_loss(fake_output)
        disc_loss = discriminator_loss(real_output, fake_output)
    gradients_of_generator = gen_tape.gradient(gen_loss, generator.trainable_variables)
    gradients_of_discriminator = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients_of_generator, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(gradients_of_discriminator, discriminator.trainable_variables))
    return gen_loss, disc_loss


for epoch in range(10):
    start = time.time()
    for image_batch in train_dataset:
        gen_loss, disc_loss = train_step(image_batch)
    print("Time for epoch {} is {} sec".format(epoch + 1, time.time() - start))
made = generator(tf.random.normal([64, noise_dim]), training=False)
print(json.dumps({"sane_loss": float(disc_loss), "sane_mean": abs(float(tf.reduce_mean(made)) - 2.0)}))
