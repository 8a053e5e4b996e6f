"""A little of `tf.random`. The numbers are not TensorFlow's: no other library has its generators."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Strategy, Variable, get_replica_context, get_strategy
from jaxtribute._src.addons.compat.tf.conversion import ShapeLike, TensorLike, as_shape
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
    """The generator of the stateful functions, and for compiled functions a seed and a counter for each strategy."""

    generator = np.random.default_rng()
    counters: weakref.WeakKeyDictionary[Strategy, Variable] = weakref.WeakKeyDictionary()  # noqa: RUF012 (one for the process)


def set_seed(seed: int) -> None:
    """Seeds `normal`, `uniform` and `truncated_normal`, `shuffle` without a seed, and Keras's layers.

    The order of arrays in `fit` comes from NumPy: `np.random.seed`, or `tf.keras.utils.set_random_seed` for all.

    Source: `tf.random.set_seed`.
    """
    # Python's generator gives Keras the seeds of initial weights and of dropout.
    random.seed(seed)
    _State.generator = np.random.default_rng(seed)
    for counter in _State.counters.values():
        counter.assign(_start())


def _start() -> Any:
    return np.array([_State.generator.integers(2**31), 0], np.uint32)


def normal(
    shape: ShapeLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: DType = np.float32,
    seed: int | None = None,
) -> jax.Array:
    """Returns normally distributed numbers: new ones on each call of a compiled function, other ones on each replica.

    Source: `tf.random.normal`.
    """
    shape = as_shape(shape)
    if any(map(jax.export.is_symbolic_dim, shape)):  # a Keras model is being made, of which only shapes are asked
        return jnp.zeros(shape, dtype)
    if _traced():
        return mean + stddev * jax.random.normal(_next_key(seed), shape, dtype)
    return jnp.asarray(_generator(seed).normal(mean, stddev, shape), dtype)


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
    shape = as_shape(shape)
    if any(map(jax.export.is_symbolic_dim, shape)):  # a Keras model is being made, of which only shapes are asked
        return jnp.zeros(shape, dtype)
    integers = np.issubdtype(np.dtype(dtype), np.integer)
    if _traced():
        draw = jax.random.randint if integers else jax.random.uniform
        most = 1.0 if maxval is None else maxval
        return draw(_next_key(seed), shape, minval=minval, maxval=most, dtype=dtype)
    if integers:
        return jnp.asarray(_generator(seed).integers(minval, maxval, shape), dtype)
    return jnp.asarray(_generator(seed).uniform(minval, 1.0 if maxval is None else maxval, shape), dtype)


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
    shape = as_shape(shape)
    if any(map(jax.export.is_symbolic_dim, shape)):  # a Keras model is being made, of which only shapes are asked
        return jnp.zeros(shape, dtype)
    # NumPy has no such numbers; from its generator comes the key, so that `set_seed` holds for these, too.
    key = _next_key(seed) if _traced() else jax.random.key(int(_generator(seed).integers(2**31)))
    return jnp.asarray(mean + stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape), dtype)


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


def _traced() -> bool:
    return Context.current().executor.traced


def _generator(seed: int | None) -> np.random.Generator:
    return _State.generator if seed is None else np.random.default_rng(seed)


def _next_key(seed: int | None) -> jax.Array:
    """A key for one draw in a compiled function: the counter is a variable, which each call moves on."""
    strategy = get_strategy()
    counter = _State.counters.get(strategy)
    if counter is None:
        counter = Variable(_start(), trainable=False, aggregation="only_first_replica", name="random_counter")
        _State.counters[strategy] = counter
    state = counter.read_value()
    counter.assign(state + jnp.array([0, 1], jnp.uint32))
    key = jax.random.fold_in(jax.random.key(state[0] if seed is None else seed), state[1])
    replica = get_replica_context()
    return key if replica is None else replica.fold_in(key)


def host_generator(name: str, seed: int | None) -> np.random.Generator:
    """The generator of a function of datasets.

    Raises:
      TraceError: called while a function is traced, which would make its choice a constant of the program.
    """
    if _traced():
        raise TraceError(
            f"tf.{name} was called while a function is traced: the same choice would be made on every call. "
            "HINT: call it in a dataset's map, or use a layer of Keras, such as keras.layers.RandomFlip."
        )
    return _generator(seed)


def data_seed() -> int:
    """A seed for a dataset's shuffle that gives none."""
    return int(_State.generator.integers(2**31))
