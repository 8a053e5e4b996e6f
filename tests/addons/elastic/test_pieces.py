"""Programs that are cut where islands exchange values, against the whole ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxtribute._src.addons.elastic import pieces as pieces_module
from jaxtribute._src.addons.elastic.pieces import EXCHANGE, Pieces
from jaxtribute._src.core.jaxprs.core import as_function
from jaxtribute.typing import HostArray

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


@pytest.mark.parametrize("program", [two, far_apart, effects_in_order, inside_calls, nothing, at_the_ends, constant])
def test_pieces_compute_what_the_whole_does(program: Callable[..., Any]) -> None:
    x, y = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([4.0, 5.0, 7.0])
    closed = jax.make_jaxpr(program)(x, y)
    exchanged: list[str] = []

    def exchange(arrays: Sequence[HostArray], what: str) -> Finish:
        exchanged.append(what)
        return lambda: tripled(arrays)

    pieces = Pieces.of(closed, exchange)
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
        nothing: [],
    }
    assert exchanged == rounds.get(program, ["a sum"])


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
