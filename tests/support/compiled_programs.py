"""Steps whose compiled programs are looked at: each makes its variables under a strategy and calls its step once."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd

BATCH = 64
Made = tuple[list[jd.Variable], Callable[..., Any], list[Any]]


def _matrix(*shape: int) -> jd.Variable:
    return jd.Variable(lambda: jnp.ones(shape) / np.prod(shape[:-1]), name=f"matrix_{shape}")


def digits() -> Made:
    """A perceptron of 64, 256 and 10 units."""
    first, shift, second, last = _matrix(64, 256), _matrix(256), _matrix(256, 10), _matrix(10)

    def loss(images: Any, labels: Any) -> Any:
        units = jax.nn.silu(images @ first + jnp.expand_dims(shift.read_value(), 0))
        logits = units @ second + jnp.expand_dims(last.read_value(), 0)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    return [first, shift, second, last], loss, [np.zeros((BATCH, 64), np.float32), np.zeros(BATCH, np.int32)]


def wide() -> Made:
    """A perceptron whose matrices of 1 MiB and more are updated in slices."""
    layers = [_matrix(256, 1024), _matrix(1024, 1024), _matrix(1024, 256)]

    def loss(x: Any) -> Any:
        for layer in layers:
            x = jnp.tanh(x @ layer)
        return (x * x).sum(axis=-1)

    return list(layers), loss, [np.zeros((BATCH, 256), np.float32)]


def odd_rows() -> Made:
    """A perceptron whose first matrix has rows that cannot be divided, and whose second has pieces within tiles."""
    first, second = _matrix(1001, 1024), _matrix(1024, 1000)

    def loss(x: Any) -> Any:
        return (jnp.tanh(jnp.tanh(x @ first) @ second) ** 2).sum(axis=-1)

    return [first, second], loss, [np.zeros((BATCH, 1001), np.float32)]


def conv_net() -> Made:
    """Two convolutions and a dense layer."""
    first, second, dense = _matrix(3, 3, 1, 16), _matrix(3, 3, 16, 32), _matrix(4 * 4 * 32, 10)

    def loss(images: Any, labels: Any) -> Any:
        def conv(x: Any, kernel: Any, stride: int) -> Any:
            layout = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)

        hidden = jax.nn.relu(conv(images, first.read_value(), 1))
        hidden = jax.nn.relu(conv(hidden, second.read_value(), 2))
        logits = hidden.reshape(len(images), -1) @ dense
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels)

    images = np.zeros((BATCH, 8, 8, 1), np.float32)
    return [first, second, dense], loss, [images, np.zeros(BATCH, np.int32)]


def embeddings() -> Made:
    """Rows of a table of 50,000 words, and a dense layer."""
    table, dense = _matrix(50_000, 64), _matrix(64, 8)

    def loss(words: Any) -> Any:
        return ((jnp.take(table.read_value(), words, axis=0).mean(axis=1) @ dense) ** 2).sum(axis=-1)

    return [table, dense], loss, [np.zeros((BATCH, 12), np.int32)]


def transformer() -> Made:
    """One block of attention and a perceptron, of width 256."""
    width, heads = 256, 4
    projections, mixed, up, down = (_matrix(width, size) for size in (3 * width, width, 4 * width, 4 * width))

    def loss(x: Any) -> Any:
        examples, length, _ = x.shape
        each = (x @ projections).reshape(examples, length, 3, heads, width // heads)
        x = x + jax.nn.dot_product_attention(each[:, :, 0], each[:, :, 1], each[:, :, 2]).reshape(x.shape) @ mixed
        x = x + jax.nn.relu(x @ up) @ down.read_value().T
        return (x * x).sum(axis=(1, 2))

    return [projections, mixed, up, down], loss, [np.zeros((BATCH, 128, width), np.float32)]


WIDTH, LENGTH, VOCABULARY, LAYERS = 512, 128, 4096, 8


def gpt(*, scanned: bool, batch: int = BATCH, width: int = WIDTH) -> Made:
    """Eight blocks of a language model and its head, with stacked weights; the blocks in a scan, or one by one."""
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    stacks = [_matrix(LAYERS, *shape) for shape in shapes]
    table, head = _matrix(VOCABULARY, width), _matrix(width, VOCABULARY)

    def block(x: Any, weights: Any) -> tuple[Any, None]:
        projections, mixed, up, down = weights
        each = (x @ projections).reshape(*x.shape[:2], 3, 8, width // 8)
        attended = jax.nn.dot_product_attention(each[:, :, 0], each[:, :, 1], each[:, :, 2], is_causal=True)
        x = x + attended.reshape(x.shape) @ mixed
        return x + jax.nn.relu(x @ up) @ down, None

    def loss(tokens: Any) -> Any:
        x = table.read_value()[tokens]
        weights = [stack.read_value() for stack in stacks]
        if scanned:
            x, _ = jax.lax.scan(block, x, weights)
        else:
            for layer in range(LAYERS):
                x, _ = block(x, [stack[layer] for stack in weights])
        return optax.softmax_cross_entropy_with_integer_labels(x @ head, tokens).mean(axis=-1)

    return [*stacks, table, head], loss, [np.zeros((batch, LENGTH), np.int32)]


def operations_of_gpt(batch: int = BATCH, width: int = WIDTH) -> int:
    """Six for each weight that multiplies and each token: two forward, four backward."""
    return 6 * (LAYERS * 12 * width * width + width * VOCABULARY) * batch * LENGTH


PROGRAMS: dict[str, Callable[[], Made]] = {
    "digits": digits,
    "wide": wide,
    "odd_rows": odd_rows,
    "conv_net": conv_net,
    "embeddings": embeddings,
    "transformer": transformer,
}


def train(strategy: jd.Strategy, make: Callable[[], Made]) -> None:
    """Makes a program's variables and a step with Adam, and calls the step with one batch."""
    with strategy.scope():
        variables, loss, data = make()
        optimizer = jd.Optimizer(optax.adam(1e-3), variables)

    def update(*batch: Any) -> Any:
        def mean() -> Any:
            return jd.nn.compute_average_loss(loss(*batch), global_batch_size=BATCH)

        value, gradients = jd.value_and_grad(mean, variables)()
        optimizer.apply_gradients(gradients)
        return value

    @jd.function
    def step(*batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(update, args=batch), axis=None)

    for batch in strategy.experimental_distribute_dataset([tuple(data)]):
        step(*batch)


def planned(topology: str, most: int, folder: Path) -> str:
    """What `jaxtribute plan` prints of the digits step under `MirroredStrategy`, from a script in `folder`."""
    script = folder / "train.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import jaxtribute as jd\nfrom compiled_programs import PROGRAMS, train\n"
        'train(jd.MirroredStrategy(), PROGRAMS["digits"])\n'
    )
    command = [sys.executable, "-m", "jaxtribute.cli", "plan", "--topology", topology, "--most", str(most), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
