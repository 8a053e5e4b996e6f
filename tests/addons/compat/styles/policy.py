"""A policy gradient with a small environment in NumPy, and TensorFlow where it computes."""

import json
import numpy as np
import tensorflow as tf


class Walk:
    def __init__(self, n=5):
        self.n = n

    def reset(self):
        self.at, self.t = self.n // 2, 0
        return self._obs()

    def _obs(self):
        return np.eye(self.n, dtype=np.float32)[self.at]

    def step(self, action):
        self.at = int(np.clip(self.at + (1 if action == 1 else -1), 0, self.n - 1))
        self.t += 1
        return self._obs(), float(self.at == self.n - 1), self.at == self.n - 1 or self.t >= 10


class ActorCritic(tf.keras.Model):
    def __init__(self, num_actions, hidden):
        super().__init__()
        self.common = tf.keras.layers.Dense(
            hidden, activation="tanh", kernel_initializer=tf.keras.initializers.Constant(0.1)
        )
        self.actor = tf.keras.layers.Dense(num_actions, kernel_initializer="zeros")
        self.critic = tf.keras.layers.Dense(1, kernel_initializer="zeros")

    def call(self, inputs):
        x = self.common(inputs)
        return self.actor(x), self.critic(x)


def get_expected_return(rewards, gamma=0.9, standardize=False):
    rewards = tf.cast(rewards[::-1], dtype=tf.float32)
    returns, total = [], tf.constant(0.0)
    for r in rewards:
        total = r + gamma * total
        returns.append(total)
    returns = tf.stack(returns)[::-1]
    if standardize:
        returns = (returns - tf.math.reduce_mean(returns)) / (tf.math.reduce_std(returns) + 1e-8)
    return returns


huber = tf.keras.losses.Huber(reduction="sum")
rng = np.random.default_rng(8)
env = Walk()
model = ActorCritic(2, 8)
optimizer = tf.keras.optimizers.Adam(learning_rate=0.05)
rewards_seen = []
for episode in range(8):
    state, states, actions, rewards, done = env.reset(), [], [], [], False
    while not done:
        logits, _ = model(tf.expand_dims(tf.constant(state), 0))
        probs = tf.nn.softmax(logits).numpy()[0]
        action = int(rng.uniform() < probs[1])
        states.append(state)
        actions.append(action)
        state, reward, done = env.step(action)
        rewards.append(reward)
    returns = tf.expand_dims(get_expected_return(rewards), 1)
    with tf.GradientTape() as tape:
        logits, values = model(tf.stack(states))
        log_probs = tf.math.log(
            tf.gather_nd(
                tf.nn.softmax(logits), tf.stack([tf.range(len(actions)), tf.constant(actions, tf.int32)], axis=1)
            )
        )
        advantage = returns - values
        actor_loss = -tf.math.reduce_sum(tf.expand_dims(log_probs, 1) * tf.stop_gradient(advantage))
        loss = actor_loss + huber(values, returns)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    rewards_seen.append(sum(rewards))
print(json.dumps({"loss": float(loss), "reward": float(np.mean(rewards_seen)), "value": float(tf.squeeze(values[0]))}))
