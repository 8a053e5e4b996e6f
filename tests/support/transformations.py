"""Optax transformations that look at paths or at further arguments, nests to train with them, and plain Optax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

STEPS = 20


def by_path(rule: Callable[[str, Any], Any]) -> Callable[[Any], Any]:
    """A function of a nest that gives what `rule` says of each path and leaf."""

    def apply(nest: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, leaf: rule(jax.tree_util.keystr(path), leaf), nest)

    return apply


def is_bias(path: str, _: Any = None) -> bool:
    return "bias" in path


is_weight = by_path(lambda path, _: not is_bias(path))
kinds = by_path(lambda path, _: "bias" if is_bias(path) else "weight")


def rates_by_path() -> optax.GradientTransformation:
    """A learning rate for each path."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        return by_path(lambda path, one: one * np.float32(-0.05 if is_bias(path) else -0.2))(updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def clipped_subtrees() -> optax.GradientTransformation:
    """Clips what belongs together by its own norm: all biases, all others."""
    clip: dict[Any, Any] = {"bias": optax.clip_by_global_norm(0.3), "weight": optax.clip_by_global_norm(0.1)}
    return optax.chain(optax.partition(clip, kinds), optax.sgd(0.5))


def rows_last(params: Any) -> Any:
    """Dimensions for Muon: matrices are transposed, and what is no matrix is left to Adam."""
    return jax.tree.map(lambda leaf: contrib.MuonDimensionNumbers(1, 0) if jnp.ndim(leaf) == 2 else None, params)


@dataclass(frozen=True)
class Case:
    """A transformation and what its update is given.

    Attributes:
      make: makes it, for parameters of a nest.
      gives: names of further arguments: `value`, `grad`, `value_fn`.
      each: whether it takes gradients of each example.
      separable: whether parameter servers can compute it, each for its own shards.
    """

    make: Callable[[Any], Any]
    gives: tuple[str, ...] = ()
    each: bool = False
    separable: bool = True

    def batch(self, step: int) -> np.ndarray[Any, Any]:
        """The examples of a step: of four replicas the last gets none. A line search gets the same in each step."""
        searches = "value_fn" in self.gives
        # A search whose points differ in their last bits ends elsewhere, unless it converges.
        rows, seed = (8, 0) if searches else (6, step)
        return np.random.default_rng(1000 + seed).normal(size=rows).astype(np.float32) + np.float32(1)


def _case(transform: Any, *gives: str, **options: Any) -> Case:
    return Case(transform if callable(transform) else lambda _: transform, gives, **options)


_SEARCH = ("value", "grad", "value_fn")
CASES: dict[str, Case] = {
    "weight decay but for biases": _case(optax.adamw(0.1, weight_decay=0.5, mask=is_weight)),
    "a mask as a nest": _case(lambda params: optax.adamw(0.1, weight_decay=0.5, mask=is_weight(params))),
    "masked momentum": _case(optax.chain(optax.masked(optax.trace(0.9), is_weight), optax.scale(-0.1))),
    "frozen by a label": _case(optax.partition({"bias": optax.set_to_zero(), "weight": optax.adam(0.1)}, kinds)),
    "labels as a nest": _case(
        lambda params: optax.partition({"bias": optax.sgd(0.1, 0.9), "weight": optax.adam(0.1)}, kinds(params))
    ),
    "freeze": _case(
        lambda params: optax.chain(optax.adam(0.1), optax.transforms.freeze(by_path(is_bias)(params)))
    ),
    "learning rates by path": _case(rates_by_path()),
    "norms of subtrees": _case(clipped_subtrees(), separable=False),
    "inject_hyperparams": _case(
        optax.inject_hyperparams(optax.adamw, static_args="mask")(
            learning_rate=optax.linear_schedule(0.1, 0.0, 15), weight_decay=0.1, mask=is_weight
        )
    ),
    "MultiSteps": _case(optax.MultiSteps(optax.adamw(0.1, mask=is_weight), 3).gradient_transformation()),
    "apply_if_finite": _case(optax.apply_if_finite(optax.adamw(0.1, mask=is_weight), 2), separable=False),
    "adafactor": _case(
        optax.adafactor(0.1, min_dim_size_to_factor=2, weight_decay_rate=0.1, weight_decay_mask=is_weight),
        separable=False,
    ),
    "lamb": _case(optax.lamb(0.1, weight_decay=0.1, mask=is_weight), separable=False),
    "lars": _case(
        optax.lars(0.5, weight_decay=0.1, weight_decay_mask=is_weight, trust_ratio_mask=is_weight),
        separable=False,
    ),
    "muon": _case(contrib.muon(0.1, muon_weight_dimension_numbers=rows_last, weight_decay=0.1), separable=False),
    "schedule_free": _case(contrib.schedule_free_adamw(0.1, weight_decay=0.1)),
    "prodigy": _case(contrib.prodigy(1.0), separable=False),
    "mechanize": _case(contrib.mechanize(optax.sgd(1.0)), separable=False),
    "reduce_on_plateau": _case(
        optax.chain(optax.adamw(0.2, mask=is_weight), contrib.reduce_on_plateau(patience=2, rtol=0.2)), "value"
    ),
    "momo": _case(contrib.momo(1.0), "value"),
    "polyak": _case(optax.polyak_sgd(1.0), "value"),
    "line search": _case(optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(8)), *_SEARCH),
    "lbfgs": _case(optax.lbfgs(memory_size=4), *_SEARCH),
    "dpsgd": _case(
        lambda _: optax.chain(
            contrib.differentially_private_aggregate(0.5, 0.3, jax.random.key(3)), optax.sgd(0.1, momentum=0.9)
        ),
        each=True,
    ),
}  # fmt: skip


# Nests.


class Layer(NamedTuple):
    """A layer, with a part that is not trained."""

    kernel: Any
    bias: Any
    frozen: Any = None


@jax.tree_util.register_dataclass
@dataclass
class Net:
    """A model of one's own."""

    layers: list[Layer | None]
    norm: dict[str, Any]


def values(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def dictionary() -> Any:
    """Keys whose order in memory is not the sorted one; two parameters of one shape."""
    return {
        "trunk": {"kernel": values(4, 3, seed=0), "bias": values(3, seed=1)},
        "head": {"kernel": values(3, 2, seed=2), "bias": values(3, seed=3)},
    }


def classes() -> Any:
    """A dataclass of lists of named tuples and dictionaries, with None for what is not trained."""
    layers = [Layer(values(4, 3, seed=0), values(3, seed=1)), Layer(None, values(5, seed=2)), None]
    return Net(layers, {"scale": values(3, seed=3), "bias": values(3, seed=4)})


# Training.


def row_loss(params: Any, row: Any) -> Any:
    """The loss of one example, a number: of every parameter the distance from a point of its own."""
    total = jnp.float32(0)
    for place, leaf in enumerate(jax.tree.leaves(params)):
        # Of full rank: small singular values would make small differences large where Muon divides by them.
        point = np.random.default_rng(place).normal(size=leaf.shape).astype(np.float32)
        total += jnp.sum((leaf - row * point) ** 2 * jnp.cos(leaf / 8))
    return total


def mean_loss(params: Any, rows: Any, size: int) -> Any:
    """The sum over the rows at hand by the size of the whole batch."""
    return jnp.sum(jax.vmap(row_loss, (None, 0))(params, rows)) / np.float32(size)


def arguments(case: Case, params: Any, rows: Any) -> tuple[Any, dict[str, Any]]:
    """What one step gives an update of `case`: gradients, and further arguments."""
    if case.each:
        return jax.vmap(jax.grad(row_loss), (None, 0))(params, rows), {}
    size = case.batch(0).size
    value, grads = jax.value_and_grad(mean_loss)(params, rows, size)
    extra = {"value": value, "grad": grads, "value_fn": lambda params: mean_loss(params, rows, size)}
    return grads, {name: extra[name] for name in case.gives}


def by_optax(case: Case, params: Any, steps: int = STEPS) -> tuple[Any, Any]:
    """The parameters and the state after all steps of plain Optax."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = jax.tree.map(jnp.asarray, params)
        transform = case.make(params)
        state = transform.init(params)

        @jax.jit
        def step(params: Any, state: Any, rows: Any) -> Any:
            grads, extra = arguments(case, params, rows)
            updates, state = transform.update(grads, state, params, **extra)
            return optax.apply_updates(params, updates), state

        for number in range(steps):
            params, state = step(params, state, case.batch(number))
    return params, state
