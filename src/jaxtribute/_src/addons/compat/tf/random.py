"""A little of `tf.random`. The numbers are not TensorFlow's: no other library has its generators."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.addons.compat.tf.tensors import ShapeLike, TensorLike
from jaxtribute.errors import TraceError
from jaxtribute.extending import Context
from jaxtribute.typing import DType

__all__ = [
    "normal",
    "set_seed",
    "stateless_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]


class _State:
    """The generator of the stateful functions."""

    generator = np.random.default_rng()


def set_seed(seed: int) -> None:
    """Seeds `normal`, `uniform` and `truncated_normal`, and `shuffle` without a seed. Source: `tf.random.set_seed`."""
    _State.generator = np.random.default_rng(seed)


def normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DType = np.float32,
    seed: int | None = None,
) -> jax.Array:
    """Returns normally distributed numbers, outside compiled functions.

    Raises:
      TraceError: called while a function is traced, which would make the numbers constants of the program.

    Source: `tf.random.normal`.
    """
    return jnp.asarray(_generator("normal", seed).normal(mean, stddev, shape), dtype)


def uniform(
    shape: ShapeLike,
    minval: TensorLike = 0,
    maxval: TensorLike = None,
    dtype: DType = np.float32,
    seed: int | None = None,
) -> jax.Array:
    """Returns evenly distributed numbers of `[minval, maxval)`; by default `[0, 1)`. Otherwise as `normal`.

    Source: `tf.random.uniform`.
    """
    generator = _generator("uniform", seed)
    if np.issubdtype(np.dtype(dtype), np.integer):
        return jnp.asarray(generator.integers(minval, maxval, shape), dtype)
    return jnp.asarray(generator.uniform(minval, 1.0 if maxval is None else maxval, shape), dtype)


def truncated_normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DType = np.float32,
    seed: int | None = None,
) -> jax.Array:
    """Returns normally distributed numbers within two standard deviations. Otherwise as `normal`.

    Source: `tf.random.truncated_normal`.
    """
    # NumPy has no such numbers; from its generator comes the key, so that `set_seed` holds for these, too.
    key = jax.random.key(int(_generator("truncated_normal", seed).integers(2**31)))
    return jnp.asarray(mean + stddev * jax.random.truncated_normal(key, -2.0, 2.0, tuple(shape)), dtype)


def stateless_normal(
    shape: ShapeLike, seed: Sequence[int], mean: TensorLike = 0.0, stddev: TensorLike = 1.0, dtype: DType = np.float32
) -> jax.Array:
    """Returns the normally distributed numbers that belong to a seed of two integers, in compiled functions too.

    Source: `tf.random.stateless_normal`.
    """
    return mean + stddev * jax.random.normal(_key(seed), tuple(shape), dtype)


def stateless_uniform(
    shape: ShapeLike, seed: Sequence[int], minval: TensorLike = 0, maxval: TensorLike = None, dtype: DType = np.float32
) -> jax.Array:
    """Returns the evenly distributed numbers that belong to a seed of two integers, in compiled functions too.

    Source: `tf.random.stateless_uniform`.
    """
    if np.issubdtype(np.dtype(dtype), np.integer):
        return jax.random.randint(_key(seed), tuple(shape), minval, maxval, dtype)
    return jax.random.uniform(_key(seed), tuple(shape), dtype, minval, 1.0 if maxval is None else maxval)


def _key(seed: Sequence[int]) -> jax.Array:
    # A key of JAX is made of one number; the second one is folded in.
    first, second = seed
    return jax.random.fold_in(jax.random.key(first), second)


def _generator(name: str, seed: int | None) -> np.random.Generator:
    if Context.current().executor.traced:
        raise TraceError(
            f"tf.random.{name} was called while a function is traced: the same numbers would come on every call. "
            f"HINT: pass a seed that changes to tf.random.stateless_{'uniform' if name == 'uniform' else 'normal'}, or "
            "a key to jax.random."
        )
    return _State.generator if seed is None else np.random.default_rng(seed)


def data_seed() -> int:
    """A seed for a dataset's shuffle that gives none."""
    return int(_State.generator.integers(2**31))
