"""The problems: initial weights, data and losses, the same for every library. Needs NumPy alone.

A loss is written once, over the few operations that each library's peer provides (`Operations`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

LEARNING_RATE, MOMENTUM = 0.01, 0.9
Array = np.ndarray[Any, Any]


class Operations(Protocol):
    """What losses are made of, in one library. `@`, `+`, `*` and the like are the arrays' own."""

    def relu(self, x: Any) -> Any: ...
    def tanh(self, x: Any) -> Any: ...
    def sqrt(self, x: Any) -> Any: ...
    def softmax(self, x: Any) -> Any: ...
    def log_softmax(self, x: Any) -> Any: ...
    def reshape(self, x: Any, shape: Sequence[int]) -> Any: ...
    def transpose(self, x: Any, axes: Sequence[int]) -> Any: ...
    def sum(self, x: Any) -> Any: ...
    def mean_last(self, x: Any) -> Any: ...  # the axis stays
    def as_float(self, x: Any) -> Any: ...
    def pick(self, rows: Any, columns: Any) -> Any: ...  # rows[i, columns[i]]
    def conv(self, x: Any, kernel: Any, stride: int) -> Any: ...  # NHWC, HWIO, 3x3 kernels, one pixel of padding


@dataclass(frozen=True)
class Problem:
    """What is trained.

    Attributes:
      name: for tables.
      params: initial weights.
      data: arrays of one batch; the first axis is split over the replicas.
      loss: the summed loss of a batch: `(operations, params, *data)`.
    """

    name: str
    params: list[Array]
    data: tuple[Array, Array]
    loss: Callable[..., Any]

    @property
    def batch(self) -> int:
        """Examples a step, over all replicas."""
        return len(self.data[0])

    def part(self, index: int, count: int) -> list[Array]:
        """The data of one of `count` replicas."""
        size = self.batch // count
        return [array[index * size : (index + 1) * size] for array in self.data]


def make(name: str, batch: int) -> Problem:
    """The problem of a name: `conv`, `transformer`, `transformer-12` (as many blocks), `small-100` (as many 4x4
    matrices), `vector-1000` (a row of that length an example, for collectives alone), or an MLP: `64-256-10`.
    """
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Array:
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    def zeros(size: int) -> Array:
        return np.zeros(size, np.float32)

    params: list[Array] = []
    if name == "conv":
        params = [weight(3, 3, 1, 16), zeros(16), weight(3, 3, 16, 32), zeros(32), weight(4 * 4 * 32, 10), zeros(10)]
        images = rng.normal(size=(batch, 8, 8, 1)).astype(np.float32)
        return Problem(f"conv net, batch {batch}", params, (images, _labels(rng, batch, 10)), conv_loss)
    if name.startswith("transformer"):
        width, blocks = _WIDTH, int(name.partition("-")[2] or 1)
        # What blocks add grows with their number: undivided, steps would be too long for twelve, and differences of
        # rounding between libraries ten times as large after three of them.
        part = np.float32(blocks**-0.5)
        for _ in range(blocks):
            params += [weight(width, 3 * width), part * weight(width, width), weight(width, 4 * width),
                       zeros(4 * width), part * weight(4 * width, width), zeros(width), np.ones(width, np.float32),
                       zeros(width), np.ones(width, np.float32), zeros(width)]  # fmt: skip
        data = tuple(rng.normal(size=(batch, _LENGTH, width)).astype(np.float32) for _ in range(2))
        return Problem(f"transformer block, batch {batch}", params, (data[0], data[1]), transformer_loss)
    if name.startswith("small-"):
        params = [rng.normal(size=(4, 4)).astype(np.float32) / 2 for _ in range(int(name[6:]))]
        images = rng.normal(size=(batch, 4)).astype(np.float32)
        return Problem(f"{name[6:]} 4x4, batch {batch}", params, (images, _labels(rng, batch, 2)), small_loss)
    if name.startswith("vector-"):
        rows = rng.normal(size=(batch, int(name[7:]))).astype(np.float32)
        return Problem(f"{name[7:]} floats", [], (rows, rows), small_loss)
    layers = [int(size) for size in name.split("-")]
    params, images, labels = mlp(layers, batch)
    return Problem(f"{name}, batch {batch}", params, (images, labels), mlp_loss)


def mlp(layers: Sequence[int], batch: int) -> tuple[list[Array], Array, Array]:
    """Initial parameters of an MLP (weights and biases in turn), inputs and labels."""
    rng = np.random.default_rng(0)
    params: list[Array] = []
    for rows, columns in itertools.pairwise(layers):
        params.append((rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32))
        params.append(np.zeros(columns, np.float32))
    images = rng.normal(size=(batch, layers[0])).astype(np.float32)
    return params, images, _labels(rng, batch, layers[-1])


def _labels(rng: np.random.Generator, batch: int, classes: int) -> Array:
    return rng.integers(0, classes, batch).astype(np.int32)


def mlp_loss(ops: Operations, params: Sequence[Any], images: Any, labels: Any) -> Any:
    """Summed cross-entropy of dense layers with ReLU."""
    hidden = images
    for weight, bias in zip(params[:-2:2], params[1:-2:2], strict=True):
        hidden = ops.relu(hidden @ weight + bias)
    return -ops.sum(ops.pick(ops.log_softmax(hidden @ params[-2] + params[-1]), labels))


def small_loss(ops: Operations, params: Sequence[Any], images: Any, labels: Any) -> Any:
    """A loss over many small matrices, whose gradients are cheap and whose number is what costs."""
    hidden = images
    for weight in params:
        hidden = ops.tanh(hidden @ weight)
    return ops.sum((hidden - ops.reshape(ops.as_float(labels), (-1, 1))) ** 2)


def conv_loss(ops: Operations, params: Sequence[Any], images: Any, labels: Any) -> Any:
    """Two convolutions, the second of stride 2, and a dense layer; summed cross-entropy."""
    hidden = ops.relu(ops.conv(images, params[0], 1) + params[1])
    hidden = ops.relu(ops.conv(hidden, params[2], 2) + params[3])
    logits = ops.reshape(hidden, (-1, 4 * 4 * 32)) @ params[4] + params[5]
    return -ops.sum(ops.pick(ops.log_softmax(logits), labels))


_WIDTH, _LENGTH, _HEADS = 128, 32, 4
_BLOCK = 10
"""Parameters of a block of a transformer."""


def transformer_loss(ops: Operations, params: Sequence[Any], x: Any, target: Any) -> Any:
    """Blocks of ten parameters each; summed squared error."""
    for first in range(0, len(params), _BLOCK):
        x = _block(ops, params[first : first + _BLOCK], x)
    return ops.sum((x - target) ** 2) / float(_LENGTH * _WIDTH)


def _block(ops: Operations, params: Sequence[Any], x: Any) -> Any:
    """One block: attention and an MLP, each behind a layer norm and added."""
    projections, out, first, first_bias, second, second_bias, scale_1, shift_1, scale_2, shift_2 = params
    depth = _WIDTH // _HEADS

    def normed(x: Any, scale: Any, shift: Any) -> Any:
        centred = x - ops.mean_last(x)
        return centred / ops.sqrt(ops.mean_last(centred * centred) + 1e-5) * scale + shift

    # (batch, length, 3 x heads x depth) -> (3, batch, heads, length, depth)
    split = ops.reshape(normed(x, scale_1, shift_1) @ projections, (-1, _LENGTH, 3, _HEADS, depth))
    split = ops.transpose(split, (2, 0, 3, 1, 4))
    query, key, value = split[0], split[1], split[2]
    weights = ops.softmax(query @ ops.transpose(key, (0, 1, 3, 2)) / float(np.sqrt(depth)))
    mixed = ops.reshape(ops.transpose(weights @ value, (0, 2, 1, 3)), (-1, _LENGTH, _WIDTH))
    x = x + mixed @ out
    return x + ops.relu(normed(x, scale_2, shift_2) @ first + first_bias) @ second + second_bias
