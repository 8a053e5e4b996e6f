"""What the library does not know is careful: it varies, is a collective if it names the axis, and is named in a log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental import pallas
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jaxtribute as jd
from jaxtribute._src.core.execution.capture import varying_outputs
from jaxtribute._src.core.execution.central.placing import sink
from jaxtribute._src.core.execution.cutting import makes_collectives
from jaxtribute._src.core.jaxprs.core import opened
from jaxtribute._src.core.jaxprs.kinds import list_collectives
from jaxtribute._src.core.values.mesh import AXIS
from jaxtribute._src.core.values.slices import Cut
from jaxtribute.errors import VariableError
from replicas import mirrored, per_replica

ONE = jnp.ones(2)


def primitive(name: str, lowered: Callable[..., Any] = lambda x, **_: x) -> Primitive:
    """An operation of someone else's."""
    made = Primitive(name)
    made.def_abstract_eval(lambda aval, **_: aval)
    mlir.register_lowering(made, mlir.lower_fun(lowered, multiple_results=False))
    return made


strange_p = primitive("strange")
exchange_p = primitive("exchange", lambda x, over: lax.ppermute(x, over, [(0, 1), (1, 0)]))
"""A collective that is in no list."""
called_add_p = primitive("add")
"""One that has the name of a known one."""


def program(fn: Callable[..., Any], *inputs: Any) -> Any:
    return opened(jax.make_jaxpr(fn, axis_env=[(AXIS, 2)])(*inputs))


def varies(fn: Callable[..., Any]) -> bool:
    """Whether the result of `fn` of an input that is the same on every replica may differ."""
    return any(varying_outputs(program(fn, ONE), [False]))


UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "primitive": strange_p.bind,
    "with a known name": called_add_p.bind,
    "in jit": jax.jit(strange_p.bind),
    "in scan": lambda x: lax.scan(lambda c, _: (strange_p.bind(c), None), x, None, length=2)[0],
    "in a branch": lambda x: lax.cond(x[0] > 0, lambda: strange_p.bind(x), lambda: x),
    "in the test of a loop": lambda x: lax.while_loop(lambda c: strange_p.bind(c)[0] < 3, lambda c: c + 1, x),
    "in a reduction": lambda x: lax.reduce(x, jnp.float32(0), lambda a, b: strange_p.bind(a) + b, (0,)),
    "collective": lambda x: exchange_p.bind(x, over=AXIS),
    "collective in remat": jax.checkpoint(lambda x: exchange_p.bind(x, over=(AXIS, "other"))),
    "read of a mutable reference": lambda x: jax.new_ref(x)[...],
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_varies(name: str) -> None:
    assert varies(UNKNOWN[name])


def test_what_is_not_known_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "jaxtribute"):
        assert varies(jax.jit(strange_p.bind))
    assert "strange is no operation that the library knows" in caplog.text


def test_a_mean_makes_what_is_not_known_the_same_again() -> None:
    assert not varies(lambda x: lax.pmean(strange_p.bind(x), AXIS))


def kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


KNOWN: dict[str, Callable[[Any], Any]] = {
    "a kernel": lambda x: pallas.pallas_call(kernel, out_shape=x, interpret=True)(x),
    "a foreign function": jax.ffi.ffi_call("target", jax.ShapeDtypeStruct((2,), jnp.float32)),
    "a mask of dropout": lambda x: jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), x, 0),
    "a jit that is named as the axis": jax.jit(lambda x: x * 2),
    "a print": lambda x: (jax.debug.print("replica"), jax.jit(lambda y: (jax.debug.print("{}", y), y)[1])(x))[1],
}
KNOWN["a jit that is named as the axis"].__name__ = AXIS


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_a_function_of_its_operands_is_the_same(name: str) -> None:
    assert not varies(KNOWN[name])
    assert list_collectives(program(KNOWN[name], ONE), AXIS) == []


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "pmax": lambda x: lax.pmax(x, AXIS),
    "pmin": lambda x: lax.pmin(x, AXIS),
    "ragged_all_to_all": lambda x: lax.ragged_all_to_all(x, x, *[jnp.zeros(2, jnp.int32)] * 4, axis_name=AXIS),
    "jd_whole": lambda x: Cut((4,), 2).whole(x),
    "exchange": lambda x: exchange_p.bind(x, over=AXIS),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_ledger_and_ragged_replicas_see_every_collective(name: str) -> None:
    jaxpr = program(jax.jit(COLLECTIVES[name]), ONE)
    (line,) = list_collectives(jaxpr, AXIS)
    assert line.startswith(f"{name} of float32[2]")
    assert makes_collectives(jaxpr.eqns[0])


def test_results_of_run_are_typed_by_what_is_known() -> None:
    strategy = mirrored(2)

    @jd.function
    def step() -> Any:
        return strategy.run(lambda: (strange_p.bind(jnp.float32(1)), jnp.float32(1) + 1))

    strange, known = step()
    assert isinstance(strange, jd.PerReplica)
    assert isinstance(known, jd.Mirrored)


def test_a_variable_does_not_take_what_is_not_known() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        weight = jd.Variable(0.0)
        odd = optax.stateless(lambda updates, _: jax.tree.map(strange_p.bind, updates))
        optimizer = jd.Optimizer(odd, [weight])

    @jd.function
    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients([jnp.float32(1)]))

    with pytest.raises(VariableError, match="would get a different value on each of 2 replicas"):
        step()
    assert float(weight) == 0


def test_a_collective_that_is_in_no_list_works_in_replicas_of_different_shapes() -> None:
    strategy = mirrored(2)

    @jd.function
    def step(x: Any) -> Any:
        return strategy.run(lambda y: exchange_p.bind(y.sum(), over=AXIS) + y.sum() * 10, (x,))

    parts = [np.arange(3, dtype=np.float32), np.array([7.0], np.float32)]
    found = step(per_replica(strategy, parts))
    assert [float(one) for one in found.values] == [7 + 30, 3 + 70]


def test_what_is_not_known_stays_with_the_replicas_of_central_storage() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), (AXIS,))
    split, everywhere = jax.sharding.PartitionSpec(AXIS), jax.sharding.PartitionSpec()

    def replica(x: Any) -> Any:
        return strange_p.bind(lax.psum(x, AXIS)) * 2

    mapped = jax.shard_map(replica, mesh=mesh, in_specs=split, out_specs=everywhere, check_vma=False)
    (eqn,) = opened(jax.make_jaxpr(mapped)(jnp.ones(2))).eqns
    upper, rest = sink(eqn, [True])
    assert [one.primitive.name for one in opened(upper.params["jaxpr"]).eqns] == ["psum", "strange", "mul"]
    assert rest == []
