"""How values are made of the rows of a batch: a sum, a mean, each row's own, or nothing that is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxtribute._src.addons.keras.row_axes import Different
from jaxtribute._src.addons.keras.rows import FACTOR, Kind, Part, Rows

AXIS = "replica"
W = jnp.ones((3, 2))
NOISE = jnp.asarray(np.random.RandomState(0).normal(size=(96, 3)), jnp.float32)
WEIGHTS = NOISE[:30].T
EQUAL, RAMP = jnp.tile(jnp.arange(3.0), (96, 1)), jnp.arange(50.0)[:, None]


def analysed(fn: Callable[[Any], Any], rows: int = 6) -> tuple[Part, Rows]:
    one, other = (
        jax.make_jaxpr(fn, axis_env=[(AXIS, 2)])(jax.ShapeDtypeStruct((n, 3), np.float32))
        for n in (rows, rows * FACTOR)
    )
    found = Rows(AXIS)
    return found.outputs(one, other, [Part(Kind.ROWS)])[0], found


def mean_loss(x: Any) -> Any:
    return jnp.mean(jnp.sum(jnp.square(jnp.tanh(x @ W)), axis=1))


def gathered(x: Any) -> Any:
    return lax.all_gather(x, AXIS, axis=0, tiled=True)


def shown(value: Any) -> Any:
    jax.debug.print("{}", value)
    return value


@jax.custom_vjp
def in_8_bits(x: Any) -> Any:
    return x


def in_8_bits_back(_: None, gradient: Any) -> tuple[Any]:
    bounded = jnp.clip(gradient / 0.01, -57344.0, 57344.0)
    return (bounded.astype(jnp.float8_e5m2).astype(jnp.float32) * 0.01,)


in_8_bits.defvjp(lambda x: (x, None), in_8_bits_back)


SUMS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(),
    "of each column": lambda x: x.sum(0),
    "count": lambda x: jnp.float32(x.shape[0]),
    "count of true": lambda x: (x[:, 0] > 0).sum(),
    "mean times the rows": lambda x: mean_loss(x) * x.shape[0],
    "ones": lambda x: jnp.ones_like(x).sum(),
    "over a constant": lambda x: x.sum() / 4 + jnp.float32(x.shape[0]),
    "product": lambda x: x.T @ x,
    "clipped": lambda x: jnp.clip(x, -2, 2).sum(0),
    "largest of each": lambda x: jnp.maximum(x.max(1), 0).sum(),
    "gradient of a sum": lambda x: jax.grad(lambda w: jnp.square(x @ w).sum())(W),
    "over the rows of all": lambda x: x.sum() / lax.psum(jnp.float32(x.shape[0]), AXIS),
    "stacked": lambda x: jnp.stack([x.sum(), jnp.square(x).sum(), jnp.zeros(())]),
    "stacked with a count": lambda x: jnp.stack([x.sum(), jnp.float32(x.shape[0])]),
    "put together": lambda x: jnp.concatenate([x.sum(0), x.sum(keepdims=True)[0]]),
    "padded": lambda x: jnp.pad(x.sum(0), (0, 2)),
    "reshaped": lambda x: x.sum(0).reshape(1, 3, 1),
    "tiled": lambda x: jnp.tile(x.sum(0), 2),
    "broadcast": lambda x: jnp.broadcast_to(x.sum(), (2, 2)),
    "in some places": lambda x: jnp.where(jnp.arange(3) > 1, x.sum(0), x.sum()),
    "set in a place": lambda x: jnp.zeros(4).at[1].set(x.sum()),
    "by segments": lambda x: jnp.zeros(4).at[x[:, 0].astype(int)].add(x[:, 1]),
}
MEANS: dict[str, Callable[[Any], Any]] = {
    "mean": mean_loss,
    "constant": lambda _: jnp.float32(3),
    "with constants": lambda x: 2 * mean_loss(x) + 1,
    "sum over the rows": lambda x: x.sum() / x.shape[0],
    "guarded": lambda x: x.sum() / jnp.maximum(jnp.asarray([x.shape[0], 1.0]).prod(), 1),
    "gradient of a mean": lambda x: jax.grad(lambda w: jnp.mean(jnp.square(x @ w)))(W),
    "of two kinds": lambda x: mean_loss(x) + jnp.mean(jnp.concatenate([x, jnp.zeros_like(x)])),
    "normalized": lambda x: jnp.mean((x - x.mean(0, keepdims=True)) / (x.std(0, keepdims=True) + 1)),
    "contrastive": lambda x: jnp.mean(jax.nn.logsumexp(x @ gathered(x).T, axis=1) - (x * x).sum(1)),
    "contrastive by labels": lambda x: jnp.mean(
        -(jax.nn.log_softmax(x @ gathered(x).T) * jnp.eye(x.shape[0], 2 * x.shape[0], dtype=x.dtype)).sum(1)
    ),
    "clipped parts": lambda x: jnp.clip(x / x.shape[0], -2, 2).sum(0),
    "positive parts": lambda x: jax.nn.relu(x / x.shape[0]).sum(),
    "sizes of parts": lambda x: jnp.abs(x / x.shape[0]).max(1).sum(),
    "gradient of a mean, rounded": lambda x: jax.grad(lambda w: jnp.mean(jnp.square(in_8_bits(x @ w))))(W),
    "inside jit": jax.jit(mean_loss),
    "shown": lambda x: shown(mean_loss(x)),
    "of labels": lambda x: -jnp.mean(jax.nn.log_softmax(x)[jnp.arange(x.shape[0]), jnp.argmax(x, 1)]),
    "a chosen mean": lambda x: jnp.where(jnp.float32(1) > 0, mean_loss(x), 0.0),
}
UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "root": lambda x: jnp.sqrt(mean_loss(x)),
    "largest": lambda x: x.max(),
    "ratio": lambda x: x.sum() / (x > 0).astype(x.dtype).sum(),
    "sum and mean": lambda x: x.sum() + mean_loss(x),
    "a sum beside a mean": lambda x: jnp.stack([x.sum(), mean_loss(x)]),
    "a sum beside a maximum": lambda x: jnp.stack([x.sum(), x.max()]),
    "a sum beside a constant": lambda x: jnp.stack([x.sum(), jnp.float32(1)]),
    "set beside constants": lambda x: jnp.ones(4).at[1].set(x.sum()),
    "rows set in places": lambda x: jnp.zeros(4).at[x[:, 0].astype(int)].set(x[:, 1]),
    "product of means": lambda x: mean_loss(x) * mean_loss(x),
    "first": lambda x: x[0].sum(),
    "its own number": lambda _: lax.axis_index(AXIS),
    "rounded": lambda x: mean_loss(x).astype(int),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, total: total + x.sum(), 0.0),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums(name: str) -> None:
    part = analysed(SUMS[name])[0]
    assert part.kind in (Kind.TOTAL, Kind.ALIKE)
    assert part.degree == 1


@pytest.mark.parametrize("name", MEANS)
def test_means(name: str) -> None:
    part = analysed(MEANS[name])[0]
    assert part.kind in (Kind.TOTAL, Kind.ALIKE)
    assert part.degree == 0


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_neither(name: str) -> None:
    assert analysed(UNKNOWN[name])[0].kind is Kind.OTHER


def test_what_all_have_made_together() -> None:
    assert analysed(lambda x: lax.psum(x.sum(), AXIS))[0].kind is Kind.SAME
    assert analysed(lambda x: gathered(x).max())[0].kind is Kind.SAME
    assert analysed(lambda x: gathered(x).mean())[0] == Part(Kind.SAME)


def test_a_share_of_what_all_have_made_together_is_a_sum() -> None:
    def root(x: Any) -> Any:
        return jnp.sqrt(lax.psum(x.sum(), AXIS))

    assert analysed(lambda x: root(x) * x.shape[0] / lax.psum(jnp.float32(x.shape[0]), AXIS))[0] == Part(Kind.SAME, 1)
    # As in the derivative of a mean, times the rows of all.
    assert analysed(lambda x: jnp.broadcast_to(root(x) / x.shape[0], x.shape[:1]).sum())[0].degree == 0
    assert analysed(lambda x: root(x) / (2 * x.shape[0]))[0] == Part(Kind.SAME)


@pytest.mark.parametrize(
    ("fn", "row"),
    [
        (lambda x: x[0] - x[1], 1),
        (lambda x: lax.dynamic_slice(x, (2, 0), (1, 3)), 2),
        (lambda x: jnp.take(x, 3, axis=0), 3),
        (jax.jit(lambda x: x[2]), 2),
        (lambda x: x[-1], 0),
        (lambda x: x[: x.shape[0] // 2], 0),
        (lambda x: jnp.stack([x, x])[1], 0),
        (lambda x: x[:, 2], 0),
    ],
)
def test_rows_that_are_taken_by_their_numbers(fn: Callable[[Any], Any], row: int) -> None:
    assert analysed(fn)[1].picked == row


def _places(x: Any) -> Any:
    return x[:, :2].astype(int) + 3 * jnp.arange(x.shape[0])[:, None]


def _noise(number: Any) -> Any:
    return jax.random.normal(jax.random.fold_in(jax.random.key(0), number), (3,))


def _slope(x: Any) -> Any:
    return jax.grad(lambda weights: jnp.square(x @ weights).sum())(WEIGHTS)


MEETINGS: dict[str, Callable[[Any], Any]] = {
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
    "two": lambda x: x[:2],
    "but the first": lambda x: x[1:],
    "half": lambda x: x[: x.shape[0] // 2],
    "every second": lambda x: x[::2],
    "reversed": lambda x: x * x[::-1],
    "rolled": lambda x: x * jnp.roll(x, 1, 0),
    "by an array": lambda x: jnp.take(x, jnp.array([0, 2]), axis=0),
    "summed up": lambda x: jnp.cumsum(x, 0),
    "sorted": lambda x: jnp.sort(x, axis=0)[:, 0],
    "products": lambda x: x @ x.T,
    "pairs": lambda x: jnp.abs(x[:, None] - x[None]),
    "softmax over rows": lambda x: jnp.exp(x) / jnp.exp(x).sum(0, keepdims=True),
    "written to": lambda x: x.at[0].set(0.0),
    "written to in a slice": lambda x: lax.dynamic_update_slice(x, jnp.ones((1, 3)), (1, 0)),
    "weighted by numbers": lambda x: x * jnp.arange(1.0, x.shape[0] + 1)[:, None],
    "weighted by a constant": lambda x: x * np.arange(1.0, x.shape[0] + 1, dtype=np.float32)[:, None],
    "weighted by a ramp": lambda x: x * np.linspace(0, 1, x.shape[0], dtype=np.float32)[:, None],
    "views weighted by a constant": lambda x: (
        jnp.concatenate([x, x]) * np.tile(np.arange(1.0, x.shape[0] + 1, dtype=np.float32), 2)[:, None]
    ),
    "noise of a table": lambda x: x + NOISE[: x.shape[0]],
    "noise of a table, later": lambda x: x + NOISE[x.shape[0] : 2 * x.shape[0]],
    "weighted by a small table": lambda x: x * lax.dynamic_slice(RAMP, (2, 0), (x.shape[0], 1)),
    "chosen by numbers": lambda x: jnp.where(jnp.arange(x.shape[0])[:, None] == 0, x, 0.0),
    "integers chosen by numbers": lambda x: jnp.where(jnp.arange(x.shape[0]) == 0, x[:, 0].astype(int), 0),
    "compared with numbers": lambda x: x[:, 0].astype(int) > jnp.arange(x.shape[0]),
    "weighted by integers": lambda x: (x.astype(int) * jnp.arange(x.shape[0])[:, None]).astype(float),
    "halves": lambda x: x.reshape(2, -1)[0],
    "pairs of neighbours": lambda x: x.reshape(-1, 2, 3),
    "weights that its rows have moved": lambda x: x @ (WEIGHTS - 0.1 * _slope(x)),
    "weights moved along a norm": lambda x: x @ (WEIGHTS + _slope(x) / jnp.sqrt(jnp.square(_slope(x)).sum())),
    "carried": lambda x: lax.scan(lambda total, row: (total + row, total), jnp.zeros(3), x)[1],
}
KEY = jax.random.key(0)


def _dealt(x: Any, rows: int | None = None) -> Any:
    return jax.random.permutation(KEY, rows or x.shape[0])


def _own_key() -> Any:
    return jax.random.fold_in(KEY, lax.axis_index(AXIS))


REORDERED: dict[str, Callable[[Any], Any]] = {
    "permuted": lambda x: jnp.take(x, _dealt(x), axis=0),
    "permuted by each replica's key": lambda x: x[jax.random.permutation(_own_key(), x.shape[0])],
    "mixed with permuted ones": lambda x: 0.7 * x + 0.3 * x[_dealt(x)],
    "permuted in some columns": lambda x: x[_dealt(x)[:, None], jnp.arange(2)],
    "permuted within a shape": lambda x: x.reshape(-1, 3, 1)[_dealt(x)],
    "shuffled": lambda x: jax.random.permutation(KEY, x),
    "each column shuffled": lambda x: jax.random.permutation(KEY, x, independent=True),
    "a number of each shuffled": lambda x: jax.random.permutation(KEY, x[:, 0]),
    "permuted by the order of draws": lambda x: x[jnp.argsort(jax.random.uniform(KEY, (x.shape[0],)))],
    "drawn with repeats": lambda x: x[jax.random.randint(KEY, (x.shape[0],), 0, x.shape[0])],
    "chosen": lambda x: jax.random.choice(KEY, x, (4,)),
    "one that is drawn": lambda x: x[jax.random.randint(KEY, (), 0, 4)],
    "the best of draws": lambda x: x[lax.top_k(jax.random.uniform(KEY, (x.shape[0],)), 3)[1]],
    "rolled by a draw": lambda x: jnp.roll(x, jax.random.randint(KEY, (), 0, x.shape[0]), axis=0),
    "numbers rolled by a draw": lambda x: x[
        (jnp.arange(x.shape[0]) + jax.random.randint(KEY, (), 0, x.shape[0])) % x.shape[0]
    ],
    "numbers in reverse": lambda x: jnp.take(x, jnp.arange(x.shape[0])[::-1], axis=0),
    "numbers rolled": lambda x: x[(jnp.arange(x.shape[0]) + 1) % x.shape[0]],
    "numbers from the end": lambda x: x[x.shape[0] - 1 - jnp.arange(x.shape[0])],
    "neighbours": lambda x: x[jnp.arange(x.shape[0]) ^ 1],
    "every second number": lambda x: x[jnp.arange(0, x.shape[0], 2)],
    "a constant order": lambda x: x[np.arange(x.shape[0])[::-1]],
    "a long constant order": lambda x: jnp.concatenate([x, x])[np.arange(2 * x.shape[0])[::-1]],
    "ends": lambda x: x[jnp.array([0, x.shape[0] - 1])],
    "written in a drawn order": lambda x: jnp.zeros_like(x).at[_dealt(x)].set(x),
    "written in reverse": lambda x: jnp.zeros_like(x).at[jnp.arange(x.shape[0])[::-1]].set(x),
    "in a compiled function": jax.jit(lambda x: x[_dealt(x)]),
}
IN_ORDER: dict[str, Callable[[Any], Any]] = {
    "by their numbers": lambda x: x[jnp.arange(x.shape[0])],
    "by a constant": lambda x: x[np.arange(x.shape[0])],
    "numbers and drawn columns": lambda x: x[jnp.arange(x.shape[0]), jax.random.randint(KEY, (x.shape[0],), 0, 3)],
    "drawn columns": lambda x: jnp.take_along_axis(x, jax.random.randint(KEY, x.shape, 0, 3), axis=1),
    "one drawn column": lambda x: x[:, jax.random.randint(KEY, (), 0, 3)],
    "permuted columns": lambda x: x[:, _dealt(x, 3)],
    "each row shuffled": lambda x: jax.random.permutation(KEY, x, axis=1, independent=True),
    "drawn columns of a flat batch": lambda x: x.reshape(-1)[
        3 * jnp.arange(x.shape[0]) + jax.random.randint(KEY, (x.shape[0],), 0, 3)
    ],
    "the first column of a flat batch": lambda x: x.reshape(-1)[3 * jnp.arange(x.shape[0])],
    "a crop of each": lambda x: jax.vmap(lambda row, i: lax.dynamic_slice(row, (i,), (2,)))(
        x, jax.random.randint(KEY, (x.shape[0],), 0, 2)
    ),
    "a crop of all": lambda x: lax.dynamic_slice(x, (0, jax.random.randint(KEY, (), 0, 2)), (x.shape[0], 2)),
    "columns rolled by a draw": lambda x: jnp.roll(x, jax.random.randint(KEY, (), 0, 3), axis=1),
    "repeated by numbers": lambda x: x[jnp.arange(2 * x.shape[0]) // 2],
    "repeated": lambda x: jnp.repeat(x, 2, axis=0, total_repeat_length=2 * x.shape[0]),
    "tiled by numbers": lambda x: x[jnp.arange(2 * x.shape[0]) % x.shape[0]],
    "the second view": lambda x: jnp.concatenate([x, 2 * x])[jnp.arange(x.shape[0]) + x.shape[0]],
    "looked up in a table": lambda x: NOISE[x[:, 0].astype(int)],
    "rows of a table that are drawn": lambda x: x + NOISE[jax.random.randint(KEY, (x.shape[0],), 0, 90)],
    "by their own number": lambda x: x[x[:, 0].astype(int)],
    "noise in a drawn order": lambda x: x + jax.random.normal(KEY, x.shape)[_dealt(x)],
    "masks of drawn columns": lambda x: (
        x * jnp.ones_like(x).at[jnp.arange(x.shape[0]), jax.random.randint(KEY, (x.shape[0],), 0, 3)].set(0.0)
    ),
    "noise times a drawn number": lambda x: x + jax.random.normal(KEY, x.shape) * jax.random.uniform(_own_key()),
    "written in order": lambda x: jnp.zeros_like(x).at[jnp.arange(x.shape[0])].set(x),
    "those of all, permuted": lambda x: gathered(x)[_dealt(x, 2 * x.shape[0])],
    "flipped by a draw": lambda x: jnp.where(jax.random.bernoulli(KEY, 0.5, (x.shape[0], 1)), x[:, ::-1], x),
    "gradient of drawn columns": jax.grad(
        lambda x: jnp.square(x[jnp.arange(x.shape[0]), jax.random.randint(KEY, (x.shape[0],), 0, 3)]).sum()
    ),
}
APART: dict[str, Callable[[Any], Any]] = {
    "column": lambda x: x[:, 0],
    "columns": lambda x: x[:, 1:],
    "all": lambda x: x[: x.shape[0]],
    "two views": lambda x: jnp.split(jnp.concatenate([x, 2 * x]), 2)[1],
    "a queue behind": lambda x: jnp.concatenate([x, jnp.ones((6, 3))])[: x.shape[0]],
    "halves of two views": lambda x: jnp.concatenate([x, 2 * x]).reshape(2, -1, 3)[1],
    "flat": lambda x: x.reshape(-1),
    "written to in each row": lambda x: x.at[:, 0].set(0.0),
    "weighted by a table of equal rows": lambda x: x * EQUAL[: x.shape[0]],
    "rows of a table at the replica's place": lambda x: (
        x + lax.dynamic_slice(NOISE, (lax.axis_index(AXIS) * x.shape[0], 0), x.shape)
    ),
    "weighted alike": lambda x: x * jnp.full((x.shape[0], 1), 2.0),
    "masked in each row": lambda x: x * jnp.tri(3)[0],
    "along an axis": lambda x: jnp.take_along_axis(x, jnp.argmax(x, 1, keepdims=True), axis=1),
    "random": lambda x: x * jax.random.normal(jax.random.key(0), x.shape),
    "by labels": lambda x: x[jnp.arange(x.shape[0]), x[:, 0].astype(int)],
    "repeated": lambda x: jnp.repeat(x, 2, axis=0),
    "attention": lambda x: jax.nn.softmax(x[:, :, None] * x[:, None]),
    "those of all": lambda x: x @ lax.all_gather(x, AXIS, tiled=True).T,
    "synchronized": lambda x: x - lax.pmean(x.mean(0, keepdims=True), AXIS),
    "for each row": lambda x: lax.map(lambda row: row[:1] * row, x),
    "gradient for each": jax.vmap(jax.grad(lambda row: row[0] * row[1])),
    "a cache along time": lambda x: lax.dynamic_update_slice(x, 2 * x[:, 1:2], (0, 1)),
    "by labels of all": lambda x: (
        (x @ gathered(x).T) * jax.nn.one_hot(jnp.arange(x.shape[0]) + lax.axis_index(AXIS) * x.shape[0], 2 * x.shape[0])
    ),
    "flat places": lambda x: jnp.take(x.reshape(-1), jnp.argmax(x, 1) + 3 * jnp.arange(x.shape[0])),
    "several flat places": lambda x: jnp.take(x.reshape(-1), _places(x).reshape(-1), axis=0),
    "flat places to write to": lambda x: jnp.zeros(x.size).at[_places(x)[:, 0]].set(1.0).reshape(x.shape),
    "labels of two views": lambda x: (
        jnp.concatenate([x, 2 * x]) * np.repeat(np.array([[1], [0]], np.float32), x.shape[0], axis=0)
    ),
    "noise of NumPy": lambda x: x + np.random.RandomState(x.shape[0]).normal(size=x.shape).astype(np.float32),
    "keys by numbers": lambda x: jax.vmap(lambda i, row: row + _noise(i))(jnp.arange(x.shape[0]), x),
    "weights that the rows of all have moved": lambda x: x @ (WEIGHTS - 0.1 * lax.psum(_slope(x), AXIS)),
    "weights that are moved for later": lambda x: WEIGHTS - 0.1 * _slope(x),
    "flipped rows": lambda x: x[:, ::-1],
}


@pytest.mark.parametrize("name", MEETINGS)
def test_rows_that_meet_or_are_chosen_by_their_places(name: str) -> None:
    assert analysed(MEETINGS[name], 24)[1].meetings


@pytest.mark.parametrize("name", REORDERED)
def test_rows_in_an_order_that_none_of_them_has(name: str) -> None:
    assert analysed(REORDERED[name], 24)[1].meetings


@pytest.mark.parametrize("name", IN_ORDER)
def test_places_within_rows(name: str) -> None:
    assert not analysed(IN_ORDER[name], 24)[1].meetings


def test_noise_of_each_replica_is_none_of_its_rows() -> None:
    noisy = analysed(lambda x: x @ (WEIGHTS + _noise(lax.axis_index(AXIS))[:, None]), 24)[1].meetings
    assert not [what for what, _ in noisy if "moved" in what]


@pytest.mark.parametrize("name", APART)
def test_rows_that_are_treated_alike(name: str) -> None:
    assert not analysed(APART[name], 24)[1].meetings


def test_programs_that_do_something_else_for_other_numbers_of_rows() -> None:
    with pytest.raises(Different, match="different operations"):
        analysed(lambda x: sum(x[i] for i in range(x.shape[0])))
    with pytest.raises(Different, match="sin in one is cos in the other"):
        analysed(lambda x: jnp.sin(x) if x.shape[0] == 6 else jnp.cos(x))
