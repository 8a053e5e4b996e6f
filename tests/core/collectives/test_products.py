"""Sums of products from their factors: the same sums in fewer bytes, and plain sums of all that is something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import jaxtribute as jd
from jaxtribute._src.core.collectives.summation import ExchangeSum, Summation
from jaxtribute._src.core.values.mesh import ReplicaMesh
from replicas import here

REPLICAS = 4
ALWAYS = 1e12
"""As if a byte less to send were worth any number of operations."""
Rows = Callable[..., Any]


class Exchanging(jd.CrossDeviceOps):
    """Sums as between processes, where a byte less to send is worth so many operations."""

    def __init__(self, computes: float) -> None:
        super().__init__()
        self._computes = computes

    def summation(self, mesh: ReplicaMesh, options: Any) -> Summation:
        return ExchangeSum(64, computes=self._computes)


def exchanging(computes: float = ALWAYS) -> jd.MirroredStrategy:
    return jd.MirroredStrategy([f"CPU:{i}" for i in range(REPLICAS)], cross_device_ops=Exchanging(computes))


def on_replicas(fn: Rows, *arrays: Any, computes: float = ALWAYS) -> tuple[Any, int]:
    """`fn(*rows)` of every replica, the same on all, in a compiled program; with it the number of its gathers."""
    strategy = exchanging(computes)

    @jd.function
    def step(*split: Any) -> Any:
        return strategy.run(lambda *rows: fn(*[row[0] for row in rows]), split)

    split = [next(iter(strategy.experimental_distribute_dataset([array]))) for array in arrays]
    result = jax.tree.map(np.asarray, jax.tree.map(lambda one: one.data, step(*split), is_leaf=is_mirrored))
    return result, gathers(step, split)


def is_mirrored(value: Any) -> bool:
    return isinstance(value, jd.DistributedValues)


def gathers(step: Any, split: Any) -> int:
    (program,) = step._signatures.programs.values()
    return program.lower([one.data for one in split]).as_text().count("stablehlo.all_gather")


def total(*values: Any) -> Any:
    return here().all_reduce("SUM", list(values))


def drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=(REPLICAS, *shape)).astype(np.float32)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


X, Y = drawn(0, 3, 16), drawn(1, 3, 20)
ROWS = (((0,), (0,)), ((), ()))
XY = np.einsum("rbi,rbj->ij", X, Y)


def test_a_gradient_of_a_matrix_is_gathered_by_its_factors() -> None:
    (found,), count = on_replicas(lambda x, y: total(x.T @ y), X, Y)
    close(found, XY)
    assert count == 2


def test_nothing_is_gathered_where_to_compute_costs_more() -> None:
    # Three replicas more to multiply for, at 2 x 3 x 16 x 20 operations, and 1.5 x 1,280 - 3 x 432 bytes less to send.
    worth = 3 * 1920 / (1920 - 1296)
    for computes, count in ((0.0, 0), (worth * 0.99, 0), (worth * 1.01, 2)):
        (found,), gathered = on_replicas(lambda x, y: total(x.T @ y), X, Y, computes=computes)
        close(found, XY)
        assert gathered == count


def test_factors_that_are_more_bytes_are_not_gathered() -> None:
    x, y = drawn(0, 40, 16), drawn(1, 40, 20)
    (found,), count = on_replicas(lambda x, y: total(x.T @ y), x, y)
    close(found, np.einsum("rbi,rbj->ij", x, y))
    assert count == 0


MOVES: dict[str, Rows] = {
    "none": lambda a: a,
    "transposed": lambda a: a.T,
    "flat": lambda a: a.reshape(-1),
    "negative": lambda a: -a,
    "several": lambda a: -(a.T.reshape(5, -1))[None].squeeze(0),
    "in a jit": jax.jit(lambda a: -a.T),
}


@pytest.mark.parametrize("move", MOVES)
def test_products_that_are_moved(move: str) -> None:
    (found,), count = on_replicas(lambda x, y: total(MOVES[move](jax.jit(lambda x, y: x.T @ y)(x, y))), X, Y)
    close(found, MOVES[move](XY))
    assert count == 2


OTHERS: dict[str, Rows] = {
    "scaled": lambda a: 3 * a,
    "divided": lambda a: a / 4,
    "clipped": lambda a: jnp.clip(a, -1, 1),
    "squared": lambda a: a * a,
    "an inverse": lambda a: 1 / (a + 100),
    "by the replica": lambda a: a * (1 + jnp.asarray(here().replica_id_in_sync_group, a.dtype)),
    "a part": lambda a: a[:10],
    "added to": lambda a: a + jnp.ones_like(a),
    "wider": lambda a: a.astype(jnp.bfloat16).astype(jnp.float32),
    "in a loop": lambda a: lax.fori_loop(0, 2, lambda _, b: b + a, jnp.zeros_like(a)),
    "in a branch": lambda a: lax.cond(a[0, 0] > 0, lambda: a, lambda: -a),
    "checkpointed": jax.checkpoint(jnp.tanh),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_multiple_of_a_product_is_summed_as_it_is(kind: str) -> None:
    (found,), count = on_replicas(lambda x, y: total(OTHERS[kind](x.T @ y)), X, Y)
    (wanted,), _ = on_replicas(lambda x, y: total(OTHERS[kind](x.T @ y)), X, Y, computes=0.0)
    close(found, wanted)
    assert count == 0


@pytest.mark.parametrize("scaling", [lambda a: a * 2**-4, lambda a: a / 16, jax.jit(lambda a: a / 16)])
@pytest.mark.parametrize(("dtype", "large"), [("float16", 120.0), ("bfloat16", 1e19), ("float32", 1e19)])
def test_a_scaling_comes_before_the_sum_which_is_finite_only_with_it(dtype: str, large: float, scaling: Rows) -> None:
    x = np.full((REPLICAS, 2, 16), large).astype(jnp.dtype(dtype))
    (found,), _ = on_replicas(lambda x: total(scaling(x.T @ x)), x)
    wanted = REPLICAS * 2 * float(x[0, 0, 0]) ** 2 / 16
    np.testing.assert_allclose(np.asarray(found, np.float64), np.full((16, 16), wanted), rtol=1e-2)


def test_several_products_have_a_factor_in_common_which_is_gathered_once() -> None:
    z = drawn(2, 3, 24)

    def fn(x: Any, y: Any, z: Any) -> Any:
        return total(lax.dot_general(x, y, ROWS), lax.dot_general(x, z, ROWS), x)

    (xy, xz, rest), count = on_replicas(fn, X, Y, z)
    close(xy, XY)
    close(xz, np.einsum("rbi,rbj->ij", X, z))
    close(rest, X.sum(0))
    assert count == 3


def test_a_function_that_is_called_twice_gives_two_products() -> None:
    product = jax.jit(lambda x, y: x.T @ y)
    (one, other), count = on_replicas(lambda x, y: total(product(x, y), product(2 * x, y + 1)), X, Y)
    close(one, XY)
    close(other, np.einsum("rbi,rbj->ij", 2 * X, Y + 1))
    assert count == 4


def test_means_and_a_product_that_is_used_besides() -> None:
    def fn(x: Any, y: Any) -> Any:
        product = x.T @ y
        return here().all_reduce("MEAN", product), total(jnp.max(product))

    (mean, (largest,)), count = on_replicas(fn, X, Y)
    close(mean, XY / REPLICAS)
    close(largest, np.einsum("rbi,rbj->rij", X, Y).max((1, 2)).sum())
    assert count == 2


def test_whole_numbers_that_are_divided_are_rounded_one_by_one() -> None:
    x, y = (np.random.default_rng(seed).integers(-9, 9, (REPLICAS, 3, 16)).astype(np.int32) for seed in (0, 1))
    (found,), count = on_replicas(lambda x, y: total(lax.div(x.T @ y, jnp.int32(4))), x, y)
    np.testing.assert_array_equal(found, np.trunc(np.einsum("rbi,rbj->rij", x, y) / 4).sum(0))
    assert count == 0


def test_a_sum_of_a_sum() -> None:
    (found,), _ = on_replicas(lambda x, y: total(total(x.T @ y)[0]), X, Y)
    close(found, REPLICAS * XY)


def test_products_of_no_examples() -> None:
    (found,), count = on_replicas(lambda x, y: total(x[:0].T @ y[:0]), X, Y)
    close(found, np.zeros((16, 20)))
    assert count == 0


@given(
    batch=st.lists(st.integers(1, 3), max_size=2),
    contracted=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    left=st.lists(st.integers(1, 4), max_size=2),
    right=st.lists(st.integers(1, 4), max_size=2),
    dtype=st.sampled_from(["float32", "bfloat16", "int32", "complex64"]),
    data=st.data(),
)
def test_every_product(
    batch: list[int], contracted: list[int], left: list[int], right: list[int], dtype: str, data: st.DataObject
) -> None:
    names = iter("abcdefghijkl")
    groups = [[next(names) for _ in sizes] for sizes in (batch, contracted, left, right)]
    sizes = dict(zip("".join(map("".join, groups)), [*batch, *contracted, *left, *right], strict=True))
    operands = [data.draw(st.permutations([*groups[0], *groups[1], *own])) for own in groups[2:]]
    arrays = [
        np.random.default_rng(seed).integers(-4, 5, (REPLICAS, *(sizes[name] for name in operand))).astype(dtype)
        for seed, operand in enumerate(operands)
    ]
    places = [tuple(map(operand.index, group)) for group in (groups[1], groups[0]) for operand in operands]
    numbers = (places[0], places[1]), (places[2], places[3])

    def fn(x: Any, y: Any) -> Any:
        return total(lax.dot_general(x, y, numbers))

    # Small whole numbers, of which every sum is exact in any order.
    (found,), _ = on_replicas(fn, *arrays)
    (wanted,), _ = on_replicas(fn, *arrays, computes=0.0)
    np.testing.assert_array_equal(found, wanted)
    free = [name for operand, own in zip(operands, groups[2:], strict=True) for name in operand if name in own]
    words = "".join(operands[0]), "".join(operands[1]), "".join([*groups[0], *free])
    exact = np.einsum(f"r{words[0]},r{words[1]}->{words[2]}", *[array.astype(np.complex128) for array in arrays])
    np.testing.assert_array_equal(found.astype(np.complex128), exact)


def trained(computes: float, steps: int, sizes: list[int]) -> list[Any]:
    """The variables of a perceptron after some steps on batches of these sizes."""
    strategy = exchanging(computes)
    rng = np.random.default_rng(0)
    with strategy.scope():
        values = [rng.normal(size=shape).astype(np.float32) / 8 for shape in ((24, 32), (1, 32), (32, 16))]
        variables = list(map(jd.Variable, values))
    optimizer = jd.Optimizer(optax.sgd(0.1, 0.9), variables)

    def replica(x: Any, y: Any) -> Any:
        def loss() -> Any:
            hidden = jnp.tanh(x @ variables[0] + variables[1].read_value())
            return jnp.sum((hidden @ variables[2] - y) ** 2) / sum(sizes)

        value, grads = jd.value_and_grad(loss, variables)()
        optimizer.apply_gradients(grads)
        return value

    @jd.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, (x, y)), axis=None)

    data = [(rng.normal(size=(n, 24)).astype(np.float32), rng.normal(size=(n, 16)).astype(np.float32)) for n in sizes]
    losses = [float(step(*batch)) for _ in range(steps) for batch in strategy.experimental_distribute_dataset(data)]
    return [*map(jd.Variable.numpy, variables), np.asarray(losses)]


@pytest.mark.parametrize("sizes", [[8, 8], [8, 7], [8, 2]])
def test_training_ends_the_same(sizes: list[int]) -> None:
    for found, wanted in zip(trained(ALWAYS, 4, sizes), trained(0.0, 4, sizes), strict=True):
        close(found, wanted)


@pytest.mark.parametrize("computes", [0.0, ALWAYS])
def test_gradients_of_what_replicas_have_summed(computes: float) -> None:
    strategy = exchanging(computes)

    def outer(weight: Any) -> Any:
        def replica() -> Any:
            mine = jnp.asarray(X)[here().replica_id_in_sync_group]
            return jnp.sum(total((mine * weight[None]).T @ jnp.tanh(mine))[0] ** 2)

        return strategy.run(replica).data

    def by_hand(weight: Any) -> Any:
        return jnp.sum(jnp.einsum("rbi,rbj->ij", X * weight[None, None], jnp.tanh(X)) ** 2)

    weight = jnp.linspace(0.5, 1.5, 16)
    np.testing.assert_allclose(jax.grad(outer)(weight), jax.grad(by_hand)(weight), rtol=1e-4)
