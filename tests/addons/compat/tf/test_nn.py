"""Activations and losses, against their definitions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.errors import ShapeError

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 3.0]], np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_sparse_cross_entropy_picks_the_class() -> None:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0, 2], logits=LOGITS)
    np.testing.assert_allclose(losses, -log_softmax(LOGITS)[[0, 1], [0, 2]], rtol=1e-5)


def test_dense_cross_entropy_weighs_all_classes() -> None:
    labels = np.full((2, 3), 1 / 3, np.float32)
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=LOGITS)
    np.testing.assert_allclose(losses, -(labels * log_softmax(LOGITS)).sum(-1), rtol=1e-5)


@given(st.floats(-50, 50, width=32), st.floats(0, 1, width=32))
def test_sigmoid_cross_entropy_is_finite_and_right(logit: float, label: float) -> None:
    loss = float(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logit))
    exact = np.logaddexp(0, -np.float64(logit)) * label + np.logaddexp(0, np.float64(logit)) * (1 - label)
    np.testing.assert_allclose(loss, exact, rtol=1e-4, atol=1e-5)


def test_labels_of_another_shape_are_an_error() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 1\).*HINT"):
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[[0], [1]], logits=LOGITS)


def test_probabilities_add_up_to_one() -> None:
    np.testing.assert_allclose(tf.nn.softmax(LOGITS).sum(-1), [1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(tf.nn.log_softmax(LOGITS), log_softmax(LOGITS), rtol=1e-5)


def test_bias_is_added_to_the_last_axis() -> None:
    assert tf.nn.bias_add([[1.0, 2.0], [3.0, 4.0]], [10.0, 20.0]).tolist() == [[11.0, 22.0], [13.0, 24.0]]


def test_activations() -> None:
    x = [-2.0, 3.0]
    assert tf.nn.relu(x).tolist() == [0.0, 3.0]
    np.testing.assert_allclose(tf.nn.leaky_relu(x), [-0.4, 3.0], rtol=1e-6)
    np.testing.assert_allclose(tf.nn.elu(x), [np.expm1(-2.0), 3.0], rtol=1e-6)
    np.testing.assert_allclose(tf.nn.gelu(x), [-0.0455, 2.99595], rtol=1e-3)
    np.testing.assert_allclose(tf.nn.silu(x), np.array(x) / (1 + np.exp(-np.array(x))), rtol=1e-6)
    assert tf.nn.swish is tf.nn.silu


def test_l2_loss_is_half_the_sum_of_squares() -> None:
    assert float(tf.nn.l2_loss([3.0, 4.0])) == 12.5


def test_losses_are_scaled_for_the_replicas() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])

    def step() -> Any:
        average = tf.nn.compute_average_loss([1.0, 2.0], sample_weight=[1.0, 3.0])
        return average, tf.nn.scale_regularization_loss([4.0, 2.0])

    average, regularization = strategy.run(step)
    assert float(strategy.reduce("SUM", average, axis=None)) == 3.5
    assert float(strategy.reduce("SUM", regularization, axis=None)) == 6.0
