"""Plain modules of Flax NNX, and variables of Keras made in no scope, in replica functions: reduced, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxtribute as jd
from jaxtribute.errors import VariableError
from processes import run_python
from replicas import STRATEGIES, here, mirrored, per_replica

SEVERAL = ("mirrored", "sharded", "central")
each_of_several = pytest.mark.parametrize("name", SEVERAL)
X = [np.full((2, 2), 1.0 + i, np.float32) for i in range(2)]


class Trained:
    """A module with an optimizer of its own library."""

    def __init__(self) -> None:
        self.module = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        self.optimizer = nnx.Optimizer(self.module, optax.sgd(0.5), wrt=nnx.Param)

    def step(self, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda module: jnp.sum(module(x)))(self.module)
        self.optimizer.update(self.module, grads)
        return loss

    def state(self) -> Any:
        return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state((self.module, self.optimizer))))


def writes(kind: str) -> tuple[Callable[[Any], Any], Any]:
    """A replica function that changes a module from around it, and that module."""
    if kind == "BatchNorm":
        norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
        return norm, norm
    if kind == "Dropout":
        dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        return dropout, dropout
    module = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    if kind == "item":

        def add(x: Any) -> Any:
            module.kernel[...] += x.sum()
            return x

        return add, module

    @nnx.jit
    def scaled(module: nnx.Linear) -> None:
        module.kernel[...] *= 2

    def scale(x: Any) -> Any:
        scaled(module)
        return x

    return scale, module


def arrays(module: Any) -> list[bytes]:
    keys = [jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a for a in leaves(module)]
    return [np.asarray(key).tobytes() for key in keys]


def leaves(module: Any) -> list[Any]:
    return jax.tree.leaves(nnx.state(module))


@each_of_several
@pytest.mark.parametrize("kind", ["BatchNorm", "Dropout", "item", "nnx.jit"])
@pytest.mark.parametrize("compiled", [False, True])
def test_replicas_do_not_change_a_module_from_around_them(name: str, kind: str, compiled: bool) -> None:
    strategy = STRATEGIES[name]()
    fn, module = writes(kind)
    before = arrays(module)

    def step(x: Any) -> Any:
        return strategy.run(fn, (x,))

    with pytest.raises(VariableError, match=r"(?s)Flax NNX.*HINT.*jd\.Model"):
        (jd.function(step) if compiled else step)(per_replica(strategy, X))
    # In a program it is Flax that raises, and `nnx.jit` has taken the module apart by then.
    if not (compiled and kind == "nnx.jit"):
        assert arrays(module) == before


@each_of_several
@pytest.mark.parametrize("compiled", [False, True])
def test_the_optimizer_of_nnx_is_not_stepped_once_for_each_replica(name: str, compiled: bool) -> None:
    strategy = STRATEGIES[name]()
    trained = Trained()
    before = trained.state()

    def step(x: Any) -> Any:
        return strategy.run(trained.step, (x,))

    with pytest.raises(VariableError, match=r"(?s)Flax NNX.*HINT.*jd\.Model"):
        (jd.function(step) if compiled else step)(per_replica(strategy, X))
    jax.tree.map(np.testing.assert_array_equal, trained.state(), before)
    trained.step(X[0])  # the module is whole


@pytest.mark.parametrize("name", ["default", "one device"])
def test_one_replica_may_change_it(name: str) -> None:
    strategy, trained, plain = STRATEGIES[name](), Trained(), Trained()
    strategy.run(trained.step, (X[0],))
    plain.step(X[0])
    jax.tree.map(np.testing.assert_array_equal, trained.state(), plain.state())


@each_of_several
def test_what_is_read_or_passed_and_returned_is_no_change(name: str) -> None:
    strategy = STRATEGIES[name]()
    x = per_replica(strategy, X)
    trained, plain = Trained(), Trained()
    optimizer = trained.optimizer

    def functional(module: Any, optimizer: Any, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda module: jnp.sum(module(x)))(module)
        optimizer.update(module, here().all_reduce("SUM", grads))
        return loss, module.kernel[...]

    def made_within(x: Any) -> Any:
        norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
        norm(x)
        return norm.mean[...]

    def read(x: Any) -> Any:
        return nnx.value_and_grad(lambda module: jnp.sum(module(x)))(trained.module)[0]

    losses = strategy.run(read, (x,))
    _, kernel = strategy.run(functional, (trained.module, optimizer, x))
    for part, rows in zip(losses.values, X, strict=True):
        np.testing.assert_allclose(part, jnp.sum(plain.module(jnp.asarray(rows))), rtol=1e-6)
    plain.step(np.concatenate(X))
    for part in strategy.experimental_local_results(kernel):
        np.testing.assert_allclose(part, plain.module.kernel[...], rtol=1e-6)
    assert [part.tolist() for part in strategy.run(made_within, (x,)).values] != [[0, 0], [0, 0]]


def test_a_merge_call_may_change_it() -> None:
    strategy, count = mirrored(2), nnx.Param(jnp.zeros(()))

    def add(strategy: jd.Strategy, x: Any) -> None:
        count[...] += strategy.reduce("SUM", x, axis=None).sum()

    strategy.run(lambda x: here().merge_call(add, (x,)), (per_replica(strategy, X),))
    assert float(count[...]) == 12


def test_a_failed_program_of_something_else_keeps_its_error() -> None:
    def fail() -> None:
        raise ValueError("a trace of something else")

    with pytest.raises(ValueError, match="something else"):
        jd.function(fail)()


@pytest.mark.slow
def test_keras_variables_of_no_scope_are_known_in_the_first_eager_run() -> None:
    # In a process of its own, in which no scope has been entered and nothing has been compiled before.
    program = """
        import os
        os.environ["KERAS_BACKEND"] = "jax"
        import jax.numpy as jnp, keras, numpy as np
        import jaxtribute as jd

        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        layer, count = keras.layers.Dense(1), keras.Variable(np.zeros(2, "float32"))
        layer.build((None, 2))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(layer.trainable_variables)

        def replica():
            optimizer.apply_gradients([(jnp.ones(v.shape), v) for v in layer.trainable_variables])
            count.assign(count + 1)

        strategy.run(replica)
        print(int(optimizer.iterations), [float(one) for one in count.value])
    """
    assert run_python(program, devices=2, timeout=120).split("\n")[0] == "1 [1.0, 1.0]"
