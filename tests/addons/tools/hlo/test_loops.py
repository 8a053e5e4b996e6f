"""How often the parts of programs with loops run: as often as the same programs without loops do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from jaxtribute._src.addons.tools.hlo.exchanges import bytes_moved, collectives
from jaxtribute._src.addons.tools.hlo.loops import runs
from jaxtribute._src.addons.tools.hlo.text import read
from jaxtribute._src.addons.tools.hlo.work import costs, flops, kernels, open_loops, passes, traffic

SIZE = 16
PRODUCT = 2 * SIZE**3


def text_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
    return compiled(function, *shapes).as_text()


def compiled(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile()


def power(x: Any, times: int) -> Any:
    return lax.fori_loop(0, times, lambda _, y: jnp.tanh(y @ x), x)


@given(st.integers(2, 9), st.integers(2, 9))
def test_turns_of_nested_loops_multiply(outer: int, inner: int) -> None:
    text = text_of(lambda x: lax.fori_loop(0, outer, lambda _, y: power(y, inner), x), (SIZE, SIZE))
    assert flops(text) == outer * inner * PRODUCT
    assert open_loops(text) == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_and_its_gradient_count_as_their_turns(reverse: bool) -> None:
    def scanned(weights: Any, x: Any) -> Any:
        return lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, weights, reverse=reverse)[0].sum()

    text = text_of(jax.grad(scanned), (5, SIZE, SIZE), (SIZE, SIZE))
    assert flops(text) == 3 * 5 * PRODUCT


@pytest.mark.parametrize("start", [0, 3])
def test_turns_are_read_from_the_condition_where_they_are_not_told(start: int) -> None:
    text = text_of(lambda x: lax.fori_loop(start, 10, lambda _, y: jnp.tanh(y @ x), x), (SIZE, SIZE))
    untold = text.replace("known_trip_count", "something_else")
    assert untold != text
    told, found = runs(read(text)), runs(read(untold))
    # This compiler hides the comparison in a fusion: what cannot be read is said to be unknown.
    assert found.unknown == 1 or found.times == told.times


LOOP = """\
%body (s: (s32[], f32[8,8], s32[])) -> (s32[], f32[8,8], s32[]) {
  %s = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, s32[]{:T(128)}) parameter(0)
  %one = s32[]{:T(128)} constant(STEP)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  %held = s32[]{:T(128)} copy(%i)
  %next = s32[]{:T(128)} add(%held, %one)
  %x = f32[8,8]{1,0:T(8,128)} get-tuple-element(%s), index=1
  %y = f32[8,8]{1,0:T(8,128)} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %z = f32[8,8]{1,0:T(8,128)} all-reduce(%y), channel_id=1, replica_groups={{0,1}}, to_apply=%sum
  %n = s32[]{:T(128)} get-tuple-element(%s), index=2
  ROOT %t = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, s32[]{:T(128)}) tuple(%next, %z, LAST)
}

%condition (s: (s32[], f32[8,8], s32[])) -> pred[] {
  %s = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  %n = s32[]{:T(128)} get-tuple-element(%s), index=2
  %const = s32[]{:T(128)} constant(LIMIT)
  ROOT %go = pred[]{:T(512)} compare(%i, NAME), direction=WAY
}

ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0:T(8,128)} parameter(0)
  %start = s32[]{:T(128)} constant(START)
  %limit = s32[]{:T(128)} constant(LIMIT)
  %state = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, s32[]{:T(128)}) tuple(%start, %x, %limit)
  %while.1 = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, s32[]{:T(128)}) while(%state), condition=%condition, body=%body
  ROOT %r = f32[8,8]{1,0:T(8,128)} get-tuple-element(%while.1), index=1
}
"""


def loop(start: int, limit: int, step: int, way: str, name: str = "%const", last: str = "%n") -> str:
    """A program as the compiler of TPUs writes it, which does not tell how often a loop turns."""
    changes = {"START": start, "LIMIT": limit, "STEP": step, "WAY": way, "NAME": name, "LAST": last}
    text = LOOP
    for old, new in changes.items():
        text = text.replace(old, str(new))
    return text


@given(st.integers(-5, 5), st.integers(-5, 12), st.integers(1, 4), st.sampled_from(["LT", "LE", "GT", "GE"]))
def test_turns_follow_from_the_condition(start: int, limit: int, step: int, way: str) -> None:
    step = step if way in ("LT", "LE") else -step
    goes_on = {
        "LT": lambda i: i < limit,
        "LE": lambda i: i <= limit,
        "GT": lambda i: i > limit,
        "GE": lambda i: i >= limit,
    }[way]
    turns, i = 0, start
    while goes_on(i):
        turns, i = turns + 1, i + step
    for name in ("%const", "%n"):
        text = loop(start, limit, step, way, name)
        assert flops(text) == turns * 2 * 8**3
        assert bytes_moved(text, 2) == turns * 2 * 8 * 8 * 4 / 2
        assert [one.times for one in collectives(text, 2)] == ([turns] if turns else [])
        assert open_loops(text) == 0


@pytest.mark.parametrize(
    "text",
    [
        loop(0, 7, 1, "NE"),
        loop(0, 7, -1, "LT"),  # would go on for ever
        loop(0, 7, 1, "LT", "%n", "%next"),  # the limit changes
        loop(0, 7, 1, "LT", "%unheard"),
        loop(0, 7, 1, "LT").replace("add(", "multiply("),
        loop(0, 7, 1, "LT").replace("constant(0)", "parameter(1)"),
    ],
)
def test_a_loop_that_cannot_be_read_counts_once_and_is_told(text: str) -> None:
    assert flops(text) == 2 * 8**3
    assert open_loops(text) == 1


def test_a_loop_that_depends_on_values_is_told() -> None:
    text = text_of(lambda x: lax.while_loop(lambda y: y.sum() < 5, lambda y: jnp.tanh(y @ x), x), (SIZE, SIZE))
    assert open_loops(text) == 1
    assert flops(text) == PRODUCT


def test_costs_of_a_scan_are_those_of_its_layers_one_by_one() -> None:
    def layer(x: Any, w: Any) -> Any:
        return jax.nn.silu(x @ w) * 2 + x

    def scanned(weights: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0].sum()

    def unrolled(weights: Any, x: Any) -> Any:
        for place in range(6):
            x = layer(x, weights[place])
        return x.sum()

    (turns, moved), (operations, nbytes) = (
        costs(compiled(jax.grad(one, (0, 1)), (6, 128, 128), (32, 128))) for one in (scanned, unrolled)
    )
    assert turns == pytest.approx(operations, rel=0.03)  # other operations are fused, and made again
    assert nbytes <= moved <= 2 * nbytes  # a scan also keeps what its backward pass needs in stacks


def test_a_slice_of_a_stack_counts_as_the_slice() -> None:
    stack, rows = 64 * 32 * 32 * 4, 32 * 32 * 4
    text = text_of(lambda w: lax.scan(lambda x, each: (x + each, None), jnp.zeros((32, 32)), w)[0], (64, 32, 32))
    assert stack <= traffic(text) <= 4 * stack + 64 * rows
    assert len(passes(text)) >= 64
    assert kernels(text) >= 64
