"""The collectives of a program in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxtribute._src.core.collectives.summation import ExchangeSum
from jaxtribute._src.core.jaxprs.kinds import list_collectives
from jaxtribute._src.core.values.mesh import AXIS


def program(x: Any) -> Any:
    total = lax.psum(x, AXIS)  # the sum

    def body(carry: Any, _: None) -> tuple[Any, None]:
        return carry + lax.all_gather(carry, AXIS).sum(0), None  # the gather

    return lax.scan(body, total, None, length=2)[0] + lax.ppermute(x, AXIS, [(0, 1)])


def test_kinds_shapes_and_lines_in_order() -> None:
    closed = jax.make_jaxpr(program, axis_env=[(AXIS, 2)])(jnp.ones(3))
    found = list_collectives(closed.jaxpr, AXIS)
    assert [text.partition(" of ")[0] for text in found] == ["psum", "all_gather", "ppermute"]
    assert all("float32[3]" in text for text in found)
    assert all(f" at {__file__}:" in text for text in found)


def test_inside_a_custom_gradient_it_is_the_line_of_the_call() -> None:
    def summed(x: Any) -> Any:
        return ExchangeSum()([x], 2)[0]  # the call

    (found,) = list_collectives(jax.make_jaxpr(summed, axis_env=[(AXIS, 2)])(jnp.ones(3)).jaxpr, AXIS)
    call = next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "# the call" in line)
    assert found == f"ppermute of float32[3] at {__file__}:{call}"


def test_a_program_without_collectives() -> None:
    assert list_collectives(jax.make_jaxpr(jax.jit(lambda x: x + jnp.float32(1)))(jnp.ones(3)).jaxpr, AXIS) == []
