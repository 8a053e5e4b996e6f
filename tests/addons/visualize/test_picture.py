"""Pictures as text, SVG and files."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import rich
from rich.console import Console

import jaxtribute as jd
from jaxtribute._src.addons.visualize.placement import Cell, How, Placement, Row
from jaxtribute._src.addons.visualize.reading import reading
from jaxtribute._src.addons.visualize.text import shown, sizes_text
from jaxtribute.visualize import Picture
from visualize.draw import DRAWINGS, IMAGES
from visualize.test_reading import explanation


def placed(devices: int, rows: int = 1) -> Picture:
    cells = tuple(Cell(((i * 2, i * 2 + 2),), i, 8) for i in range(devices))
    row = [Row(f"row <{i}>", (2 * devices,), "float32", How.SPLIT, cells) for i in range(rows)]
    return Picture(Placement("Some", tuple(f"GPU:{i}" for i in range(devices)), tuple(row)), limit=5)


def texts(picture: Picture) -> list[str]:
    tree = ET.fromstring(picture.svg())
    return [element.text or "" for element in tree.iter("{http://www.w3.org/2000/svg}text")]


def fills(picture: Picture) -> list[str]:
    return [one.get("fill", "") for one in ET.fromstring(picture.svg()).iter("{http://www.w3.org/2000/svg}rect")]


@pytest.fixture(scope="module")
def strategy() -> jd.MirroredStrategy:
    return jd.MirroredStrategy(["CPU:0", "CPU:1"])


def test_a_placement_as_text(strategy: jd.MirroredStrategy) -> None:
    with strategy.scope():
        kernel = jd.Variable(jnp.zeros((3, 4)), name="kernel")
    text = str(strategy.visualize([kernel, np.zeros(2, np.float32)]))
    assert text.splitlines() == [
        "MirroredStrategy, 2 replica(s)",
        "                       CPU:0     CPU:1",
        "kernel  3 x 4 float32  ████████  ████████  a copy on each",
        "1       2 float32      ────────  ────────  on the host",
        "in all                 48 B      48 B",
    ]


def test_a_part_is_drawn_where_it_lies_in_the_whole() -> None:
    lines = str(placed(2)).splitlines()
    assert "████░░░░  ░░░░████  a part on each" in lines[2]
    assert lines[3].split() == ["0:2", "2:4"]


def test_a_small_part_of_a_large_whole_is_still_seen() -> None:
    cells = (Cell(((0, 1),), 0, 4), Cell(((1, 1000),), 1, 4))
    row = Row("x", (1000,), "float32", How.SPLIT, cells)
    assert "█░░░░░░░  ████████" in str(Picture(Placement("", ("a", "b"), (row,))))


def test_a_replica_without_examples(strategy: jd.MirroredStrategy) -> None:
    (batch,) = strategy.experimental_distribute_dataset([np.zeros((1, 2), np.float32)])
    lines = str(strategy.visualize(batch)).splitlines()
    assert lines[2].split() == ["value", "1", "x", "2", "float32", "████████", "░░░░░░░░", "a", "part", "on", "each"]
    assert lines[3].split()[-1] == "none"


def test_rows_and_columns_beyond_the_limit_are_counted() -> None:
    text = str(placed(4096, rows=7))
    assert "… 2 more" in text
    assert "GPU:5" in text
    assert "GPU:6" not in text
    assert "GPU:4095" in text
    assert "56 B" in text, "the sum counts all rows"
    drawn = texts(placed(4096, rows=7))
    assert "GPU:4095" in drawn
    assert "… 2 more" in drawn
    assert len(drawn) < 200


def test_a_drawing_is_valid_and_names_are_escaped() -> None:
    picture = placed(2)
    assert "row <0>" in texts(picture)
    assert {"0:2", "2:4", "a part on each", "GPU:1", "8 B"} <= set(texts(picture))


def test_a_drawing_has_the_colours_of_the_page_that_shows_it() -> None:
    drawn = ET.fromstring(placed(2).svg())
    assert "color-scheme:light dark" in drawn.get("style", "")
    assert {text.get("fill") for text in drawn.iter("{http://www.w3.org/2000/svg}text")} == {"currentColor"}
    assert not [box for box in drawn.iter("{http://www.w3.org/2000/svg}rect") if box.get("width") == "100%"]


def test_equal_parts_have_one_colour(strategy: jd.MirroredStrategy) -> None:
    array = strategy.place(jnp.zeros(4))
    copies = strategy.visualize(array)
    assert fills(copies).count("#8ecae6") == 2
    split = placed(2)
    assert fills(split).count("#8ecae6") == fills(split).count("#f4c95d") == 1


def test_two_split_axes_are_drawn_in_both_directions() -> None:
    cells = tuple(Cell(((i, i + 1), (3 * j, 3 * j + 3)), 2 * i + j, 12) for i in range(2) for j in range(2))
    picture = Picture(Placement("", tuple("abcd"), (Row("x", (2, 6), "float32", How.SPLIT, cells),)))
    boxes = ET.fromstring(picture.svg()).findall("{http://www.w3.org/2000/svg}rect")
    parts = [box for box in boxes if box.get("fill") != "currentColor"]
    frames = [box for box in boxes if box.get("fill") == "currentColor"]
    inside = [
        (float(part.get("x", 0)) - float(frame.get("x", 0)) > 1, float(part.get("y", 0)) - float(frame.get("y", 0)) > 1)
        for part, frame in zip(parts, frames, strict=True)
    ]
    assert inside == [(False, False), (True, False), (False, True), (True, True)]


def test_a_dataset_as_text_and_drawing(strategy: jd.MirroredStrategy) -> None:
    examples = strategy.experimental_make_numpy_dataset(np.zeros((11, 2), np.float32)).batch(8)
    picture = strategy.visualize(examples)
    text = str(picture)
    assert "batch 0: 8 examples" in text
    assert "replica 0: 2, replica 1: 1" in text
    assert "█" * 32 + "▓" * 32 in text
    assert "█" * 16 + "▓" * 8 + "░" * 40 in text
    assert {"0:4", "4:8", "0:2", "2:3", "replicas 0-1: 4 each"} <= set(texts(picture))
    assert str(strategy.visualize(strategy.experimental_distribute_dataset(examples))) == text


def test_many_workers_with_files_and_leftovers() -> None:
    many = explanation(100, 40, 20, 20)
    workers = tuple(
        type(one)(one.worker, one.replicas, ("a", "b", "c"), one.rows, 5, 100 if one.worker else 5)
        for one in many.workers
    )
    found = reading(type(many)("d", "DATA", "DATA", "why", workers, many.batches, many.examples, 0, 3))
    drawn = texts(Picture(found))
    assert "worker 1 (replica 1): computes 5 examples a pass, reads 100 for that, from a, b and 1 more" in drawn
    assert "… 4 more workers" in drawn
    assert "left over at the end of a pass: 3" in drawn


def test_what_is_known_only_to_a_function(strategy: jd.MirroredStrategy) -> None:
    dataset = strategy.distribute_datasets_from_function(lambda context: [np.zeros(2, np.float32)])
    with pytest.raises(jd.errors.InputError, match=r"HINT: explain\(\) is for"):
        strategy.visualize(dataset)


@pytest.mark.parametrize(("name", "start"), [("a.svg", "<svg"), ("a.html", "<!doctype html>"), ("a.txt", "Some")])
def test_saving(tmp_path: Path, name: str, start: str) -> None:
    path = placed(2).save(tmp_path / name)
    assert path.read_text(encoding="utf-8").startswith(start)


def test_errors(tmp_path: Path, strategy: jd.MirroredStrategy) -> None:
    with pytest.raises(jd.errors.ArgumentError, match=r"'.png'.*HINT: end it in .svg"):
        placed(2).save(tmp_path / "a.png")
    with pytest.raises(jd.errors.ArgumentError, match="limit is 0"):
        strategy.visualize([], limit=0)


def test_notebooks_and_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    picture: Any = placed(2)
    assert picture._repr_html_().startswith("<div")
    assert repr(picture) == str(picture)
    rich.print(picture)
    assert "GPU:1" in capsys.readouterr().out
    colours = Console(force_terminal=True, color_system="standard")
    with colours.capture() as captured:
        colours.print(picture)
    assert "\x1b[33m" in captured.get()


def test_sizes_and_columns() -> None:
    assert sizes_text([2, 2, 1, 0]) == "replicas 0-1: 2 each, replica 2: 1, replica 3: 0"
    assert shown(3, 8) == [0, 1, 2]
    assert shown(10, 5) == [0, 1, 2, None, 9]


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_documentation_shows_what_is_drawn(name: str) -> None:
    drawn = (IMAGES / name).read_text(encoding="utf-8")
    assert drawn == DRAWINGS[name]() + "\n", "PYTHONPATH=tests python -m visualize.draw writes it anew"
    ET.fromstring(drawn)
