"""What a checkpoint finds in a program, and what it calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.core.checkpoint.collecting import Contents, collect
from jaxtribute.errors import ArgumentError, ArgumentTypeError


class Layer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.kernel = jd.Variable(1.0, name=name)
        self.scale = jnp.ones(3)  # a constant of the layer, no state
        self.call = jd.function(lambda: self.kernel + 1)


class Model:
    def __init__(self) -> None:
        self.layers = [Layer("a"), Layer("b")]
        self.named = {"out": (Layer("c"), 4)}
        self.tied = self.layers[0]
        self.parent = self
        self.step = jd.function(self.compute)

    def compute(self) -> Any:
        return self.layers[0].kernel + 1


def found(**trackables: Any) -> Contents:
    return collect(trackables, trackables.__setitem__)


def test_variables_among_attributes_each_once() -> None:
    model = Model()
    model.step()
    model.layers[0].call()
    optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [model.layers[0].kernel, model.layers[1].kernel])
    names = list(found(model=model, optimizer=optimizer, again=model).leaves)
    assert names == [
        "model.layers.0.kernel",
        "model.layers.1.kernel",
        "model.named.out.0.kernel",
        "optimizer.a.trace",
        "optimizer.b.trace",
    ]


def test_arrays_and_numbers_of_nests() -> None:
    nest = {"w": jnp.ones(2), "n": [1, np.float32(2)], "no": "text", "none": None, "f": len, "v": jd.Variable(1)}
    names = list(found(nest=nest, one=3, key=jax.random.key(0)).leaves)
    assert sorted(names) == ["key", "nest.n.0", "nest.n.1", "nest.v", "nest.w", "one"]


def test_a_nest_is_put_together_again_where_arrays_changed() -> None:
    trackables: dict[str, Any] = {
        "nest": {"w": np.zeros(2), "text": "t", "v": jd.Variable(1)},
        "only": [jd.Variable(1)],
    }
    old, only = trackables["nest"], trackables["only"]
    all_of_it = collect(trackables, trackables.__setitem__)
    leaf = all_of_it.leaves["nest.w"]
    leaf.put(np.ones(2), leaf.spec)
    assert trackables["nest"] is old
    for rebuild in all_of_it.rebuilds:
        rebuild()
    assert trackables["nest"]["w"].tolist() == [1, 1]
    assert trackables["nest"]["v"] is old["v"]
    assert trackables["nest"]["text"] == "t"
    assert trackables["only"] is only
    assert old["w"].tolist() == [0, 0]


def test_iterators() -> None:
    strategy = jd.OneDeviceStrategy("cpu:0")
    iterator = iter(strategy.experimental_distribute_dataset([np.arange(4.0)]))
    assert found(data={"train": iterator}, again=iterator).iterators == {"data.train": iterator}
    iterator.close()


@pytest.mark.parametrize("value", ["text", len, None, [], Layer, object()])
def test_what_holds_no_state(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"thing=.* HINT"):
        found(thing=value)


def test_two_values_of_one_name() -> None:
    with pytest.raises(ArgumentError, match=r"two values .* 'nest\.a\.b'\. HINT"):
        found(nest={"a.b": 1, "a": {"b": 2}})


def test_kinds_of_numbers_stay_what_they_are() -> None:
    trackables: dict[str, Any] = {
        "nest": [
            1,
            2.5,
            True,
            np.float32(3),
            np.arange(2),
            jnp.arange(2),
            jax.device_put(jnp.arange(2), jax.devices()[1]),
        ]
    }
    before = list(trackables["nest"])
    all_of_it = collect(trackables, trackables.__setitem__)
    for leaf in all_of_it.leaves.values():
        snapshot = leaf.snapshot()
        value = snapshot if isinstance(snapshot, np.ndarray) else np.asarray(snapshot.take())
        leaf.put(value, leaf.spec)
    for rebuild in all_of_it.rebuilds:
        rebuild()
    for old, new in zip(before, trackables["nest"], strict=True):
        assert type(old) is type(new)
        np.testing.assert_array_equal(old, new)
        if isinstance(old, jax.Array):
            assert old.sharding == new.sharding
            assert old.committed == new.committed


@pytest.mark.parametrize("kind", [jd.Checkpoint, tf.train.Checkpoint])
def test_a_checkpoint_within_a_checkpoint(kind: Any, tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.first, self.last = jd.Variable(1.0), jd.Variable(2.0)

    model, other = Model(), Model()
    path = jd.Checkpoint(net=model).save(tmp_path / "whole", block=True)
    other.first.assign(0.0)
    other.last.assign(0.0)
    status = kind(net=kind(first=other.first)).restore(path, strict=False)
    assert (float(other.first), float(other.last)) == (1.0, 0.0)
    status.assert_existing_objects_matched()
    with pytest.raises(ValueError, match=r"net\.last"):
        status.assert_consumed()
    part = kind(net=kind(first=other.first, rate=0.5))
    path = part.save(tmp_path / "part", block=True)
    part.net.rate = 0.1
    other.first.assign(9.0)
    part.restore(path)
    assert (float(other.first), float(part.net.rate)) == (1.0, 0.5)
