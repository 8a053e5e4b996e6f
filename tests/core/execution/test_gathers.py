"""Rows gathered from replicas that have different numbers of them: in one program, exactly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.execution.eager import NotSplittable
from jaxtribute._src.core.execution.gathers import Gathers
from ragged import cut, deal, plain, rows
from replicas import EXECUTORS, execute, here, mirrored

THREE, PAIR = mirrored(3), mirrored(2)
UNEVEN = (2, 1, 0)
X = rows(3, 2)


def whole(x: Any) -> Any:
    return here().all_gather(x, 0)


def of_a_known_length(x: Any) -> Any:
    return whole(x) * jnp.ones((3, 2))


def along_another_axis(x: Any) -> Any:
    return here().all_gather(x.T, 1).T


def several(x: Any) -> Any:
    twice, count = here().all_gather((jnp.concatenate([x, x]), jnp.full((1,), x.shape[0])), 0)
    return twice.sum() + count.sum().astype(x.dtype) + whole(x)


def after_one_another(x: Any) -> Any:
    # The second one's length comes of the first one's.
    return whole(whole(x)[: x.shape[0] + 1])


def integers_and_booleans(x: Any) -> Any:
    positive, places = here().all_gather((x > 0, jnp.arange(x.shape[0])), 0)
    return jnp.where(positive, whole(x), 0) + places.astype(x.dtype)[:, None]


def merged(x: Any) -> Any:
    return here().merge_call(lambda strategy, value: strategy.gather(value, axis=0), (x,))


def contrastive(x: Any) -> Any:
    def loss(x: Any) -> Any:
        return (jax.nn.logsumexp(x @ whole(x).T, axis=1) - (x * x).sum(1)).sum()

    return whole(jax.grad(loss)(x))


def in_an_inner_jit(x: Any) -> Any:
    return jax.jit(lambda x: here().all_gather(x, 0))(x)


CASES = [
    whole,
    of_a_known_length,
    along_another_axis,
    several,
    after_one_another,
    integers_and_booleans,
    merged,
    contrastive,
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_compiled_is_what_replicas_find_that_meet_as_python(fn: Any, caplog: pytest.LogCaptureFixture) -> None:
    step = jd.function(lambda x: THREE.run(fn, (x,)))
    batch = deal(THREE, X, UNEVEN)
    with caplog.at_level(logging.WARNING, "jaxtribute"):
        found = plain(step(batch))
    assert not caplog.records  # none ran as Python
    expected = plain(THREE.run(fn, (batch,)))
    for one in found:
        np.testing.assert_allclose(one, expected[0], rtol=1e-5)


def test_other_rows_of_the_same_shapes() -> None:
    """What one replica has seen alone tells nothing: a program for (2, 1, 0) must not serve (2, 0, 1) or (1, 1, 1)."""
    step = jd.function(lambda x: THREE.run(in_an_inner_jit, (x,)))
    for counts in (UNEVEN, (2, 0, 1), (1, 1, 1), (0, 0, 3), UNEVEN):
        np.testing.assert_array_equal(plain(step(deal(THREE, X, counts)))[0], X)


@settings(max_examples=12, deadline=None)
@given(batch=st.integers(1, 7), times=st.integers(1, 2))
def test_gathered_rows_are_those_of_the_batch(batch: int, times: int) -> None:
    x = rows(batch, 2)
    found = jd.function(lambda x: THREE.run(lambda x: whole(jnp.tile(x, (times, 1))), (x,)))(
        deal(THREE, x, cut(batch, 3))
    )
    parts = np.split(x, np.cumsum(cut(batch, 3))[:-1])
    np.testing.assert_array_equal(plain(found)[0], np.concatenate([np.tile(part, (times, 1)) for part in parts]))


def test_gradients_of_gathered_rows() -> None:
    """Each replica gets its own rows' part back, however many it has."""
    weights = jnp.arange(6, dtype=jnp.float32).reshape(3, 2)

    def fn(x: Any) -> Any:
        def loss(x: Any) -> Any:
            return (here().all_gather(x, 0) * weights).sum() * jnp.float32(1 + x.shape[0])

        return jax.grad(loss)(x)

    expected = np.split(np.asarray(weights) * sum(1 + n for n in UNEVEN), np.cumsum(UNEVEN)[:-1])
    for run in (THREE.run, jd.function(THREE.run)):
        for part, value in zip(run(fn, (deal(THREE, X, UNEVEN),)).values, expected, strict=True):
            np.testing.assert_allclose(part, value)


@pytest.mark.slow
def test_gradients_of_gathered_rows_beside_integers() -> None:
    def fn(x: Any) -> Any:
        def loss(x: Any) -> Any:
            columns, count = here().all_gather((x.T, jnp.full((1,), x.shape[0])), 0)
            return (columns**2).sum() * count.sum().astype(jnp.float32)

        return jax.grad(loss)(x)

    x = rows(4, 2)
    for executor in EXECUTORS:
        grad = execute(executor, PAIR, fn, deal(PAIR, x, [2, 2]))
        np.testing.assert_allclose(np.concatenate(plain(grad)), 2 * x * 4 * 2, rtol=1e-5)


def lengths(table: Sequence[Sequence[int]]) -> Any:
    def trace(replica: int, gathers: Gathers) -> Any:
        return [gathers.lengths(own) for own in table[replica]]

    return trace


def test_lengths_are_found_out() -> None:
    table = [[2, 4, 1], [1, 2, 1]]
    found = Gathers.settled(lengths(table), [0, 1], [0, 1, 1], [2, 1, 1])
    assert found == [[(2, 1, 1), (4, 2, 2), (1, 1, 1)]] * 2


def test_lengths_that_cannot_be_settled() -> None:
    def growing(replica: int, gathers: Gathers) -> Any:
        return gathers.lengths(sum(gathers.lengths(replica + 1)) + len(calls))

    calls: list[int] = []

    def trace(replica: int, gathers: Gathers) -> Any:
        calls.append(replica)
        return growing(replica, gathers)

    with pytest.raises(NotSplittable, match="depend on one another"):
        Gathers.settled(trace, [0, 1], [0, 1], [2, 1])


def test_a_trace_that_fails_although_it_knows_all_lengths() -> None:
    def trace(_: int, gathers: Gathers) -> Any:
        gathers.lengths(3)
        raise NotSplittable("mine")

    with pytest.raises(NotSplittable, match="mine"):
        Gathers.settled(trace, [0, 1], [0, 1], [3, 3])
