"""Weights go to files of safetensors and come back bit-equal, from any layout into any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import jaxtribute as jd
from jaxtribute._src.addons.models import safetensors
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.errors import ArgumentError, ArgumentTypeError, CheckpointMismatchError, ContextError
from replicas import mirrored, one_device
from safetensors_workers import weights_of_a_worker

library: Any = pytest.importorskip("safetensors.numpy")


def sharded(replicas: int) -> jd.Strategy:
    return jd.FullyShardedStrategy([f"CPU:{i}" for i in range(replicas)], min_bytes=0)


def variables(strategy: jd.Strategy, values: Any) -> Any:
    with strategy.scope():
        return {name: jd.Variable(value, name=name) for name, value in values.items()}


SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DTYPES = st.sampled_from(["float32", "bfloat16", "float16", "int32", "uint8", "bool"])


@given(st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=8)
def test_any_shapes_from_any_number_of_replicas_onto_any_other(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[Any], before: int, after: int
) -> None:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    rng = np.random.default_rng(0)
    values = {f"v{i}": np.asarray(rng.random(shape) * 100, jnp.dtype(dtype)) for i, (shape, dtype) in enumerate(kinds)}
    safetensors.save(variables(sharded(before), values), path)
    found = library.load_file(path)
    assert set(found) == set(values)
    for name, value in values.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert found[name].tobytes() == value.tobytes()
    library.save_file(values, path)
    loaded = variables(sharded(after), {name: np.zeros_like(value) for name, value in values.items()})
    places = [variable.stored.sharding for variable in loaded.values()]
    safetensors.load(loaded, path)
    for name, value in values.items():
        assert loaded[name].numpy().tobytes() == value.tobytes()
    assert [variable.stored.sharding for variable in loaded.values()] == places


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


def test_an_abstract_model_is_filled_and_trains_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "model.safetensors"
    with mirrored(2).scope():
        model = jd.Model(Net(nnx.Rngs(0)), optax.adam(1e-3))
    safetensors.save(model, path, metadata={"format": "jax"})
    found = library.load_file(path)
    assert set(found) == {"norm.bias", "norm.mean", "norm.scale", "norm.var"} | {
        f"layers.{i}.{name}" for i in range(2) for name in ("bias", "kernel")
    }
    with sharded(4).scope():
        other = jd.Model(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), optax.adam(1e-3), rng=0)
    assert not other.parameters["layers"][0]["kernel"].numpy().any()
    safetensors.load(other, path)
    for name, variable in safetensors.weights(other).items():
        assert_array_equal(variable.numpy(), found[name])
    assert other.value.layers[1].kernel.get_value().shape == (4, 4)


def test_a_folder_of_files_with_names_of_another_library(tmp_path: Path) -> None:
    library.save_file({"model.a": np.ones((2, 3), np.float32)}, tmp_path / "model-1.safetensors")
    library.save_file({"model.b": np.ones(3, np.float16), "head": np.ones(1)}, tmp_path / "model-2.safetensors")
    loaded = variables(mirrored(2), {"a": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)})
    safetensors.load(loaded, tmp_path, names=lambda name: f"model.{name}", strict=False)
    assert loaded["a"].numpy().tolist() == [[1, 1, 1]] * 2
    assert loaded["b"].numpy().tolist() == [1, 1, 1]


def test_what_does_not_fit_is_listed_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    library.save_file({"a": np.ones(3), "b": np.ones(4, np.float32), "d": np.ones(1)}, path)
    zeros = np.zeros(3, np.float32)
    loaded = variables(one_device(0), {"a": zeros, "b": zeros, "c": zeros})
    message = r"a is float64\[3\], a:0 float32\[3\]; b is float32\[4\].*c is missing; d is only in the file.*HINT"
    with pytest.raises(CheckpointMismatchError, match=message):
        safetensors.load(loaded, path)
    assert not any(variable.numpy().any() for variable in loaded.values())


def test_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ArgumentTypeError, match=r"w is a ndarray of dtype float32.*HINT"):
        safetensors.save({"w": np.ones(1, np.float32)}, path)
    with pytest.raises(ArgumentError, match="0 variables"):
        safetensors.save({}, path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        safetensors.load(variables(one_device(0), {"w": np.ones(1)}), path)
    with pytest.raises(ContextError, match=r"in a replica function or a jd[.]function"):
        jd.function(lambda: safetensors.save({}, path))()
    assert not path.exists()


@pytest.mark.slow
def test_two_workers_write_one_file_and_hold_no_more_than_their_shards_and_a_tensor(
    tmp_path: Path, multi_process: SharedRunners
) -> None:
    path = tmp_path / "weights.safetensors"
    results = multi_process(workers=2, devices=2).run(weights_of_a_worker, args=(str(path),))
    found = library.load_file(path)
    rng = np.random.default_rng(0)
    for name in sorted(found):
        assert found[name].tobytes() == rng.random(found[name].shape, np.float32).tobytes(), name
    tensor = max(value.nbytes for value in found.values())
    for result in results:
        assert result["same"]
        assert result["saving"] < tensor / 10
        assert result["loading"] < 1.25 * tensor


def test_parts_on_the_devices_of_a_replica(tmp_path: Any) -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(4)], devices_per_replica=2, layout={"w": (None, "model")})
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    with strategy.scope():
        w, u = jd.Variable(value, name="w"), jd.Variable(jnp.zeros((3, 4)), name="w")
    safetensors.save({"w": w}, tmp_path / "w.safetensors")
    np.testing.assert_array_equal(library.load_file(tmp_path / "w.safetensors")["w"], value)
    safetensors.load({"w": u}, tmp_path / "w.safetensors")
    np.testing.assert_array_equal(u.numpy(), value)
    assert u.stored.sharding == w.stored.sharding
