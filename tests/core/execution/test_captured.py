"""Arrays that a function closes over: never the state of a library's modules, and named where they are large."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxtribute as jd

ONES = np.ones((4, 3), np.float32)
Use = Callable[[Callable[[Any], Any]], Callable[[], Any]]


def linear() -> nnx.Linear:
    return nnx.Linear(3, 2, rngs=nnx.Rngs(0))


def module() -> eqx.nn.Linear:
    return eqx.nn.Linear(3, 2, key=jax.random.key(0))


def directly(apply: Callable[[Any], Any]) -> Callable[[], Any]:
    return jd.function(lambda: apply(ONES))


def in_an_inner_jit(apply: Callable[[Any], Any]) -> Callable[[], Any]:
    return jd.function(lambda: jax.jit(apply)(ONES))


def in_a_scan(apply: Callable[[Any], Any]) -> Callable[[], Any]:
    return jd.function(lambda: jax.lax.scan(lambda carry, x: (carry, apply(x[None])), 0, ONES))


def in_a_gradient(apply: Callable[[Any], Any]) -> Callable[[], Any]:
    scale = jd.Variable(1.0)
    return jd.function(jd.grad(lambda: jnp.sum(apply(ONES)) * scale, scale))


def on_replicas(apply: Callable[[Any], Any]) -> Callable[[], Any]:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    return jd.function(lambda: strategy.run(apply, args=(ONES,)))


USES = [directly, in_an_inner_jit, in_a_scan, in_a_gradient, on_replicas]


@pytest.mark.parametrize("use", USES)
def test_the_state_of_an_nnx_module(use: Use) -> None:
    with pytest.raises(jd.errors.VariableError, match=r"a Param of flax[.]nnx holds.*HINT: make it a jd.Model"):
        use(linear())()


@pytest.mark.parametrize("use", USES)
def test_the_arrays_of_an_equinox_module(use: Use) -> None:
    model = module()
    with pytest.raises(jd.errors.VariableError, match=r"a Linear of equinox holds.*HINT: make it a jd.Model"):
        use(jax.vmap(model))()


def test_state_deep_in_other_objects() -> None:
    holder = {"models": [{"net": linear()}]}
    with pytest.raises(jd.errors.VariableError, match="of flax"):
        directly(lambda x: 2 * holder["models"][0]["net"](x))()


def test_attributes_in_a_dictionary() -> None:
    model = module()
    assert vars(model)["weight"] is model.weight  # they lie in a dictionary from now on
    with pytest.raises(jd.errors.VariableError, match="of equinox"):
        directly(jax.vmap(model))()


def test_statistics_are_state_too() -> None:
    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0), use_running_average=True)
    with pytest.raises(jd.errors.VariableError, match="of flax"):
        directly(lambda x: x + model.mean[0])()


def test_modules_as_arguments_and_in_variables() -> None:
    model = module()
    assert jd.function(lambda net: jax.vmap(net)(ONES))(model).shape == (4, 2)
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    params = jax.tree.map(jd.Variable, arrays)

    @jd.function
    def outputs() -> Any:
        values = jax.tree.map(
            lambda leaf: leaf.read_value(), params, is_leaf=lambda leaf: isinstance(leaf, jd.Variable)
        )
        return jax.vmap(eqx.combine(values, static))(ONES)

    np.testing.assert_allclose(outputs(), jax.vmap(model)(jnp.asarray(ONES)), rtol=1e-6)


def test_what_an_equinox_module_counts_by_may_stay() -> None:
    class Chosen(eqx.Module):
        places: jax.Array

        def __call__(self, x: Any) -> Any:
            return x[:, self.places]

    chosen = Chosen(jnp.asarray([2, 0]))
    assert jd.function(lambda: chosen(jnp.asarray(ONES)))().shape == (4, 2)


def test_objects_that_are_called_have_no_name_of_their_own() -> None:
    class Doubling:
        def __call__(self, x: Any) -> Any:
            return 2 * x

    assert jd.function(Doubling())(ONES)[0, 0] == 2
    assert "jd.function Doubling" in repr(jd.function(Doubling()))


def test_plain_constants_may_stay_and_large_ones_are_named(caplog: pytest.LogCaptureFixture) -> None:
    small, large = jnp.ones(3), jnp.ones((512, 1024))
    with caplog.at_level(logging.DEBUG, logger="jaxtribute._src.core.execution.capture"):
        assert float(jd.function(lambda: jnp.sum(small) + jnp.sum(large))()) == 3 + 512 * 1024
    (record,) = caplog.records
    assert "shape (512, 1024)" in record.getMessage()
    assert "HINT" in record.getMessage()
