"""Transformations that look at paths or at further arguments, against plain Optax on the same nests."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ShapeError, VariableError
from replicas import fraction, mirrored
from transformations import CASES, STEPS, Case, arguments, by_optax, classes, dictionary, is_weight

STRATEGIES: dict[str, tuple[Callable[[], jd.Strategy], Any]] = {
    "default": (jd.get_strategy, False),
    "two": (lambda: mirrored(2), False),
    "four in slices": (lambda: mirrored(4), True),
    "sharded": (lambda: jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0), False),
    "central": (lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"), False),
}


def variables_of(nest: Any) -> Any:
    return jax.tree.map(jd.Variable, nest)


def nnx_model() -> Any:
    from flax import nnx

    return nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.LayerNorm(3, rngs=nnx.Rngs(1)))


def nnx_params() -> Any:
    from flax import nnx

    return nnx.to_pure_dict(nnx.state(nnx_model(), nnx.Param))


def equinox_model() -> Any:
    import equinox as eqx

    return eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(0))


def equinox_params() -> Any:
    import equinox as eqx

    return eqx.filter(equinox_model(), eqx.is_inexact_array)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "dict": (dictionary, lambda: variables_of(dictionary())),
    "classes": (classes, lambda: variables_of(classes())),
    "NNX": (nnx_params, lambda: jd.Model(nnx_model())),
    "Equinox": (equinox_params, lambda: jd.Model(equinox_model())),
}
"""For each kind of nest the plain parameters, and what `jd.Optimizer` is given."""


@cache
def expected(name: str, kind: str) -> tuple[Any, Any]:
    return by_optax(CASES[name], KINDS[kind][0]())


def leaves(nest: Any) -> tuple[list[np.ndarray], Any]:
    """Arrays (of random keys their data) and structure of a nest of arrays or variables."""
    found, tree = jax.tree.flatten(nest, is_leaf=lambda leaf: isinstance(leaf, jd.Variable))
    return [leaf.numpy() if isinstance(leaf, jd.Variable) else data(leaf) for leaf in found], tree


def data(leaf: Any) -> np.ndarray:
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def same(ours: Any, plain: Any, tolerance: float) -> None:
    (got, tree), (wanted, plain_tree) = leaves(ours), leaves(plain)
    assert tree == plain_tree
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def train(name: str, kind: str, where: str, *, compiled: bool) -> None:
    case, (make, shard) = CASES[name], STRATEGIES[where]
    strategy = make()
    with strategy.scope():
        target = KINDS[kind][1]()
        optimizer = jd.Optimizer(case.make(KINDS[kind][0]()), target, shard_update=shard)

    def replica(rows: Any) -> None:
        params = jax.tree.map(lambda v: v.read_value(), optimizer.nest, is_leaf=lambda v: isinstance(v, jd.Variable))
        grads, extra = arguments(case, params, rows)
        optimizer.apply_gradients(grads, **extra)

    def step(rows: Any) -> None:
        strategy.run(replica, (rows,))

    call = jd.function(step) if compiled else step
    for rows in strategy.experimental_distribute_dataset([case.batch(number) for number in range(STEPS)]):
        call(rows)
    params, state = expected(name, kind)
    same(optimizer.nest, params, 2e-6)
    if "value_fn" not in case.gives:  # where a search has converged, its memory is of rounding errors
        same(optimizer.state, state, 1e-5)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", CASES)
def test_in_slices(name: str) -> None:
    train(name, "dict", "four in slices", compiled=True)


ROUND = [(name, list(KINDS)[i % 3 + 1], list(STRATEGIES)[i % 5], i % 4 < 3) for i, name in enumerate(CASES)]
"""Each transformation with another kind of nest, under another strategy; a quarter of them eagerly."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "where", "compiled"), ROUND)
def test_in_turn(name: str, kind: str, where: str, compiled: bool) -> None:
    train(name, kind, where, compiled=compiled)


# Users' nests.


def plain_steps(transform: Any, params: Any, grads: Any, steps: int) -> tuple[Any, Any]:
    """Parameters and state after steps of plain Optax by the same gradients."""
    params = jax.tree.map(jnp.asarray, params)
    with jax.numpy_dtype_promotion("standard"):
        state = transform.init(params)
        for _ in range(steps):
            updates, state = transform.update(grads, state, params)
            params = optax.apply_updates(params, updates)
    return params, state


def test_the_bias_is_left_to_itself() -> None:
    with mirrored(2).scope():
        net = {"kernel": jd.Variable(jnp.ones(2)), "bias": jd.Variable(jnp.ones(2))}
    optimizer = jd.Optimizer(optax.adamw(0.1, weight_decay=0.5, mask=is_weight), net)
    optimizer.apply_gradients({"kernel": jnp.zeros(2), "bias": jnp.zeros(2)})
    assert net["bias"].numpy().tolist() == [1, 1]
    np.testing.assert_allclose(net["kernel"].numpy(), 0.95)


def test_accumulated_gradients_and_loss_scales_keep_the_nest() -> None:
    strategy, params = mirrored(2), dictionary()
    with strategy.scope():
        net, scale = variables_of(params), jd.precision.DynamicLossScale()
    transform = optax.adamw(0.1, weight_decay=0.5, mask=is_weight)
    optimizer = jd.Optimizer(transform, net, accumulate_steps=2, loss_scale=scale, shard_update=True)
    grads = jax.tree.map(np.ones_like, params)
    for _ in range(4):
        jd.function(lambda: strategy.run(lambda: optimizer.apply_gradients(grads, "MEAN")))()
    same(net, plain_steps(transform, params, grads, 2)[0], 2e-6)
    assert set(optimizer.state[0].mu) == {"trunk", "head"}


@pytest.mark.parametrize("compiled", [False, True])
def test_lookahead_updates_slow_parameters_by_the_gradients_of_fast_ones(compiled: bool) -> None:
    strategy, first = mirrored(2), dictionary()
    with strategy.scope():
        params = optax.LookaheadParams(variables_of(first), variables_of(first))
    transform = optax.lookahead(optax.adamw(0.1, mask=is_weight), 3, 0.5)
    optimizer = jd.Optimizer(transform, params, wrt=params.fast, shard_update=True)
    grads = jax.tree.map(np.ones_like, first)

    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients(grads, "MEAN"))

    call = jd.function(step) if compiled else step
    for _ in range(4):
        call()
    plain, state = plain_steps(transform, optax.LookaheadParams.init_synced(first), grads, 4)
    same(params, plain, 2e-6)
    same(optimizer.state, state, 2e-6)
    with pytest.raises(ArgumentError, match=r"wrt holds \['stranger:0'\].*HINT"):
        jd.Optimizer(transform, params, wrt=[jd.Variable(1.0, name="stranger")])


def test_a_state_is_changed_through_its_variables_or_as_a_whole() -> None:
    with mirrored(2).scope():
        v = jd.Variable(jnp.ones(4))
    noisy = optax.add_noise(0.0, 0.5, jax.random.key(1))
    transform: Any = optax.chain(optax.inject_hyperparams(optax.sgd)(learning_rate=0.1), noisy)
    optimizer = jd.Optimizer(transform, {"v": v}, shard_update=True)
    optimizer.state[0].hyperparams["learning_rate"].assign(1.0)
    optimizer.apply_gradients({"v": jnp.ones(4)})
    assert v.numpy().tolist() == [0] * 4
    optimizer.state = optax.tree.set(optimizer.state, learning_rate=2.0)
    optimizer.apply_gradients({"v": jnp.ones(4)})
    assert v.numpy().tolist() == [-2] * 4
    optimizer.state = transform.init({"v": v.numpy()})
    optimizer.apply_gradients({"v": jnp.ones(4)})
    np.testing.assert_allclose(v.numpy(), -2.1)
    with pytest.raises(ShapeError, match=r"the state is not structured as the transformation's.*HINT"):
        optimizer.state = transform.init([v.numpy()])[0]


def test_the_parameters_to_evaluate_with() -> None:
    with mirrored(2).scope():
        net = variables_of(dictionary())
    optimizer = jd.Optimizer(contrib.schedule_free_sgd(0.1), net, shard_update=True)
    optimizer.apply_gradients(jax.tree.map(np.ones_like, dictionary()))
    state, params = jax.tree.map(np.asarray, (optimizer.state, net))
    with jax.numpy_dtype_promotion("standard"):
        ours = contrib.schedule_free_eval_params(optimizer.state, net)
        same(ours, contrib.schedule_free_eval_params(state, params), 1e-7)


# Further arguments.


def with_extra(strategy: jd.Strategy, transform: Any, fn: Callable[[Any, Any], Any], *, compiled: bool) -> Any:
    """`fn(optimizer, v)` on each replica, of one variable `v` that is one."""
    with strategy.scope():
        v = jd.Variable(jnp.ones(4), name="v")
    optimizer = jd.Optimizer(transform, {"v": v})

    def step() -> Any:
        return strategy.run(lambda: fn(optimizer, v))

    (jd.function(step) if compiled else step)()
    return v.numpy(), optimizer


def remembering() -> optax.GradientTransformationExtraArgs:
    """Keeps what it was given."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params
        return updates, {name: jnp.asarray(extra[name], jnp.float32) for name in state}

    return optax.GradientTransformationExtraArgs(
        lambda params: {"value": jnp.zeros(()), "other": jnp.zeros(())}, update
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("op", "value"), [("SUM", 1.0), ("MEAN", 0.5)])
def test_the_value_is_reduced_as_gradients_are_and_others_are_not(op: str, value: float, compiled: bool) -> None:
    def fn(optimizer: Any, v: Any) -> None:
        optimizer.apply_gradients({"v": v * np.float32(0)}, op, value=fraction(), other=jnp.float32(3))

    _, optimizer = with_extra(mirrored(2), remembering(), fn, compiled=compiled)
    assert {name: float(slot.read_value()) for name, slot in optimizer.state.items()} == {"value": value, "other": 3}


@pytest.mark.parametrize("compiled", [False, True])
def test_what_differs_between_replicas_is_refused(compiled: bool) -> None:
    def fn(optimizer: Any, v: Any) -> None:
        optimizer.apply_gradients({"v": v * np.float32(0)}, value=fraction(), other=fraction())

    with pytest.raises(VariableError, match="HINT"):
        with_extra(mirrored(2), remembering(), fn, compiled=compiled)


def test_further_arguments_that_cannot_be_given() -> None:
    v = jd.Variable(jnp.ones(4), name="v")
    with pytest.raises(ArgumentError, match=r"was given \['value'\]\. HINT: leave them out, or .*with_extra_args"):
        jd.Optimizer(optax.scale(-1.0), [v]).apply_gradients([v], value=1.0)
    many = jd.Optimizer(optax.sgd(1.0), [v], accumulate_steps=2)
    with pytest.raises(ArgumentError, match=r"accumulate_steps=2 .* not \['value'\]\. HINT"):
        many.apply_gradients([v], value=1.0)
    with pytest.raises(ArgumentError, match=r"not gradients for each example\. HINT"):
        many.apply_gradients([jnp.ones((3, 4))])
    with pytest.raises(ShapeError, match=r"parameter \[0\] of shape \(4,\) one of shape \(3, 4\)\. HINT.*dpsgd"):
        jd.Optimizer(optax.sgd(1.0), [v]).apply_gradients([jnp.ones((3, 4))])
    assert v.numpy().tolist() == [1] * 4


@pytest.mark.slow
@pytest.mark.parametrize("where", ["two", "central"])
def test_a_line_search_eagerly_and_on_uneven_batches(where: str) -> None:
    transform = optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(8))
    strategy = STRATEGIES[where][0]()
    with strategy.scope():
        net = variables_of(dictionary())
    optimizer = jd.Optimizer(transform, net)
    case, rows = Case(lambda _: transform, ("value", "grad", "value_fn")), np.arange(1, 4, dtype=np.float32)

    def replica(rows: Any) -> None:
        params = jax.tree.map(jnp.asarray, net, is_leaf=lambda v: isinstance(v, jd.Variable))
        grads, extra = arguments(case, params, rows)
        optimizer.apply_gradients(grads, **extra)

    (batch,) = strategy.experimental_distribute_dataset([rows])
    strategy.run(replica, (batch,))
    params, state = jax.tree.map(jnp.asarray, dictionary()), transform.init(dictionary())
    grads, extra = arguments(case, params, rows)
    with jax.numpy_dtype_promotion("standard"):
        updates, state = transform.update(grads, state, params, **extra)
    same(net, optax.apply_updates(params, updates), 2e-6)
    same(optimizer.state, state, 1e-5)
