"""`jd.precision`: mixed precision by policies, and loss scales, under every strategy.

Parameters and slots stay in full precision; a step computes in half precision on casts of them, which the gradients
pass back through. Where half precision is float16, a loss scale keeps small gradients from becoming zero.

Source: JMP (`jmp.Policy`, `jmp.DynamicLossScale`); `tf.keras.mixed_precision`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxtribute import Variable, VariableAggregation, value_and_grad
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import settings
from jaxtribute.typing import Array, DType, Leaf, Nest

P = ParamSpec("P")
R = TypeVar("R")

_SHORT = {"half": "float16", "full": "float32", "f16": "float16", "f32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Policy:
    """Floating dtypes of parameters, computation and results.

    Attributes:
      params: of parameters and slots, which small updates must not be lost in.
      compute: of the computation.
      output: of what a step hands on, such as logits for the loss.

    Examples:
      >>> policy = jd.precision.Policy.parse("compute=bfloat16")
      >>> policy.to_compute({"w": jnp.ones(2)})["w"].dtype
      dtype(bfloat16)

    Source: `jmp.Policy`.
    """

    params: Any = jnp.float32
    compute: Any = jnp.float32
    output: Any = jnp.float32

    @classmethod
    def parse(cls, text: str) -> Policy:
        """The policy that a text describes.

        Args:
          text: such as `"params=float32,compute=bfloat16,output=float32"`, where what is left out is float32; or one
            dtype for all three. `f32`, `bf16`, `f16`, `full` and `half` are understood.

        Raises:
          ArgumentError: another name than the three, or a dtype that is not floating.

        Source: `jmp.get_policy`.
        """
        parts = [part.strip() for part in text.split(",")]
        names = [one.name for one in fields(cls)]
        if len(parts) == 1 and "=" not in text:
            return cls(*[_dtype(text, text)] * len(names))
        given: dict[str, Any] = {}
        for part in parts:
            name, _, dtype = (word.strip() for word in part.partition("="))
            name = "params" if name == "param" else name
            if name not in names:
                raise ArgumentError(
                    f"{part!r} in the precision policy {text!r}. HINT: write it as "
                    "'params=float32,compute=bfloat16,output=float32'."
                )
            given[name] = _dtype(dtype, text)
        return cls(**given)

    def to_params(self, nest: Nest) -> Any:
        """The nest, variables as their values, with floating arrays in the parameters' dtype."""
        return cast_floating(nest, self.params)

    def to_compute(self, nest: Nest) -> Any:
        """The nest, variables as their values, with floating arrays in the computation's dtype."""
        return cast_floating(nest, self.compute)

    def to_output(self, nest: Nest) -> Any:
        """The nest, variables as their values, with floating arrays in the results' dtype."""
        return cast_floating(nest, self.output)

    def wrap(self, fn: Callable[P, R]) -> Callable[P, R]:
        """`fn` of its arguments in the computation's dtype, its results in the results' dtype."""

        @functools.wraps(fn)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            cast_args, cast_kwargs = self.to_compute((args, kwargs))
            return self.to_output(fn(*cast_args, **cast_kwargs))  # pyright: ignore[reportCallIssue]

        return wrapped

    def __str__(self) -> str:
        return ",".join(f"{one.name}={np.dtype(getattr(self, one.name)).name}" for one in fields(self))


def cast_floating(nest: Nest, dtype: DType) -> Any:
    """A nest with its floating arrays cast to `dtype`; other leaves stay, and variables become their values.

    Examples:
      >>> nest = jd.precision.cast_floating({"w": jnp.ones(2), "ids": jnp.arange(2)}, jnp.bfloat16)
      >>> nest["w"].dtype, nest["ids"].dtype
      (dtype(bfloat16), dtype('int32'))
    """

    def one(leaf: Leaf) -> Any:
        # Numbers of Python have no dtype: they take that of what they meet.
        floating = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf).astype(dtype) if floating else leaf

    return jax.tree.map(one, nest)


class LossScale(ABC):
    """A factor of the loss that keeps the gradients of float16 computation within its range.

    Make it in the strategy's scope and hand it to `jd.Optimizer(..., loss_scale=)`, which leaves out updates by
    gradients that are not finite and adjusts the scale.

    Examples:
      >>> w = jd.Variable(1.0)
      >>> scale = jd.precision.StaticLossScale(1024.0)
      >>> optimizer = jd.Optimizer(optax.sgd(0.1), [w], loss_scale=scale)
      >>> value, gradients = scale.value_and_grad(lambda: w * w, [w])()
      >>> optimizer.apply_gradients(gradients)  # unscaled, and left out if they are not finite
    """

    @property
    @abstractmethod
    def value(self) -> jax.Array:
        """The factor, a float32 scalar."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its state, which the optimizer keeps among its own variables."""
        return ()

    def adjusted(self, values: Sequence[Any], finite: Array) -> list[Any]:
        """The new values of `variables` after a step whose gradients were finite, or not."""
        return list(values)

    def scale(self, nest: Nest) -> Any:
        """The nest's floating arrays times the factor, in their own dtypes."""
        return _times(nest, self.value)

    def unscale(self, nest: Nest) -> Any:
        """The nest's floating arrays divided by the factor, in their own dtypes."""
        return _times(nest, 1 / self.value)

    def value_and_grad(
        self, fn: Callable[..., Any], variables: Nest, *, has_aux: bool = False, memory: int | str | None = None
    ) -> Callable[..., Any]:
        """Differentiates like `jd.value_and_grad`, with a scaled loss; the results are unscaled.

        Args:
          fn: a function that returns a scalar, or `(scalar, aux)` with `has_aux`.
          variables: a variable or a nest of them.
          has_aux: whether `fn` returns auxiliary data besides.
          memory: how much the backward pass may keep; see `jd.value_and_grad`.

        Returns:
          A function of `fn`'s arguments that returns `(value, gradients)`, or `((value, aux), gradients)`.
        """

        def scaled(*args: Any, **kwargs: Any) -> Any:
            result = fn(*args, **kwargs)
            value = jnp.asarray(result[0] if has_aux else result)
            # A scaled loss of half precision would soon be infinite.
            return _full(value) * self.value, result

        def call(*args: Any, **kwargs: Any) -> Any:
            (_, result), grads = value_and_grad(scaled, variables, has_aux=True, memory=memory)(*args, **kwargs)
            return result, self.unscale(grads)

        return call


class StaticLossScale(LossScale):
    """A factor that stays what it is.

    Args:
      value: the factor; powers of two round nothing.

    Examples:
      >>> float(jd.precision.StaticLossScale(1024.0).value)
      1024.0

    Source: `jmp.StaticLossScale`.
    """

    def __init__(self, value: float = 2.0**15) -> None:
        self._value = _positive("value", value)

    @property
    def value(self) -> jax.Array:
        return jnp.float32(self._value)

    def __repr__(self) -> str:
        return f"StaticLossScale({self._value:g})"


class DynamicLossScale(LossScale):
    """A factor that shrinks after a step whose gradients are not finite, and grows after many that are.

    Args:
      initial: the factor to begin with.
      period: after how many finite steps in a row it grows.
      factor: by how much it grows and shrinks.
      least: how far it shrinks.

    Raises:
      ArgumentError: a number that is not positive, or a `factor` of 1 or less.

    Examples:
      >>> float(jd.precision.DynamicLossScale(2.0**10, period=100).value)
      1024.0

    Source: `jmp.DynamicLossScale`, `tf.keras.mixed_precision.LossScaleOptimizer`.
    """

    def __init__(
        self, initial: float = 2.0**15, *, period: int = 2000, factor: float = 2.0, least: float = 1.0
    ) -> None:
        self._period, self._factor = settings.whole("period", period, 1), _positive("factor", factor)
        self._least = _positive("least", least)
        if self._factor <= 1:
            raise ArgumentError(f"factor is {factor}. HINT: pass more than 1, such as 2.")
        # All replicas judge the same reduced gradients, and so write the same: nothing has to be added up.
        first = VariableAggregation.ONLY_FIRST_REPLICA
        start = np.float32(_positive("initial", initial))
        self._scale = Variable(start, trainable=False, name="loss_scale", aggregation=first)
        self._good = Variable(np.int32(0), trainable=False, name="loss_scale/finite_steps", aggregation=first)

    @property
    def value(self) -> jax.Array:
        return self._scale.read_value()

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The factor, and how many steps in a row were finite."""
        return self._scale, self._good

    def adjusted(self, values: Sequence[Any], finite: Array) -> list[Any]:
        """The new factor and number of finite steps in a row."""
        scale, good = (jnp.asarray(value) for value in values)
        full = good + np.int32(1) >= self._period
        grown = scale * np.float32(self._factor)
        # Never infinite: no division would bring the factor back.
        larger = lax.select(full & jnp.isfinite(grown), grown, scale)
        smaller = jnp.maximum(scale / np.float32(self._factor), np.float32(self._least))
        counted = lax.select(full, jnp.zeros_like(good), good + np.int32(1))
        return [lax.select(finite, larger, smaller), lax.select(finite, counted, jnp.zeros_like(good))]

    def __repr__(self) -> str:
        return f"DynamicLossScale(period={self._period}, factor={self._factor:g}, least={self._least:g})"


def _times(nest: Nest, factor: Array) -> Any:
    def one(leaf: Leaf) -> Any:
        array = jnp.asarray(leaf)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return leaf
        # In float16 the factor itself may be too large.
        return (_full(array) * factor).astype(array.dtype)

    return jax.tree.map(one, nest)


def _full(array: jax.Array) -> jax.Array:
    """The array in single precision at least."""
    return array.astype(jnp.float32) if array.dtype.itemsize < np.dtype(np.float32).itemsize else array


def _dtype(name: str, text: str) -> Any:
    try:
        dtype = jnp.dtype(_SHORT.get(name, name))
    except TypeError:
        dtype = None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise ArgumentError(f"{name!r} in the precision policy {text!r} is no floating dtype. HINT: e.g. 'bfloat16'.")
    return dtype


def _positive(name: str, value: float) -> float:
    return settings.amount(name, value, above=True)
