"""Models of Flax NNX and Keras 3 are kept by the variables that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import jaxtribute as jd
from processes import run_python


@pytest.mark.slow
def test_a_program_without_these_libraries_does_not_load_them() -> None:
    run_python("""
        import sys
        import jaxtribute as jd
        from jaxtribute._src.core.checkpoint.state import adapter_of
        assert adapter_of(object()) is None
        assert not {"flax", "keras"} & set(sys.modules)
    """)


def test_flax(tmp_path: Path) -> None:
    nnx: Any = pytest.importorskip("flax.nnx")

    def make(seed: int) -> tuple[Any, Any]:
        rngs = nnx.Rngs(seed)

        class Model(nnx.Module):
            def __init__(self) -> None:
                self.dense = nnx.Linear(3, 2, rngs=rngs)
                self.tied = self.dense
                self.norm = nnx.BatchNorm(2, rngs=rngs)
                self.drop = nnx.Dropout(0.5, rngs=rngs)

        model = Model()
        return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)

    def state(value: Any) -> list[Any]:
        leaves = jax.tree.leaves(nnx.state(value))
        return [
            jax.random.key_data(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
            for leaf in leaves
        ]

    model, optimizer = make(1)
    with jax.numpy_dtype_promotion("standard"):
        optimizer.update(model, jax.tree.map(np.ones_like, nnx.state(model, nnx.Param)))
    path = jd.Checkpoint(model=model, optimizer=optimizer, kernel=model.dense.kernel).save(
        tmp_path / "ckpt", block=True
    )
    described = (Path(path) / "jaxtribute.json").read_text()
    assert '"model.dense.kernel"' in described
    assert '"optimizer.opt_state.0.mu.dense.kernel"' in described
    other, second = make(2)
    jd.Checkpoint(model=other, optimizer=second, kernel=other.dense.kernel).restore(path, strict=False)
    for mine, theirs in ((model, other), (optimizer, second)):
        for one, two in zip(state(mine), state(theirs), strict=True):
            np.testing.assert_array_equal(one, two)


_KERAS = """
    import sys
    import keras
    import numpy as np
    import jaxtribute as jd

    def make():
        layers = [keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()]
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    model, other = make(), make()
    for variable in model.optimizer.variables:
        variable.assign(np.full(variable.shape, 2))
    path = jd.Checkpoint(model=model, alone=keras.Variable(3.0)).save(sys.argv[1], block=True)
    assert '"model.0_kernel"' in open(path + "/jaxtribute.json").read()
    alone = keras.Variable(0.0)
    jd.Checkpoint(model=other, alone=alone).restore(path)
    assert float(alone.value) == 3.0
    for one, two in zip(model.variables + model.optimizer.variables, other.variables + other.optimizer.variables):
        np.testing.assert_array_equal(one.value, two.value)
"""


@pytest.mark.slow
def test_keras(tmp_path: Path) -> None:
    # It sets environment variables when it is loaded, so it gets a process of its own.
    run_python(_KERAS, str(tmp_path / "ckpt"), env={"KERAS_BACKEND": "jax"})
