"""`jd.Optimizer` against plain Optax on one device."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.collectives import cross_replica
from jaxtribute._src.core.values.policies.sharded import ShardedPolicy
from jaxtribute.errors import ArgumentError
from ragged import UNEVEN, deal, rows
from replicas import each_executor, fraction, here, ident, mirrored, one_device, variable

FOUR = mirrored(4)
SHAPES: list[tuple[tuple[int, ...], Any]] = [((7, 3), np.float32), ((2, 1, 3), jnp.bfloat16)]
"""Sizes that four replicas do not divide; two dtypes."""
MORE_SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((4, 6), np.float32), ((3,), np.float32), ((), np.float32), ((1, 1), np.float32),
    ((2, 3, 5), jnp.bfloat16), ((2, 1, 3, 2), np.float32),
]  # fmt: skip
MATRICES = [((4, 6), np.float32), ((7, 3), np.float32)]
LABELS = ["0", "1"]

TRANSFORMS: dict[str, optax.GradientTransformation] = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.01),
    "adamw": optax.adamw(0.01, weight_decay=0.1),
    "clip": optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01)),
    "clip by value": optax.chain(optax.clip(0.1), optax.sgd(0.1, momentum=0.9)),
    "lamb": optax.lamb(0.01),
    "lars": optax.lars(0.01),
    "rmsprop": optax.rmsprop(0.01, momentum=0.9, centered=True),
    "lion": optax.lion(0.01),
    "MultiSteps": optax.MultiSteps(optax.adam(0.01), 2).gradient_transformation(),
    "novograd": optax.novograd(0.01),
    "schedule": optax.adam(optax.cosine_decay_schedule(0.1, 5)),
    "masked": optax.masked(optax.adam(0.01), [True, False]),
    "partition": optax.partition({"0": optax.adam(0.01), "1": optax.sgd(0.1, momentum=0.5)}, LABELS),
    "apply_if_finite": optax.apply_if_finite(optax.adam(0.01), 2),
    "inject_hyperparams": optax.inject_hyperparams(optax.adam)(learning_rate=0.01),
    "ema": optax.chain(optax.ema(0.9), optax.scale(-0.1)),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.sgd(0.1)),
}
MATRIX_TRANSFORMS: dict[str, optax.GradientTransformation] = {
    "adafactor": optax.adafactor(0.01, min_dim_size_to_factor=2),
    "muon": optax.contrib.muon(0.01),
    "agc": optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1, momentum=0.9)),
}


def initial(shapes: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(np.random.default_rng(i).normal(size=shape), dtype) for i, (shape, dtype) in enumerate(shapes)]


def gradients(shapes: Sequence[Any], step: int) -> list[Any]:
    return [
        jnp.asarray(np.random.default_rng(100 * step + i).normal(size=shape), dtype)
        for i, (shape, dtype) in enumerate(shapes)
    ]


def optax_steps(transform: Any, shapes: Sequence[Any], steps: int) -> list[Any]:
    """What Optax makes of the parameters."""
    params = initial(shapes)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state = transform.init(params)
        update = jax.jit(transform.update)
        for step in range(steps):
            updates, state = update(gradients(shapes, step), state, params)
            params = jax.tree.leaves(optax.apply_updates(params, updates))
    return params


def check(variables: Sequence[jd.Variable], expected: Sequence[Any]) -> None:
    for v, value in zip(variables, expected, strict=True):
        assert v.dtype == value.dtype
        tolerance = 1e-2 if v.dtype == jnp.bfloat16 else 1e-5
        np.testing.assert_allclose(
            v.numpy().astype(np.float32), np.asarray(value, np.float32), rtol=tolerance, atol=tolerance
        )


def run_steps(
    strategy: jd.Strategy, transform: Any, shapes: Sequence[Any], *, shard: Any, compiled: bool, steps: int = 3
) -> tuple[list[jd.Variable], jd.Optimizer]:
    """The same with different gradients on the replicas, that add up to those."""
    variables = [variable(strategy, value) for value in initial(shapes)]
    optimizer = jd.Optimizer(transform, variables, shard_update=shard)
    signs = [(-1.0) ** i for i in range(1, strategy.num_replicas_in_sync)]
    shares = [1 - sum(signs), *signs]

    def fn(grads: Any) -> None:
        share = jnp.asarray(shares)[ident()]
        optimizer.apply_gradients([grad * share.astype(grad.dtype) for grad in grads])

    def step(grads: Any) -> None:
        strategy.run(fn, (grads,))

    call = jd.function(step) if compiled else step
    for number in range(steps):
        call(gradients(shapes, number))
    return variables, optimizer


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformations_with_a_sharded_update(name: str) -> None:
    variables, optimizer = run_steps(FOUR, TRANSFORMS[name], SHAPES, shard=True, compiled=True)
    check(variables, optax_steps(TRANSFORMS[name], SHAPES, 3))
    sliced = [slot.shape for slot in optimizer.variables if isinstance(slot.policy, ShardedPolicy)]
    assert bool(sliced) == (name not in {"sgd", "noise"})
    assert all(np.prod(shape) >= 4 for shape in sliced)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", MATRIX_TRANSFORMS)
@pytest.mark.parametrize("shard", [False, True])
def test_transformations_of_matrices(name: str, shard: bool) -> None:
    variables, _ = run_steps(FOUR, MATRIX_TRANSFORMS[name], MATRICES, shard=shard, compiled=True)
    check(variables, optax_steps(MATRIX_TRANSFORMS[name], MATRICES, 3))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["clip", "apply_if_finite", "noise"])
def test_transformations_without_sharding(name: str) -> None:
    variables, _ = run_steps(FOUR, TRANSFORMS[name], SHAPES, shard=False, compiled=True)
    check(variables, optax_steps(TRANSFORMS[name], SHAPES, 3))


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_shapes_of_any_rank(shard: bool) -> None:
    variables, _ = run_steps(FOUR, TRANSFORMS["adam"], MORE_SHAPES, shard=shard, compiled=True, steps=2)
    check(variables, optax_steps(TRANSFORMS["adam"], MORE_SHAPES, 2))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("replicas", "shard"), [(1, True), (2, True), (3, True), (3, False)])
def test_any_number_of_replicas(replicas: int, shard: bool) -> None:
    strategy = one_device(1) if replicas == 1 else mirrored(replicas)
    variables, _ = run_steps(strategy, TRANSFORMS["clip"], SHAPES, shard=shard, compiled=True, steps=2)
    check(variables, optax_steps(TRANSFORMS["clip"], SHAPES, 2))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("replicas", [1, 3])
def test_lockstep_with_a_sharded_update(replicas: int) -> None:
    strategy = one_device(1) if replicas == 1 else mirrored(replicas)
    variables, _ = run_steps(strategy, TRANSFORMS["adamw"], SHAPES, shard=True, compiled=False)
    check(variables, optax_steps(TRANSFORMS["adamw"], SHAPES, 3))


def test_without_any_strategy() -> None:
    variables = [jd.Variable(value) for value in initial(SHAPES)]
    optimizer = jd.Optimizer(TRANSFORMS["adam"], variables)
    for number in range(3):
        (jd.function(optimizer.apply_gradients) if number else optimizer.apply_gradients)(gradients(SHAPES, number))
    check(variables, optax_steps(TRANSFORMS["adam"], SHAPES, 3))


# One small optimizer for everything that does not depend on the transformation.


class Pair:
    """A matrix `a` and a vector `b` that gradients of ones and twos have moved by `0.1`."""

    def __init__(self, *, shard: Any = False, transform: Any = None, strategy: jd.Strategy = FOUR) -> None:
        self.a = variable(strategy, np.zeros((3, 5), np.float32), name="a")
        self.b = variable(strategy, np.zeros(2, np.float32), name="b")
        self.optimizer = jd.Optimizer(transform or optax.sgd(0.1, momentum=0.9), [self.a, self.b], shard_update=shard)

    def moved(self) -> tuple[float, float]:
        """How far, in gradients: (1, 2) after one step."""
        a, b = (np.unique(np.round(v.numpy() / -0.1, 4)) for v in (self.a, self.b))
        return float(a.item()), float(b.item())


def ones() -> list[Any]:
    return [jnp.ones((3, 5)), jnp.full((2,), 2.0)]


@cache
def per_replica_ones() -> list[Any]:
    return [FOUR.run(lambda one=one: one * (fraction() * 0 + 1)) for one in ones()]


FORMS: dict[str, Callable[[Pair], Any]] = {
    "list": lambda p: ones(),
    "tuple": lambda p: tuple(ones()),
    "host arrays": lambda p: [np.asarray(one) for one in ones()],
    "zip": lambda p: zip(ones(), [p.a, p.b], strict=True),
    "pairs": lambda p: [(ones()[0], p.a), (ones()[1], p.b)],
    "reversed pairs": lambda p: [(ones()[1], p.b), (ones()[0], p.a)],
    "pairs as lists": lambda p: ([ones()[1], p.b], [ones()[0], p.a]),
    "lists in lists": lambda p: [[ones()[0]], (ones()[1],)],
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_gradients(form: str) -> None:
    pair = Pair()
    pair.optimizer.apply_gradients(FORMS[form](pair))
    assert pair.moved() == (1, 2)


def test_variables_as_a_nest() -> None:
    a, b = variable(FOUR, 0.0), variable(FOUR, 0.0)
    optimizer = jd.Optimizer(optax.sgd(1.0), {"b": [b], "a": a})
    assert optimizer.trainable_variables == (a, b)
    optimizer.apply_gradients({"a": jnp.float32(1), "b": [jnp.float32(2)]})
    assert (float(a), float(b)) == (-1, -2)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(("op", "factor"), [("SUM", 4), (jd.ReduceOp.MEAN, 1)])
@each_executor
def test_reductions(executor: str, op: Any, factor: int, shard: bool) -> None:
    pair = Pair(shard=shard)

    def step() -> None:
        FOUR.run(lambda: pair.optimizer.apply_gradients([one * (fraction() * 0 + 1) for one in ones()], op))

    (jd.function(step) if executor == "compiled" else step)()
    assert pair.moved() == (factor, 2 * factor)


@pytest.mark.parametrize("shard", [False, True])
@each_executor
def test_gradients_that_are_reduced_already(executor: str, shard: bool) -> None:
    pair = Pair(shard=shard)

    def fn() -> None:
        totals = here().all_reduce("SUM", ones())
        pair.optimizer.apply_gradients([total / 4 for total in totals], reduce_op=None)

    def step() -> None:
        FOUR.run(fn)

    (jd.function(step) if executor == "compiled" else step)()
    assert pair.moved() == (1, 2)


def test_gradients_that_differ_are_not_reduced_already() -> None:
    pair = Pair()
    with pytest.raises(jd.errors.VariableError, match="different value on each of 4 replicas"):
        jd.function(
            lambda: FOUR.run(lambda: pair.optimizer.apply_gradients([g * fraction() for g in ones()], reduce_op=None))
        )()
    with pytest.raises(jd.errors.ArgumentError, match=r"reduce_op=None .*differs between 4 replicas\. HINT"):
        pair.optimizer.apply_gradients(per_replica_ones(), reduce_op=None)
    assert pair.moved() == (0, 0)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("scope", "compiled", "shard"), [(False, False, True), (False, True, True), (True, True, False)]
)
def test_in_cross_replica_context(scope: bool, compiled: bool, shard: bool) -> None:
    pair = Pair(shard=shard)

    def apply(grads: Any, op: Any) -> None:
        if scope:
            with FOUR.scope():
                pair.optimizer.apply_gradients(grads, op)
        else:
            pair.optimizer.apply_gradients(grads, op)

    call = jd.function(apply) if compiled else apply
    call(per_replica_ones(), "SUM")
    assert pair.moved() == (4, 8)
    other = Pair(shard=shard)
    pair = other
    call = jd.function(apply) if compiled else apply
    call(per_replica_ones(), "MEAN")
    call([FOUR.place(one) for one in ones()], "SUM")  # mirrored gradients are taken as they are
    assert pair.moved() == pytest.approx((1 + 1.9, 2 + 3.8))


@pytest.mark.parametrize("shard", [False, True])
@each_executor
def test_in_merge_call(executor: str, shard: bool) -> None:
    pair = Pair(shard=shard)

    def merged(strategy: jd.Strategy, a: Any, b: Any) -> None:
        pair.optimizer.apply_gradients([a, b], "MEAN")

    def step() -> None:
        FOUR.run(lambda: here().merge_call(merged, [one * (fraction() * 0 + 1) for one in ones()]))

    (jd.function(step) if executor == "compiled" else step)()
    assert pair.moved() == (1, 2)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("executor", "shard"), [("compiled", False), ("compiled", True), ("lockstep", True)])
def test_uneven_batches_are_one_devices(executor: str, shard: bool) -> None:
    x, start = rows(5, 3), rows(3, 4, seed=2)
    v = variable(FOUR, start)
    optimizer = jd.Optimizer(optax.adam(0.1), [v], shard_update=shard)

    def loss(w: Any, x: Any) -> Any:
        return (jnp.tanh(x @ w) ** 2).sum() / 5

    def fn(x: Any) -> None:
        _, grads = jd.value_and_grad(lambda: loss(v.read_value(), x), [v])()
        optimizer.apply_gradients(grads)

    def step(x: Any) -> None:
        FOUR.run(fn, (x,))

    call = jd.function(step) if executor == "compiled" else step
    for _ in range(2):
        call(deal(FOUR, x, UNEVEN))
    params: Any = jnp.asarray(start)
    transform = optax.adam(0.1)
    with jax.numpy_dtype_promotion("standard"):
        state = transform.init(params)
        for _ in range(2):
            updates, state = transform.update(jax.grad(loss)(params, x), state, params)
            params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(v.numpy(), np.asarray(params), rtol=1e-5, atol=1e-6)


@pytest.mark.quick_cases(1)
@each_executor
def test_means_over_uneven_batches_leave_idle_replicas_out(executor: str) -> None:
    for shard in (False, True):
        pair = Pair(shard=shard)

        def fn(x: Any, pair: Pair = pair) -> None:
            nan = x.mean() * 0 + 1
            pair.optimizer.apply_gradients([one * nan for one in ones()], "MEAN")

        def step(x: Any, fn: Any = fn) -> None:
            FOUR.run(fn, (x,))

        (jd.function(step) if executor == "compiled" else step)(deal(FOUR, rows(5, 2), UNEVEN))
        assert pair.moved() == (1, 2)


def test_hyperparameters_are_variables() -> None:
    transform = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    pair = Pair(transform=transform)
    rate = pair.optimizer.state.hyperparams["learning_rate"]
    assert isinstance(rate, jd.Variable)
    step = jd.function(lambda: FOUR.run(lambda: pair.optimizer.apply_gradients(ones(), "MEAN")))
    step()
    rate.assign(0.2)
    step()
    assert pair.moved() == (3, 6)


@pytest.mark.parametrize("shard", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_hyperparameters_are_set_as_in_optax(compiled: bool, shard: bool) -> None:
    transform = optax.chain(optax.clip(10.0), optax.inject_hyperparams(optax.sgd)(learning_rate=0.1))
    pair = Pair(transform=transform, shard=shard)
    fn = lambda: FOUR.run(lambda: pair.optimizer.apply_gradients(ones(), "MEAN"))  # noqa: E731
    step = jd.function(fn) if compiled else fn
    step()
    pair.optimizer.state[1].hyperparams["learning_rate"] = 0.2
    step()
    assert pair.moved() == (3, 6)
    pair.optimizer.state[1].hyperparams.update(learning_rate=0.0)
    step()
    assert pair.moved() == (3, 6)
    # What is made of the state is Optax's own, and may be assigned.
    pair.optimizer.state = optax.tree.set(pair.optimizer.state, learning_rate=jnp.asarray(0.3))
    pair.optimizer.state = pair.optimizer.state
    step()
    assert pair.moved() == (6, 12)
    hyperparameters = pair.optimizer.state[1].hyperparams
    with pytest.raises(ArgumentError, match=r"no hyperparameter 'rate'. HINT: they are \['learning_rate'\]"):
        hyperparameters["rate"] = 1.0
    with pytest.raises(ArgumentError, match="cannot be deleted"):
        del hyperparameters["learning_rate"]


def test_a_step_that_raises_changes_nothing() -> None:
    pair = Pair(shard=True)
    before = [v.numpy() for v in pair.optimizer.variables]

    def fn() -> None:
        pair.optimizer.apply_gradients(ones())
        raise LookupError("half-way")

    with pytest.raises(LookupError):
        jd.function(lambda: FOUR.run(fn))()
    assert pair.moved() == (0, 0)
    for v, value in zip(pair.optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(v.numpy(), value)


@pytest.mark.slow
@settings(max_examples=3, derandomize=True)
@given(st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=2), st.sampled_from([2, 3, 5]))
def test_slices_of_any_shapes(shapes: list[list[int]], replicas: int) -> None:
    kinds = [(tuple(shape), np.float32) for shape in shapes]
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    variables, _ = run_steps(mirrored(replicas), transform, kinds, shard=True, compiled=True, steps=2)
    check(variables, optax_steps(transform, kinds, 2))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays each reduction over the replicas brought together, as they come."""
    sizes: list[int] = []

    def count(name: str, size: Callable[[Any], int]) -> None:
        kernel = getattr(cross_replica, name)

        def call(data: Any, *rest: Any) -> Any:
            sizes.append(size(data))
            return kernel(data, *rest)

        call.__name__ = name
        monkeypatch.setattr(cross_replica, name, call)

    count("_reduce_mapped", len)
    count("_reduce_split", lambda _: 1)
    return sizes


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", ["mirrored", "fully sharded", "central"])
@pytest.mark.parametrize("steps", [1, 2])
def test_eager_gradients_are_reduced_together(steps: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = ["CPU:0", "CPU:1"]
    makes: dict[str, Callable[[], jd.Strategy]] = {
        "mirrored": lambda: mirrored(2),
        "fully sharded": lambda: jd.FullyShardedStrategy(devices, min_bytes=0),
        "central": lambda: jd.CentralStorageStrategy(devices),
    }
    strategy = makes[kind]()
    variables = [variable(strategy, np.ones(shape, np.float32)) for shape in ((4,), (2, 3), (2,))]
    optimizer = jd.Optimizer(optax.sgd(0.5), variables, accumulate_steps=steps, accumulate_op="SUM")

    def replica() -> None:
        grads = [v * (fraction() + np.float32(1)) for v in variables]
        optimizer.apply_gradients(grads)

    strategy.run(replica)  # the cycle's first call
    sizes = counted(monkeypatch)
    before = [v.numpy() for v in variables]
    strategy.run(replica)
    together = len(sizes) == 1 and sizes[0] >= 2
    assert together, sizes
    for v, old in zip(variables, before, strict=True):
        np.testing.assert_allclose(v.numpy(), old - steps * 0.5 * 3 * old, rtol=1e-6)


def test_an_eager_reduction_of_a_nest_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = mirrored(2)
    nest = strategy.run(lambda: {"a": fraction(), "b": [fraction()[None] + np.float32(1), ident()]})
    sizes = counted(monkeypatch)
    total = strategy.reduce("SUM", nest, axis=None)
    assert sizes == [3]
    assert (float(total["a"]), np.asarray(total["b"][0]).tolist(), int(total["b"][1])) == (1.0, [3.0], 1)
    assert float(strategy.reduce("MEAN", nest, axis=None)["b"][1]) == 0.5
