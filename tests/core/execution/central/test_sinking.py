"""What leaves the replicas' program, and what stays in it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxtribute._src.core.execution.central.placing import sink
from jaxtribute._src.core.jaxprs.making import equal
from jaxtribute._src.core.jaxprs.walking import piece, used_by
from jaxtribute._src.core.values.mesh import AXIS
from replicas import mirrored

SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()
X = jnp.arange(4.0)


def shard_map_of(fn: Callable[..., Any], outs: tuple[PartitionSpec, ...], *others: Any) -> Any:
    """The traced program of `fn(x, *others)` on two replicas, `x` split."""
    mesh = mirrored(2).extended.mesh.mesh
    specs = (SPLIT, *(WHOLE for _ in others))
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=outs, check_vma=False)
    return jax.make_jaxpr(mapped)(X, *others)


def names(eqns: Any) -> list[str]:
    return [eqn.primitive.name for eqn in eqns]


def run_both(closed: Any, sinks: list[bool], *inputs: Any) -> tuple[Any, list[str], list[str]]:
    """The outputs of the two parts in the order of the whole, and what each part does."""
    (eqn,) = closed.jaxpr.eqns
    upper, rest = sink(eqn, sinks)
    assert not closed.consts
    joined = piece(closed, closed.jaxpr.invars, [upper, *rest], closed.jaxpr.outvars)
    return jex.jaxpr_as_fun(joined)(*inputs), names(upper.params["jaxpr"].eqns), names(rest)


def test_the_update_behind_a_reduction_sinks() -> None:
    def step(x: Any, v: Any) -> Any:
        grad = lax.psum(x.sum(), AXIS)
        return x * 2, v - jnp.float32(0.1) * grad

    closed = shard_map_of(step, (SPLIT, WHOLE), jnp.float32(1.0))
    outputs, stay, gone = run_both(closed, [False, True], X, jnp.float32(1.0))
    assert "psum" in stay
    assert "sub" not in stay
    assert gone == ["mul", "sub"]
    np.testing.assert_allclose(outputs[0], X * 2)
    np.testing.assert_allclose(outputs[1], 0.4)


def test_what_the_replicas_need_too_stays() -> None:
    def step(x: Any, v: Any) -> Any:
        new = v + lax.psum(x.sum(), AXIS)
        return x * new, new * 3

    closed = shard_map_of(step, (SPLIT, WHOLE), jnp.float32(1.0))
    outputs, stay, gone = run_both(closed, [False, True], X, jnp.float32(1.0))
    assert "add" in stay
    assert gone == ["mul"]
    np.testing.assert_allclose(outputs[1], 21.0)


def test_an_output_that_is_itself_reduced_stays() -> None:
    closed = shard_map_of(lambda x: (lax.psum(x.sum(), AXIS),), (WHOLE,))
    outputs, stay, gone = run_both(closed, [True], X)
    assert stay[-1] == "psum"
    assert gone == []
    assert float(outputs[0]) == 6.0


def test_an_input_that_only_the_update_uses_leaves_the_replicas() -> None:
    closed = shard_map_of(lambda x, v: (x + 1, v * 2), (SPLIT, WHOLE), jnp.float32(1.0))
    (eqn,) = closed.jaxpr.eqns
    upper, rest = sink(eqn, [False, True])
    assert len(upper.invars) == len(upper.params["in_specs"]) == 1
    assert names(rest) == ["mul"]


@pytest.mark.parametrize("twice", [True, False])
def test_outputs_that_share_a_value(twice: bool) -> None:
    def step(x: Any, v: Any) -> Any:
        new = v + lax.psum(x.sum(), AXIS)
        return (new, new) if twice else (new, v)

    closed = shard_map_of(step, (WHOLE, WHOLE), jnp.float32(1.0))
    outputs, _, _ = run_both(closed, [True, True], X, jnp.float32(1.0))
    assert [float(out) for out in outputs] == [7.0, 7.0 if twice else 1.0]


def test_a_value_marked_as_equal_counts_as_reduced() -> None:
    closed = shard_map_of(lambda x, v: (v + equal(x.sum()),), (WHOLE,), jnp.float32(1.0))
    _, stay, gone = run_both(closed, [True], X, jnp.float32(1.0))
    assert "jd_equal" in stay
    assert gone == ["add"]


def test_collectives_of_constants_stay() -> None:
    def step(x: Any, v: Any) -> Any:
        return (v * lax.psum(jnp.float32(1.0) * v, AXIS) + lax.axis_size(AXIS),)

    closed = shard_map_of(step, (WHOLE,), jnp.float32(3.0))
    outputs, stay, gone = run_both(closed, [True], X, jnp.float32(3.0))
    assert "psum" in stay
    assert "psum" not in gone
    assert float(outputs[0]) == 3 * 6 + 2


def test_a_piece_takes_the_constants_that_it_uses() -> None:
    table = jnp.arange(100.0)
    closed = jax.make_jaxpr(lambda x: (x + table, x * 2))(X[0])
    eqns = closed.jaxpr.eqns
    add = [eqn for eqn in eqns if eqn.primitive.name == "add"]
    before = [eqn for eqn in eqns if eqn not in add and eqn.primitive.name != "mul"]
    first = piece(closed, closed.jaxpr.invars, [*before, *add], closed.jaxpr.outvars[:1])
    np.testing.assert_allclose(jex.jaxpr_as_fun(first)(jnp.float32(1.0))[0], table + 1)
    assert closed.jaxpr.invars[0] in used_by(add) or before
