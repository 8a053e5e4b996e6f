"""Programs that are cut where islands exchange values, against the whole ones."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxtribute._src.addons.elastic import pieces as pieces_module
from jaxtribute._src.addons.elastic.factors import Factors
from jaxtribute._src.addons.elastic.pieces import EXCHANGE, Pieces
from jaxtribute._src.core.jaxprs.core import as_function
from jaxtribute.typing import HostArray
from samples import ALL_CASES

Finish = Callable[[], list[HostArray]]


def tripled(arrays: Sequence[HostArray], what: str = "") -> list[HostArray]:
    """Stands for a sum over three islands."""
    return [3 * array for array in arrays]


def total(x: Any, what: str = "a sum") -> Any:
    def called_out(x: Any) -> Any:
        return io_callback(
            lambda x: tripled([np.asarray(x)]), [jax.ShapeDtypeStruct(x.shape, x.dtype)], x, ordered=True
        )

    called_out.__name__ = f"{EXCHANGE}{what}"
    return jax.jit(called_out)(x)[0]


def two(x: jax.Array, y: jax.Array) -> Any:
    first = total(x * y)
    return first, total(jnp.sum(first) + y[0]) * y, x, jnp.float32(4)


def far_apart(x: jax.Array, y: jax.Array) -> Any:
    """The second sum does not need the first, though it comes after what is made of that."""
    update = y - total(x * y, "gradients")
    jax.debug.callback(lambda _: None, update)
    loss = total(jnp.sum(x), "a loss")
    return update, loss, total(update * loss, "of both")


def told(x: jax.Array) -> jax.Array:
    jax.debug.callback(lambda _: None, x)
    return 2 * x


def effects_in_order(x: jax.Array, y: jax.Array) -> Any:
    """The second effect is needed for a sum that does not need the first one, which is told of another sum."""
    first = total(x, "told")
    jax.debug.callback(lambda _: None, first)
    return first, total(jax.jit(told)(y), "made of what is told")


def inside_calls(x: jax.Array, y: jax.Array) -> Any:
    return jax.jit(lambda x: jax.jit(lambda x: total(x) + 1)(x * 2) - y)(x), total(y)


def nothing(x: jax.Array, y: jax.Array) -> Any:
    return x + y, y, y


def at_the_ends(x: jax.Array, y: jax.Array) -> Any:
    sums = total(x)
    return sums, sums, total(y), x


def constant(x: jax.Array, y: jax.Array) -> Any:
    table = jnp.asarray(np.arange(3, dtype=np.float32))
    return total(x + table) + table, total(table) + y


def summed_again(x: jax.Array, y: jax.Array) -> Any:
    """Of two sums that travel as one array one is summed again as it is, and one behind an operation."""
    first, second = total(x), total(y)
    return total(first), first, total(total(second * 2)), x


PROGRAMS = [two, far_apart, effects_in_order, inside_calls, nothing, at_the_ends, constant, summed_again]


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_pieces_compute_what_the_whole_does(program: Callable[..., Any], apart: bool) -> None:
    x, y = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([4.0, 5.0, 7.0])
    closed = jax.make_jaxpr(program)(x, y)
    exchanged: list[str] = []

    def exchange(arrays: Sequence[HostArray], what: str) -> Finish:
        exchanged.append(what)
        return lambda: tripled(arrays)

    pieces = Pieces.of(closed, exchange, apart=apart)
    assert pieces is not None
    results = pieces(x, y)
    for result, expected in zip(results, as_function(closed)(x, y), strict=True):
        assert isinstance(result, jax.Array)
        np.testing.assert_array_equal(result, expected)
    assert len({id(result) for result in results}) == len(results)
    rounds: dict[Callable[..., Any], list[str]] = {
        far_apart: ["gradients, a loss", "of both"],
        effects_in_order: ["told", "made of what is told"],
        two: ["a sum"] * 2,
        summed_again: ["a sum"] * 3,
        nothing: [],
    }
    assert apart or exchanged == rounds.get(program, ["a sum"])


def test_exchanges_may_be_made_apart_whatever_they_depend_on() -> None:
    """Of no rows less may depend on a sum, and all islands must make the same exchanges together."""
    exchanged: list[list[str]] = [[], []]

    def rows(count: int) -> Callable[[jax.Array], Any]:
        def program(x: jax.Array) -> Any:
            first = total(jnp.sum(x), "first")
            return total(first * 2 if count else jnp.zeros_like(first), "second")

        return program

    for told_of, count in zip(exchanged, (2, 0), strict=True):

        def exchange(arrays: Sequence[HostArray], what: str, told_of: list[str] = told_of) -> Finish:
            told_of.append(what)
            return lambda: tripled(arrays)

        x = jnp.ones((count, 3))
        pieces = Pieces.of(jax.make_jaxpr(rows(count))(x), exchange, apart=True)
        assert pieces is not None
        pieces(x)
    assert exchanged == [["first", "second"]] * 2


def test_an_exchange_in_a_loop_leaves_the_program_whole() -> None:
    def program(x: jax.Array) -> Any:
        return jax.lax.scan(lambda carry, _: (total(carry), None), x, length=2)[0]

    closed = jax.make_jaxpr(program)(jnp.ones(2))
    assert Pieces.of(closed, lambda arrays, _: lambda: tripled(arrays)) is None
    np.testing.assert_array_equal(jax.jit(as_function(closed))(jnp.ones(2))[0], [9.0, 9.0])


def test_what_is_large_is_sent_while_the_rest_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer's gradient is on its way before the first one's is made; small ones and the loss come last."""
    monkeypatch.setattr(pieces_module, "_STAGE", 1 << 16)
    width = 200
    weights = [jnp.full((width, width), 0.01 * (place + 1)) for place in range(3)]
    x = jnp.ones((4, width))

    def program(*given: Any) -> Any:
        *weights, x = given

        def loss(weights: Any) -> Any:
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return jnp.sum(h)

        value, grads = jax.value_and_grad(loss)(weights)
        sums = [total(grad) for grad in grads]
        return [w - grad for w, grad in zip(weights, sums, strict=True)], total(value)

    told: list[tuple[str, list[Any]]] = []

    def begin(arrays: Sequence[HostArray], what: str) -> Finish:
        told.append(("begun", list(arrays)))

        def finish() -> list[HostArray]:
            told.append(("finished", list(arrays)))
            return tripled(arrays)

        return finish

    closed = jax.make_jaxpr(program)(*weights, x)
    pieces = Pieces.of(closed, begin, bool)
    assert pieces is not None
    results = pieces(*weights, x)
    for result, expected in zip(results, as_function(closed)(*weights, x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    kinds = [(kind, [array.shape for array in arrays]) for kind, arrays in told]
    large = (width, width)
    stages = [[large], [large], [large, ()]]
    assert kinds == [*(("begun", stage) for stage in stages), *(("finished", stage) for stage in stages)]
    # Each piece has what its gradient needs, and nothing that only those of the layers below need.
    first, *_ = pieces._pieces  # pyright: ignore[reportPrivateUsage]
    products = [
        str(jax.make_jaxpr(piece.run)(*[var.aval for var in piece.inputs])).count("dot_general") for piece in first
    ]
    assert products == [4, 2, 2]
    # In the order in which the backward pass makes them.
    gradients = [arrays[0] for kind, arrays in told if kind == "begun"]
    for gradient, expected, w in zip(gradients, results[2::-1], weights[::-1], strict=True):
        np.testing.assert_allclose(w - 3 * gradient, expected, rtol=1e-5)


def test_what_an_earlier_stage_has_made_is_packed_with_the_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """One operation, such as a loop over layers, makes a large gradient, which is sent first, and a small one."""
    monkeypatch.setattr(pieces_module, "_STAGE", 1 << 16)
    layers, table = jnp.full((2, 150, 150), 0.01), jnp.full((200, 150), 0.01)
    biases = jnp.zeros((2, 150)), jnp.zeros((2, 150))

    def program(layers: Any, biases: Any, table: Any, x: Any) -> Any:
        def loss(layers: Any, biases: Any, table: Any) -> Any:
            step = lambda h, w: (jnp.tanh(h @ w[0] + w[1][None]) + w[2][None], None)  # noqa: E731
            return jnp.sum(jax.lax.scan(step, x @ table, (layers, *biases))[0])

        return jax.tree.map(total, jax.grad(loss, (0, 1, 2))(layers, biases, table))

    closed = jax.make_jaxpr(program)(layers, biases, table, jnp.ones((4, 200)))
    pieces = Pieces.of(closed, lambda arrays, _: lambda: tripled(arrays), bool)
    assert pieces is not None
    assert pieces.is_pure
    given = jax.tree.leaves((layers, biases, table, jnp.ones((4, 200))))
    for result, expected in zip(pieces(*given), as_function(closed)(*given), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def moved(product: jax.Array) -> jax.Array:
    return -product.T.reshape(product.T.shape)


@pytest.mark.parametrize("seed", range(30 if ALL_CASES else 5))
def test_sums_of_products_are_computed_of_factors_where_these_are_smaller(seed: int) -> None:
    """Whatever is multiplied, moved, shared and computed of it: the same bits on all islands, and NumPy's sums."""
    chance = np.random.default_rng(seed)
    islands, rows = int(chance.integers(2, 5)), int(chance.integers(1, 200))
    width, height = (int(size) for size in chance.integers(200, 700, 2))
    shape = (2, rows) if chance.integers(2) else (rows,)
    makes = [lambda a, b: a.T @ b, lambda a, b: jnp.einsum("bi,bj->ji", a, b), lambda a, b: moved(a.T @ b)]
    makes.append(jax.jit(lambda a, b: moved(a.T @ b)))
    make = makes[int(chance.integers(len(makes)))]
    is_scaled = bool(chance.integers(2))

    def program(x: jax.Array, y: jax.Array, w: jax.Array) -> Any:
        x, y = x.reshape(-1, width), jnp.tanh(y.reshape(-1, height))
        product = make(x, y)
        own = jnp.sum(product) if is_scaled else jnp.float32(0)
        gradient, loss = total(product * 2 if is_scaled else product), total(jnp.sum(y))
        return w - 0.1 * gradient.reshape(w.shape), loss, own, total(x.T @ x)

    def data() -> list[Any]:
        return [chance.normal(size=(*shape, size)).astype("float32") for size in (width, height)]

    w = chance.normal(size=(width * height,)).astype("float32")
    given = [[*data(), w] for _ in range(islands)]
    closed = jax.make_jaxpr(program)(*given[0])
    sent = [0] * islands
    meeting: Any = Meeting(islands)

    def run(rank: int) -> list[Any]:
        def begin(arrays: Sequence[HostArray], what: str) -> Finish:
            sent[rank] += sum(array.nbytes for array in arrays)
            return lambda: [np.sum(each, 0) for each in zip(*meeting.all(rank, arrays), strict=True)]

        def gather(arrays: Sequence[HostArray], what: str, count: int) -> Any:
            assert count == islands
            sent[rank] += sum(array.nbytes for array in arrays)
            return lambda: meeting.all(rank, arrays)

        pieces = Pieces.of(closed, begin, factors=Factors(gather, islands))
        assert pieces is not None
        return pieces(*given[rank])

    with ThreadPoolExecutor(islands) as pool:
        results = list(pool.map(run, range(islands)))
    x = np.concatenate([each[0].reshape(-1, width) for each in given]).astype("float64")
    y = np.tanh(np.concatenate([each[1].reshape(-1, height) for each in given]).astype("float64"))
    gradient = np.asarray(x.T @ y)
    if make is not makes[0]:
        gradient = gradient.T if make is makes[1] else -gradient.T
    gradient = gradient * (2 if is_scaled else 1)
    for own in results:
        np.testing.assert_allclose(own[0], w - 0.1 * gradient.reshape(-1), rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(own[3], x.T @ x, rtol=1e-3, atol=1e-2)
        np.testing.assert_array_equal(own[0], results[0][0])
        np.testing.assert_array_equal(own[3], results[0][3])
    products = 4 * (width * height + width * width)
    rows_bytes = 4 * math.prod(shape) * (width + height)
    if is_scaled:
        assert max(sent) >= 4 * width * height
    elif 8 * rows_bytes < products and 4 * 4 * min(width * height, width * width) > 1 << 20:
        assert max(sent) <= rows_bytes + 4
    assert max(sent) <= products + 4


class Meeting:
    """Gives all islands, each in a thread, what each has brought."""

    def __init__(self, islands: int) -> None:
        self._barrier = threading.Barrier(islands, timeout=60.0)
        self._brought: list[Any] = [None] * islands

    def all(self, rank: int, arrays: Sequence[HostArray]) -> list[Any]:
        self._barrier.wait()
        self._brought[rank] = arrays
        self._barrier.wait()
        return list(self._brought)
