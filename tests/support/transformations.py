"""Optax transformations that look at paths or at further arguments, kinds of nests to train with them, and plain Optax.

Numbers are as wide as JAX allows: in float64 (`jax_enable_x64`) the order of a sum makes differences of 1e-16, so that
what differs by more is wrong. `transformation_product` trains all of it under all strategies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

import jaxtribute as jd

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


def uncalled(nest: Any) -> Any:
    """A nest for Optax, which would call one that can be called, such as a module of Equinox."""
    return (lambda _: nest) if callable(nest) else nest


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

    @property
    def searches(self) -> bool:
        """True if it evaluates the loss at points of its own."""
        return "value_fn" in self.gives


def _case(transform: Any, *gives: str, **options: Any) -> Case:
    return Case(transform if callable(transform) else lambda _: transform, gives, **options)


_SEARCH = ("value", "grad", "value_fn")
CASES: dict[str, Case] = {
    "weight decay but for biases": _case(optax.adamw(0.1, weight_decay=0.5, mask=is_weight)),
    "a mask as a nest": _case(lambda params: optax.adamw(0.1, weight_decay=0.5, mask=uncalled(is_weight(params)))),
    "masked momentum": _case(optax.chain(optax.masked(optax.trace(0.9), is_weight), optax.scale(-0.1))),
    "frozen by a label": _case(optax.partition({"bias": optax.set_to_zero(), "weight": optax.adam(0.1)}, kinds)),
    "labels as a nest": _case(
        lambda params: optax.partition(
            {"bias": optax.sgd(0.1, 0.9), "weight": optax.adam(0.1)}, uncalled(kinds(params))
        )
    ),
    "freeze": _case(
        lambda params: optax.chain(optax.adam(0.1), optax.transforms.freeze(uncalled(by_path(is_bias)(params))))
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


def real() -> np.dtype[Any]:
    """The widest floating dtype that JAX has now."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def values(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(real())


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


def variables_of(nest: Any) -> Any:
    return jax.tree.map(jd.Variable, nest)


def nnx_model() -> Any:
    from flax import nnx

    dtype: Any = real()
    linear = nnx.Linear(3, 4, param_dtype=dtype, rngs=nnx.Rngs(0))
    return nnx.Sequential(linear, nnx.LayerNorm(4, param_dtype=dtype, rngs=nnx.Rngs(1)))


def nnx_params() -> Any:
    from flax import nnx

    return nnx.to_pure_dict(nnx.state(nnx_model(), nnx.Param))


def equinox_model() -> Any:
    import equinox as eqx

    return eqx.nn.MLP(3, 4, 4, 1, dtype=real(), key=jax.random.key(0))


def equinox_params() -> Any:
    import equinox as eqx

    return eqx.filter(equinox_model(), eqx.is_inexact_array)


def keras_params() -> Any:
    """A model's values by the parts of their paths, whose order is not that of the model's variables."""
    first = {"kernel": values(3, 4, seed=0), "bias": values(4, seed=1)}
    return {"net": {"first": first, "scaled": {"gamma": values(4, seed=2), "beta": values(4, seed=3)}}}


def keras_model() -> Any:
    from keras_models import keras

    dtype, params = str(real()), keras_params()
    dense, norm = (
        keras.layers.Dense(4, name="first", dtype=dtype),
        keras.layers.LayerNormalization(name="scaled", dtype=dtype),
    )
    model = keras.Sequential([keras.Input((3,), dtype=dtype), dense, norm], name="net")
    for variable in model.trainable_variables:
        _, layer, name = variable.path.split("/")
        variable.assign(params["net"][layer][name])
    return model


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "dict": (dictionary, lambda: variables_of(dictionary())),
    "classes": (classes, lambda: variables_of(classes())),
    "NNX": (nnx_params, lambda: jd.Model(nnx_model())),
    "Equinox": (equinox_params, lambda: jd.Model(equinox_model())),
    "Keras": (keras_params, keras_model),
}
"""For each kind of nest the plain parameters, and what `jd.Optimizer` is given."""


# Training.


def batch(step: int, rows: int, searches: bool = False) -> np.ndarray[Any, Any]:
    """The examples of a step; the same in each for what searches.

    Of a loss that changes L-BFGS learns curvatures of all signs: in plain Optax, too, a difference of 1e-16 in the
    first parameters becomes one of 1e-5 of the state within 20 steps.
    """
    seed = 1000 if searches else 1000 + step
    return np.random.default_rng(seed).normal(size=rows).astype(real()) + real().type(1)


@cache
def _point(place: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    # Of full rank: small singular values would make small differences large where Muon divides by them.
    return values(*shape, seed=place)


def row_loss(params: Any, row: Any) -> Any:
    """The loss of one example, a number: of every parameter the distance from a point of its own."""
    total = jnp.zeros((), real())
    for place, leaf in enumerate(jax.tree.leaves(params)):
        # Bounded from below, as line searches go far, and of so many curvatures that none ends within the steps: what
        # has converged is made of rounding errors.
        weights = 10 ** (-2 * np.linspace(0, 1, leaf.size, dtype=real())).reshape(leaf.shape)
        total += jnp.sum(
            weights * (leaf - row * _point(place, leaf.shape).astype(real())) ** 2 * (1 + jnp.cos(leaf / 8) / 2)
        )
    return total


@partial(jax.jit, static_argnames="size")
def mean_loss(params: Any, rows: Any, size: int) -> Any:
    """The sum over the rows at hand by the size of the whole batch."""
    return jnp.sum(jax.vmap(row_loss, (None, 0))(params, rows)) / real().type(size)


def row_gradients(params: Any, rows: Any) -> Any:
    """The gradients of each example."""
    return jax.vmap(jax.grad(row_loss), (None, 0))(params, rows)


def further(case: Case, value: Any, grads: Any, rows: Any, size: int) -> dict[str, Any]:
    """What one step gives an update of `case` besides gradients."""
    extra = {"value": value, "grad": grads, "value_fn": lambda params: mean_loss(params, rows, size)}
    return {name: extra[name] for name in case.gives}


def arguments(case: Case, params: Any, rows: Any, size: int) -> tuple[Any, dict[str, Any]]:
    """What one step gives an update of `case`: gradients, and further arguments.

    Args:
      params: the parameters.
      rows: the examples at hand.
      size: how many the whole batch has.
    """
    if case.each:
        return row_gradients(params, rows), {}
    value, grads = jax.value_and_grad(mean_loss)(params, rows, size)
    return grads, further(case, value, grads, rows, size)


def by_optax(case: Case, params: Any, rows: int, steps: int = STEPS) -> tuple[Any, Any]:
    """The parameters and the state after all steps of plain Optax."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = jax.tree.map(jnp.asarray, params)
        transform = case.make(params)
        state = transform.init(params)

        @jax.jit
        def step(params: Any, state: Any, rows: Any) -> Any:
            grads, extra = arguments(case, params, rows, rows.size)
            updates, state = transform.update(grads, state, params, **extra)
            return optax.apply_updates(params, updates), state

        for number in range(steps):
            params, state = step(params, state, batch(number, rows, case.searches))
    return params, state


def leaves(nest: Any) -> tuple[list[np.ndarray[Any, Any]], Any]:
    """Arrays (of random keys their data) and structure of a nest of arrays or variables."""
    # Made again by JAX, as hyperparameters that can be set are Optax's dictionary then.
    found, tree = jax.tree.flatten(jax.tree.map(lambda leaf: leaf, nest, is_leaf=is_variable), is_leaf=is_variable)
    return [leaf.numpy() if isinstance(leaf, jd.Variable) else _data(leaf) for leaf in found], tree


def is_variable(leaf: Any) -> bool:
    return isinstance(leaf, jd.Variable)


def _data(leaf: Any) -> np.ndarray[Any, Any]:
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def difference(ours: Any, plain: Any) -> float:
    """The largest difference between two nests, by the largest number of its array; infinite for other structures."""
    (got, tree), (wanted, plain_tree) = leaves(ours), leaves(plain)
    if tree != plain_tree:
        return np.inf
    return max(map(_difference, got, wanted), default=0.0)


def _difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf
    if np.array_equal(one, other, equal_nan=other.dtype.kind == "f"):
        return 0.0
    if other.dtype.kind != "f" or not np.isfinite(one).all():
        return np.inf
    return float(np.max(np.abs(one - other)) / np.max(np.abs(other), initial=np.finfo(other.dtype).tiny))
