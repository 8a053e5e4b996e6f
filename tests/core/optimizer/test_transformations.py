"""Transformations that look at paths or at further arguments, against plain Optax on the same nests."""

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ShapeError, VariableError
from replicas import execute, fraction, mirrored
from transformation_product import PLACES, TOLERANCE, Place, failures, product
from transformations import CASES, KINDS, dictionary, difference, is_weight, variables_of

# Before any test, as Keras sets environment variables. Old libraries that Keras imports warn of newer ones.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("keras_models")


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Numbers whose rounding does not matter, as the order of sums differs between strategies."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


ROUND = [(name, list(KINDS)[i % 5], PLACES[(11 * i + 5) % len(PLACES)]) for i, name in enumerate(CASES)]
"""Each transformation with another kind of nest in another place; all of them: `python -m transformation_product`."""


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("name", "kind", "place"), ROUND, ids=lambda one: str(one).replace(", ", "-"))
def test_as_plain_optax(name: str, kind: str, place: Place) -> None:
    for _, _, _, outcome in product([kind], [place], [name]):
        if "belongs to an add-on that is not installed" in str(outcome):
            pytest.skip("an add-on is missing")
        assert not isinstance(outcome, str), outcome
        assert not failures({name: outcome})


def same(ours: Any, plain: Any) -> None:
    assert difference(ours, plain) < TOLERANCE


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
    same(net, plain_steps(transform, params, grads, 2)[0])
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
    same(params, plain)
    same(optimizer.state, state)
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
        same(ours, contrib.schedule_free_eval_params(state, params))


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
    with pytest.raises(ArgumentError, match=r"accumulate_steps=2 .* not grad, value_fn: .* HINT"):
        many.apply_gradients([v], value=1.0, grad=[v.numpy()], value_fn=lambda _: 1.0)
    with pytest.raises(ArgumentError, match=r"not gradients for each example: .* HINT"):
        many.apply_gradients([jnp.ones((3, 4))])
    with pytest.raises(ShapeError, match=r"parameter \[0\] of shape \(4,\) one of shape \(3, 4\)\. HINT.*dpsgd"):
        jd.Optimizer(optax.sgd(1.0), [v]).apply_gradients([jnp.ones((3, 4))])
    assert v.numpy().tolist() == [1] * 4


@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
@pytest.mark.parametrize(("op", "value"), [("MEAN", 2.0), ("SUM", 4.0)])
def test_a_cycle_adds_up_values_as_it_does_gradients(op: Any, value: float, executor: str) -> None:
    """Two calls with 1.5 and 2.5 as their losses, of which each of two replicas has a part."""
    strategy = mirrored(2)
    with strategy.scope():
        v = jd.Variable(jnp.ones(4), name="v")
    transform = optax.chain(optax.sgd(1.0), contrib.reduce_on_plateau(patience=3))
    optimizer = jd.Optimizer(transform, {"v": v}, accumulate_steps=2, accumulate_op=op)

    def replica(rows: Any) -> None:
        optimizer.apply_gradients({"v": jnp.ones(4) * jnp.sum(rows)}, value=jnp.sum(rows) / np.float32(4))

    batches = [np.arange(4, dtype=np.float32) + np.float32(step) for step in range(2)]
    for rows in strategy.experimental_distribute_dataset(batches):
        execute(executor, strategy, replica, rows)
    assert optimizer.state[1].best_value.numpy() == value
    assert v.numpy().tolist() == [1 - 4 * value] * 4
    assert not optimizer.variables[-2].numpy().any()  # the next cycle begins with nothing
    assert [one.name for one in optimizer.variables[-3:]] == [
        "v/accumulated:0",
        "accumulated_value:0",
        "accumulated_calls:0",
    ]


def test_a_cycle_keeps_no_sum_of_values_that_nobody_looks_at() -> None:
    v = jd.Variable(jnp.ones(4), name="v")
    optimizer = jd.Optimizer(optax.adam(0.1), [v], accumulate_steps=2)
    optimizer.apply_gradients([v.numpy()], value=1.0)
    assert [one.name for one in optimizer.variables[-2:]] == ["v/accumulated:0", "accumulated_calls:0"]


# Gradients and the nest that they are for.


def two_alike() -> tuple[jd.Variable, jd.Variable]:
    with mirrored(2).scope():
        return jd.Variable(jnp.zeros(2), name="w"), jd.Variable(jnp.zeros(2), name="b")


def test_gradients_are_matched_by_their_places() -> None:
    w, b = two_alike()
    one, two = jnp.ones(2), jnp.full(2, 2.0)
    nest: Any = {"w": w, "b": b}
    for given in ({"w": one, "b": two}, zip([one, two], [w, b], strict=True), [(two, b), (one, w)]):
        for variable in (w, b):
            variable.assign(jnp.zeros(2))
        jd.Optimizer(optax.sgd(1.0), nest).apply_gradients(given)
        assert (w.numpy()[0], b.numpy()[0]) == (-1, -2)
    for variable in (w, b):
        variable.assign(jnp.zeros(2))
    jd.Optimizer(optax.sgd(1.0), (w, [b])).apply_gradients([one, two])  # lists of any depth have one order
    assert (w.numpy()[0], b.numpy()[0]) == (-1, -2)


@pytest.mark.parametrize(
    ("variables", "gradients", "match"),
    [
        (lambda w, b: [w, b], {"w": 1, "b": 2}, r"in a nest \['b'\], \['w'\], the variables in another: \[0\], \[1\]"),
        (lambda w, b: {"w": w, "b": b}, {"w": 1, "c": 2}, r"\['c'\], \['w'\], the variables in another: \[b\], \[w\]"),
        (lambda w, b: {"w": w, "b": b}, [1, 2], "b:0, w:0 could each get another's gradient"),
        (lambda w, b: [{"w": w}, {"w": b}], {"x": [1, 2]}, "in another"),
    ],
)
def test_gradients_in_another_nest_are_refused(variables: Any, gradients: Any, match: str) -> None:
    w, b = two_alike()
    optimizer = jd.Optimizer(optax.sgd(1.0), variables(w, b))
    with pytest.raises(ArgumentError, match=match + ".*HINT"):
        optimizer.apply_gradients(jax.tree.map(lambda number: jnp.full(2, float(number)), gradients))
    assert not w.numpy().any()
    assert not b.numpy().any()


def test_sums_of_variables_without_names_have_names_of_their_own(tmp_path: Any) -> None:
    with mirrored(2).scope():
        net = [jd.Variable(jnp.zeros(2)), jd.Variable(jnp.zeros(2))]
    optimizer = jd.Optimizer(optax.sgd(1.0), net, accumulate_steps=2)
    optimizer.apply_gradients([jnp.ones(2), jnp.full(2, 2.0)])
    path = jd.Checkpoint(net=net, optimizer=optimizer).save(tmp_path / "half", block=True)
    optimizer.apply_gradients([jnp.ones(2), jnp.ones(2)])
    jd.Checkpoint(net=net, optimizer=optimizer).restore(path)
    optimizer.apply_gradients([jnp.ones(2), jnp.full(2, 2.0)])
    assert [one.numpy().tolist() for one in net] == [[-1, -1], [-2, -2]]
