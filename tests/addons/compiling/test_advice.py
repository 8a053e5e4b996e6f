"""Advice on compiled steps, by this machine's compiler and the rates of a TPU."""

from pathlib import Path

import pytest

from jaxtribute._src.addons.compiling.targets import compile_script
from jaxtribute._src.addons.fitting.places import place

SCRIPT = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
import jaxtribute as jd

LAYERS, WIDTH, DTYPE, SCANNED, PRINTS = {settings}
strategy = jd.MirroredStrategy()
with strategy.scope():
    stack = jd.Variable(lambda: jnp.ones((LAYERS, WIDTH, WIDTH)), name="stack")
    optimizer = jd.Optimizer(optax.sgd(0.1), [stack])

def layer(x, weight):
    return jnp.tanh(x @ weight), None

def update(x):
    def loss():
        weights = stack.read_value().astype(DTYPE)
        hidden = x.astype(DTYPE)
        if SCANNED:
            hidden, _ = jax.lax.scan(layer, hidden, weights)
        else:
            for each in weights:
                hidden, _ = layer(hidden, each)
        if PRINTS:
            jax.debug.callback(lambda: None)
        return hidden.astype("float32").sum()

    value, gradients = jd.value_and_grad(loss, [stack])()
    optimizer.apply_gradients(gradients)

@jd.function
def step(batch):
    strategy.run(update, (batch,))

for batch in strategy.experimental_distribute_dataset([np.ones((4 * 2048, WIDTH), np.float32)]):
    step(batch)
"""


def advice(folder: Path, *settings: object) -> str:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("{settings}", repr(settings)))
    found = compile_script(script, (), place("v5e:2x2", None, asked=False), lambda _: None)
    assert "What would make it faster" in str(found) or not found.advice
    return "\n".join(found.advice)


@pytest.mark.parametrize(("width", "told"), [(200, "200 is no multiple of 128: 22%"), (384, ""), (96, "")])
def test_lengths_that_fill_no_tile(tmp_path: Path, width: int, told: str) -> None:
    found = advice(tmp_path, 3, width, "bfloat16", True, False)
    assert told in found
    assert ("is no multiple" in found) == bool(told)


def test_numbers_of_32_bits(tmp_path: Path) -> None:
    assert "100% of the products' operations are of 32-bit numbers" in advice(tmp_path, 2, 128, "float32", True, False)
    assert "32-bit" not in advice(tmp_path, 2, 128, "bfloat16", True, False)


@pytest.mark.parametrize(("layers", "scanned", "told"), [(6, False, True), (6, True, False), (3, False, False)])
def test_equal_layers(tmp_path: Path, layers: int, scanned: bool, told: bool) -> None:
    found = advice(tmp_path, layers, 128, "bfloat16", scanned, False)
    assert (f"{layers} layers seem to be equal" in found) == told


def test_what_waits(tmp_path: Path) -> None:
    found = advice(tmp_path, 2, 512, "bfloat16", True, True)
    assert "debug_callback in the step" in found
    assert "among 4, which nothing hides" in found
