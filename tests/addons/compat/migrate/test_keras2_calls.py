"""Calls of Keras 2 that `migrate --write` rewrites: what comes out is Python that Keras 3 takes."""

from __future__ import annotations

import pytest

from jaxtribute._src.addons.compat.migrate.scan import scan


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tf.keras.optimizers.Adam(lr=0.1, beta_1=0.9)", "tf.keras.optimizers.Adam(learning_rate=0.1, beta_1=0.9)"),
        (
            "tf.keras.backend.sum(tf.keras.backend.square(x), axis=-1)",
            "tf.keras.ops.sum(tf.keras.ops.square(x), axis=-1)",
        ),
        ("tf.keras.backend.flatten(x)", "tf.keras.ops.ravel(x)"),
        ("model.compile('sgd', 'mse', ['mae'])", "model.compile('sgd', 'mse', metrics=['mae'])"),
        (
            "model.compile('sgd', 'mse', ['mae'], [1.0])",
            "model.compile('sgd', 'mse', metrics=['mae'], loss_weights=[1.0])",
        ),
        ("o.get_scaled_loss(loss)", "loss"),
        ("print(optimizer.lr.numpy())", "print(np.asarray(optimizer.learning_rate))"),
        ("model.optimizer.lr = 0.1", "model.optimizer.learning_rate = 0.1"),
        ("model.optimizer.lr.assign(args.lr)", "model.optimizer.learning_rate.assign(args.lr)"),
    ],
)
def test_a_call_is_rewritten_and_nothing_is_left(before: str, after: str) -> None:
    report = scan(f"import tensorflow as tf\n{before}\n")
    assert not report.left()
    assert report.rewritten().splitlines()[-1] == after
    assert not scan(report.rewritten()).left()


@pytest.mark.parametrize("call", ["tf.keras.backend.sum(x, dims=1)", "tf.keras.backend.argmax(x)"])
def test_what_has_other_arguments_or_defaults_is_left_to_the_reader(call: str) -> None:
    report = scan(f"import tensorflow as tf\n{call}\n")
    assert report.left()
    assert call in report.rewritten()


GAN = """
import tensorflow as tf
class GAN(tf.keras.Model):
    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
"""
KERAS = "model = tf.keras.Sequential()\n"


@pytest.mark.parametrize(
    "program",
    [
        f"{GAN}GAN().compile(d, g, loss_fn)\n",
        "import numba\nnumba.compile(a, b, c)\n",
        "from models import gan\ngan.inner.compile(d, g, loss_fn)\n",
        "model.compile('sgd', 'mse', ['mae'], None, None, False, 8)\n",
    ],
)
def test_a_compile_that_may_be_another_is_left_alone_and_not_spoken_of(program: str) -> None:
    report = scan(program)
    assert ".compile(optimizer, loss, ...)" not in {finding.name for finding in report.findings}
    assert report.rewritten().splitlines()[-1] == program.splitlines()[-1]


@pytest.mark.parametrize(
    "program",
    [
        f"{GAN}{KERAS}model.compile('sgd', 'mse', ['mae'])\n",
        f"import tensorflow as tf\n{KERAS}model.compile('sgd', 'mse', ['mae'], None, None, False, 8)\n",
        GAN.replace("compile()", "compile(d_optimizer, loss_fn, ['mae'])"),
    ],
)
def test_a_compile_of_keras_that_is_not_rewritten_is_told(program: str) -> None:
    report = scan(program)
    assert ".compile(optimizer, loss, ...)" in {finding.name for finding in report.left()}
    assert report.rewritten().splitlines()[-1] == program.splitlines()[-1]
