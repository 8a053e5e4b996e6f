"""Layouts, as users write them, and the patterns of names that choose them."""

import os
import warnings
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.layouts import LayoutNote, check_layout, parse_layout
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError

MESH = ReplicaMesh(jax.devices()[:8], group={"model": 2, "sequence": 2})


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ((None, "model"), (None, "model")),
        (["model", None, None], ("model",)),
        ([None, ["model", "sequence"]], (None, ("model", "sequence"))),
        (jax.sharding.PartitionSpec("model"), ("model",)),
        (SimpleNamespace(axes=[None, "model"]), (None, "model")),
        ((), ()),
    ],
)
def test_layouts_are_read_as_users_write_them(given: Any, parsed: Any) -> None:
    assert parse_layout(given) == parsed


@pytest.mark.parametrize("given", ["model", 3, None, [3], (None, ("model", 2))])
def test_what_is_no_layout(given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="HINT"):
        parse_layout(given)


def test_an_axis_splits_once() -> None:
    with pytest.raises(ArgumentError, match=r"names an axis twice.*HINT"):
        parse_layout(("model", "model"))


@pytest.mark.parametrize(
    ("layout", "shape", "error", "words"),
    [
        ((None, "model"), (4,), ShapeError, "has 2 axes"),
        (("data",), (4,), ArgumentError, "'data'"),
        (("model",), (5,), ShapeError, "5 elements into 2 parts"),
        ((("model", "sequence"),), (6,), ShapeError, "6 elements into 4 parts"),
    ],
)
def test_layouts_that_do_not_fit(layout: Any, shape: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=r"(?s)w/kernel.*HINT") as caught:
        check_layout(layout, shape, MESH, "w/kernel")
    assert words in str(caught.value)


def test_a_program_runs_unchanged_where_replicas_have_one_device() -> None:
    assert check_layout((None, "model"), (3, 5), ReplicaMesh(jax.devices()[:2]), "w") == ()


def test_names_choose_layouts() -> None:
    layouts = jd.LayoutMap({"dense/kernel": (None, "model"), r"embed.*/table": ("model",)})
    layouts["decoder/dense/kernel"] = ("model",)
    assert layouts.find("encoder/dense/kernel") == (None, "model")
    assert layouts.find("decoder/dense/kernel") == ("model",)  # the name itself goes first
    assert layouts.find("embed_2/table") == ("model",)
    assert layouts.find("bias") == ()
    del layouts["dense/kernel"]
    assert dict(layouts) == {r"embed.*/table": ("model",), "decoder/dense/kernel": ("model",)}
    assert len(layouts) == 2


def test_a_name_that_several_keys_fit() -> None:
    with pytest.raises(ArgumentError, match=r"'a/kernel' fits several keys.*HINT"):
        jd.LayoutMap({"kernel": ("model",), "a/": (None, "model")}).find("a/kernel")


def test_a_pattern_that_fits_no_variable_is_told_at_the_first_step_that_trains() -> None:
    strategy = jd.MirroredStrategy(2, devices_per_replica=2, layout={"up": (None, "model"), "dwon": ("model",)})
    with strategy.scope():
        up, down = (jd.Variable(jnp.ones((4, 4)), name=name, aggregation="MEAN") for name in ("up", "down"))
    look = jd.function(lambda: strategy.run(lambda: jnp.ones((2, 4)) @ up @ down))
    step = jd.function(lambda: strategy.run(lambda: up.assign_add(down)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        look()  # the variable may be made later
    with pytest.warns(UserWarning, match=r"no variable fits \['dwon'\] of a LayoutMap; .*\['up'\]. HINT"):
        step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jd.function(lambda: strategy.run(lambda: up.assign_sub(down)))()


@pytest.mark.parametrize("given", [{"(": ("model",)}, {3: ("model",)}, {"a": "model"}, [("a", ("model",))]])
def test_maps_that_are_none(given: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="HINT"):
        jd.LayoutMap(given)


def test_values_stay_what_they_are_and_lie_in_parts() -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(4)], devices_per_replica=2)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    seen: list[Any] = []

    def program(x: Any) -> Any:
        y = jd.with_layout(x * 1, (None, "model"))
        seen.append(getattr(y, "sharding", None))
        return y

    (batch,) = strategy.experimental_distribute_dataset([x])
    np.testing.assert_array_equal(strategy.gather(strategy.run(program, (batch,)), 0), x)
    assert all(place.spec == jax.sharding.PartitionSpec(None, "model") for place in seen)
    assert [sorted(device.id for device in place.device_set) for place in seen] == [[0, 1], [2, 3]]
    compiled = jd.function(lambda batch: strategy.gather(strategy.run(program, (batch,)), 0))
    np.testing.assert_array_equal(compiled(batch), x)


def test_gradients_go_through_layouts() -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(4)], devices_per_replica=2)
    with strategy.scope():
        w = jd.Variable(np.arange(6, dtype=np.float32).reshape(2, 3))

    def program() -> Any:
        return jd.grad(lambda: jnp.sum(jd.with_layout(w * w, ("model",)) * 3.0), w)()

    for run in (strategy.run, jd.function(strategy.run)):
        np.testing.assert_allclose(strategy.experimental_local_results(run(program))[0], 6 * w.numpy())


def test_nothing_is_done_where_replicas_have_one_device() -> None:
    x = jnp.ones((2, 3))
    assert jd.with_layout(x, (None, "model")) is x


def test_a_map_is_saved_and_loaded_with_its_notes(tmp_path: Any) -> None:
    layouts = jd.LayoutMap({"^a/kernel$": (None, "model"), "b": ("model",), "c": ()})
    layouts.notes["^a/kernel$"] = LayoutNote((2, 4), "split by columns")
    path = tmp_path / "layout.json"
    layouts.save(path)
    again = jd.LayoutMap.load(path)
    assert dict(again) == dict(layouts)
    assert again.notes == layouts.notes
    assert str(again).splitlines()[1].split("  ") == ["a/kernel", "2 x 4", "(None, 'model')", "split by columns"]
    assert "reason" not in str(jd.LayoutMap({"b": ()}))


def test_a_file_of_layouts_may_be_written_by_hand(tmp_path: Any) -> None:
    path = tmp_path / "layout.json"
    path.write_text('{"kernel": [null, "model"], "table": {"layout": [["model", "sequence"]]}}')
    assert dict(jd.LayoutMap.load(path)) == {"kernel": (None, "model"), "table": (("model", "sequence"),)}


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("{", ArgumentError, "is no JSON"),
        ("[1]", ArgumentError, "holds a list"),
        ('{"w": 3}', ArgumentTypeError, "a layout is 3"),
        ('{"w": {}}', ArgumentTypeError, "a layout is None"),
        ('{"(": []}', ArgumentError, "no regular expression"),
        ('{"w": [], "w": []}', ArgumentError, "'w' stands in it twice"),
        ("[" * 50_000, ArgumentError, "too many brackets"),
    ],
)
def test_files_that_hold_no_layouts(tmp_path: Any, text: str, error: Any, words: str) -> None:
    path = tmp_path / "layout.json"
    path.write_text(text)
    with pytest.raises(error, match=f"layout.json.*{words}.*HINT"):
        jd.LayoutMap.load(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "a named pipe"),
        (os.mkdir, "a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (lambda path: path.symlink_to(path), "[Ss]ymbolic"),
        (lambda path: (path.touch(), os.truncate(path, 1 << 31)), "more than"),
        (lambda path: None, "No such file"),
    ],
)
def test_what_is_no_file_of_layouts(make: Any, words: str, tmp_path: Any) -> None:
    make(tmp_path / "layout.json")
    with pytest.raises(OSError, match=f"{words}.*HINT.*layout.json"):
        jd.LayoutMap.load(tmp_path / "layout.json")


def test_a_note_goes_with_its_entry() -> None:
    layouts = jd.LayoutMap({"w": ("model",)})
    layouts.notes["w"] = LayoutNote((2,), "so")
    del layouts["w"]
    assert layouts.notes == {}
