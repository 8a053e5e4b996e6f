"""Names of checkpoints are checked, and each manager deletes its own files alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.checkpoint import files
from jaxtribute.errors import ArgumentError, ArgumentTypeError

BAD_NAMES = ["", " ", ".", "..", "../x", "/abs", "a/b", "a\\b", "a\nb", "a\0b", "\x7f", "\udc80", "x.replaced"]
BAD_PATHS = ["", " ", "a\nb", "a\0b", "\udc80"]
NO_TEXT: list[Any] = [None, 5, b"x", 1.5, ["a"]]


@pytest.mark.parametrize("name", [*BAD_NAMES, *NO_TEXT])
def test_names_that_cannot_be(name: Any, tmp_path: Path) -> None:
    error = ArgumentError if isinstance(name, str) else ArgumentTypeError
    checkpoint = jd.Checkpoint(v=jd.Variable(1.0))
    with pytest.raises(error, match=r"checkpoint_name(=| is )[\s\S]*HINT"):
        jd.CheckpointManager(checkpoint, tmp_path, checkpoint_name=name)
    # Without a name it is "ckpt", or any.
    refused = pytest.raises(error, match=r"checkpoint_name(=| is )[\s\S]*HINT") if name is not None else nullcontext()
    with refused:
        assert jd.latest_checkpoint(tmp_path, name) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [*BAD_PATHS, *NO_TEXT])
def test_paths_that_cannot_be(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = ArgumentError if isinstance(path, str) else ArgumentTypeError
    checkpoint = jd.Checkpoint(v=jd.Variable(1.0))
    calls: list[Callable[[Any], object]] = [
        checkpoint.save,
        checkpoint.write,
        jd.latest_checkpoint,
        lambda path: jd.CheckpointManager(checkpoint, path),
    ]
    calls += [] if path is None else [checkpoint.restore, checkpoint.read]
    for call in calls:
        with pytest.raises(error, match=r"=[\s\S]* HINT"):
            call(path)
    assert checkpoint.save_counter == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [-1, 1.5, "7", None, [1], float("nan"), float("inf")])
def test_numbers_that_cannot_be(number: Any, tmp_path: Path) -> None:
    checkpoints = jd.CheckpointManager(jd.Checkpoint(v=jd.Variable(1.0)), tmp_path, block=True)
    if number is None:
        assert checkpoints.save(number) == str(tmp_path / "ckpt-1")
    else:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=r"checkpoint_number=.*HINT"):
            checkpoints.save(number)
    checkpoints.close()


class Position:
    """An iterator."""

    def get_state(self) -> Any:
        return 1

    def set_state(self, state: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("name", ["../x", "a/b", "/abs", "", "jaxtribute.json", "state"])
def test_iterators_whose_positions_would_be_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        jd.Checkpoint(**{name: Position()}).write(tmp_path / "in" / "ckpt", block=True)
    assert list(tmp_path.iterdir()) == []


def test_names_of_values_are_no_paths(tmp_path: Path) -> None:
    names = ["layer/../w", "/w", "layer", "layer/0", "layer/.zarray", "a*[b]?", "..", "é", " x ", "%2e"]
    values = {name: jd.Variable(float(place)) for place, name in enumerate(names)}
    checkpoint = jd.Checkpoint(model=values)
    path = checkpoint.write(tmp_path / "ckpt", block=True)
    for value in values.values():
        value.assign(-1.0)
    checkpoint.read(path)
    assert [float(value) for value in values.values()] == list(range(len(names)))
    assert [one.name for one in tmp_path.iterdir()] == ["ckpt"]
    with pytest.raises(ArgumentError, match=r"cannot be written in UTF-8.*HINT"):
        jd.Checkpoint(model={"\udc80": jd.Variable(3.0)}).write(tmp_path / "other", block=True)


NAMES = st.text(st.sampled_from("ab-.[]*?{}!0123 é"), min_size=1, max_size=6).filter(
    lambda name: name.strip() and name not in (".", "..")
)


@given(NAMES, NAMES, st.integers(0, 20))
def test_patterns_match_exactly(mine: str, other: str, number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in {mine, other}:
            for ending in ("", files.UNFINISHED, files.REPLACED):
                (place / f"{name}-{number}{ending}").mkdir(exist_ok=True)
        (place / f"{mine}-{number}x").mkdir()
        (place / f"{mine}-0{number}").mkdir(exist_ok=True)
        assert files.check_name(mine, "name") == mine
        assert files.numbered(place, mine) == {number: place / f"{mine}-{number}"}
        left = {place / f"{mine}-{number}{ending}" for ending in (files.UNFINISHED, files.REPLACED)}
        assert set(files.left_over(place, mine)) == left
        assert files.stem(place / f"{mine}-{number}") == mine


def test_managers_of_similar_names_in_one_folder(tmp_path: Path) -> None:
    value = jd.Variable(0)
    names = ["ckpt", "ckpt-best", "ckpt-1", "a[b]", "a*", "?"]
    managers = {
        name: jd.CheckpointManager(jd.Checkpoint(v=value), tmp_path, 1, checkpoint_name=name, block=True)
        for name in names
    }
    for name in names:  # what a save that is under way has written until now
        (tmp_path / f"{name}-9{files.UNFINISHED}").mkdir()
    for place, (name, manager) in enumerate(managers.items()):
        manager.save()
        manager.save()
        assert [Path(path).name for path in manager.checkpoints] == [f"{name}-2"]
        left = [other for other in names if (tmp_path / f"{other}-9{files.UNFINISHED}").exists()]
        assert left == names[place + 1 :]
    assert jd.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-2")
    for manager in managers.values():
        manager.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}-2" for name in names)
