"""Whatever happens to a file of a checkpoint, it is noticed before anything changes, and an earlier one is taken."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from damages import DAMAGES, damage
from jaxtribute._src.core import checksums
from jaxtribute._src.core.checkpoint import arrays, committing, restoring
from jaxtribute._src.core.checkpoint.description import Description
from jaxtribute._src.core.checkpoint.leaves import CellLeaf, VariableLeaf
from jaxtribute.errors import CheckpointDamagedError, CheckpointError, InputError

NO_FILES = {"a pipe": os.mkfifo, "a device": lambda path: path.symlink_to("/dev/zero"), "a folder": os.mkdir}
VALUES = {"w": (3, 2), "big": (4000,), "scalar": ()}


class Position:
    """An object with a position."""

    def __init__(self) -> None:
        self.at = 0

    def get_state(self) -> dict[str, int]:
        return {"at": self.at}

    def set_state(self, state: dict[str, int]) -> None:
        if state["at"] < 0:
            raise InputError(f"there is no position {state['at']}. HINT: begin at 0.")
        self.at = state["at"]


class Program:
    """Variables and a position, that all have the same number in them."""

    def __init__(self, number: int = 0) -> None:
        with jd.OneDeviceStrategy("cpu:0").scope():
            self.variables = {name: jd.Variable(np.zeros(shape, np.float32)) for name, shape in VALUES.items()}
        self.position = Position()
        self.checkpoint = jd.Checkpoint(model=self.variables, data=self.position, rate=0)
        self.set(number)

    def set(self, number: int) -> None:
        for name, variable in self.variables.items():
            variable.assign(np.full(VALUES[name], number, np.float32))
        self.position.at = self.checkpoint.rate = number

    def numbers(self) -> set[int]:
        found = {int(one) for variable in self.variables.values() for one in np.ravel(variable.numpy())}
        return found | {self.position.at, self.checkpoint.rate}

    def manager(self, folder: Path, **options: Any) -> jd.CheckpointManager:
        return jd.CheckpointManager(self.checkpoint, folder, block=True, **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints: `ckpt-1`, of the number 1, and `ckpt-2`."""
    folder = tmp_path_factory.mktemp("saved")
    program = Program()
    manager = program.manager(folder)
    for number in (1, 2):
        program.set(number)
        manager.save()
    manager.close()
    return folder


def damage_one(kind: str, folder: Path, files: list[str], number: int) -> None:
    """Damages one file of the checkpoint `ckpt-2`."""
    # Orbax's names are random, so the file of the same place in the other checkpoint stands for the same file.
    earlier = checksums.names(folder / "ckpt-1")
    old = folder / "ckpt-1" / earlier[min(number, len(earlier) - 1)]
    path, other = folder / "ckpt-2" / files[number], folder / "ckpt-2" / files[number - 1]
    damage(kind, path, other, old, random.Random(f"{kind} {number}"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_damage_and_keeps_nobody_waiting(kind: str, saved: Path, tmp_path: Path) -> None:
    program = Program()
    for name in checksums.names(saved / "ckpt-2"):
        folder = tmp_path / name.replace("/", "-")
        shutil.copytree(saved, folder)
        (folder / "ckpt-2" / name).unlink()
        NO_FILES[kind](folder / "ckpt-2" / name)
        with pytest.raises(CheckpointDamagedError, match="HINT") as caught:
            program.checkpoint.restore(folder / "ckpt-2")
        assert name in str(caught.value)
        assert jd.latest_checkpoint(folder) == str(folder / "ckpt-1")
        shutil.rmtree(folder)
    assert program.numbers() == {0}


FORGED = [
    {"format": "2"},
    {"values": 1},
    {"values": {"w": 1}},
    {"files": [1]},
    {"files": {"turn.json": [1]}},
    {"iterators": None},
    {"workers": "many"},
    {"written_at": {}},
    {"turn": {"line": [[1e400, 1]], "number": 1, "unordered": 0}},
]


@pytest.mark.parametrize("change", FORGED, ids=str)
def test_a_description_of_other_things(change: dict[str, Any], saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "ckpt-2" / "jaxtribute.json"
    entries = {**json.loads(file.read_text()), **change}
    del entries["checksum"]
    file.write_text(json.dumps({"checksum": zlib.crc32(json.dumps(entries, sort_keys=True).encode()), **entries}))
    with contextlib.suppress(CheckpointError):
        jd.latest_checkpoint(tmp_path)
    if "turn" not in change:
        with pytest.raises(CheckpointError, match=r"ckpt-2.*HINT"):
            Program().checkpoint.restore(tmp_path / "ckpt-2")


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", DAMAGES)
def test_every_file_in_every_way(kind: str, saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program, files = Program(), checksums.names(saved / "ckpt-2")
    assert len(files) >= 8
    for number, name in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        damage_one(kind, folder, files, number)
        same = (folder / "ckpt-2" / name).exists() and all(
            (folder / "ckpt-2" / file).read_bytes() == (saved / "ckpt-2" / file).read_bytes() for file in files
        )
        assert not same or kind == "old", (kind, name)  # some hold the same in both
        program.set(7)
        if not same:
            with pytest.raises(CheckpointDamagedError, match="HINT") as caught:
                program.checkpoint.restore(folder / "ckpt-2")
            # Without the description nothing is known of the others; what an old one tells of is missing.
            described = {"swapped": files[number - 1], "old": name}.get(kind) == "jaxtribute.json"
            assert described or name in str(caught.value)
            assert program.numbers() == {7}
        caplog.clear()
        manager = program.manager(folder, init_fn=lambda: pytest.fail("begun anew"))
        with caplog.at_level(logging.WARNING):
            assert manager.restore_or_initialize() == str(folder / ("ckpt-2" if same else "ckpt-1"))
        assert program.numbers() == {2 if same else 1}
        assert same or "ckpt-2 is left out, and an earlier checkpoint is looked for" in caplog.text
        assert jd.latest_checkpoint(folder) == manager.latest_checkpoint == str(folder / f"ckpt-{2 if same else 1}")
        manager.close()
        shutil.rmtree(folder)


def test_the_next_save_takes_the_place_of_a_damaged_one(saved: Path, tmp_path: Path) -> None:
    program, folder = Program(), tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "ckpt-2" / "jaxtribute.json").unlink()
    manager = program.manager(folder)
    assert manager.restore_or_initialize() == str(folder / "ckpt-1")
    program.set(3)
    assert manager.save() == str(folder / "ckpt-2") == manager.latest_checkpoint
    manager.close()
    again = Program()
    again.checkpoint.restore(jd.latest_checkpoint(folder))
    assert again.numbers() == {3}


@pytest.mark.parametrize("file", ["jaxtribute.json", "state/manifest.ocdbt"])
def test_where_nothing_is_whole_no_program_begins_anew(
    saved: Path, tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    program, folder = Program(7), tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "ckpt-1" / file).unlink()
    (folder / "ckpt-2" / file).write_text("")
    manager = program.manager(folder, init_fn=lambda: pytest.fail("begun anew"))
    for action in (
        manager.restore_or_initialize,
        lambda: manager.latest_checkpoint,
        lambda: jd.latest_checkpoint(folder),
    ):
        with pytest.raises(CheckpointDamagedError, match=r"none of the 2 checkpoints .* is whole[\s\S]*HINT") as caught:
            action()
        # There is no earlier one, and nothing restores it by itself.
        assert str(caught.value).count("HINT") == 1
        assert "an earlier" not in str(caught.value)
    assert "earlier checkpoint is taken" not in caplog.text
    assert "HINT" not in caplog.text
    assert program.numbers() == {7}
    manager.close()


def test_a_damaged_one_does_not_count_among_those_that_stay(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "ckpt-2").rename(folder / "ckpt-200")
    (folder / "ckpt-200" / "state" / "manifest.ocdbt").write_bytes(b"")
    program = Program()
    manager = program.manager(folder, max_to_keep=1)
    assert manager.restore_or_initialize() == str(folder / "ckpt-1")
    for number in (20, 30):
        program.set(number)
        manager.save(checkpoint_number=number)
        assert manager.latest_checkpoint == str(folder / f"ckpt-{number}")
    manager.close()
    assert Program().manager(folder).restore_or_initialize() == str(folder / "ckpt-30")


def test_values_that_are_restored_change_all_or_none(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(7)
    read, batches = arrays.read, arrays.batches
    calls: list[int] = []

    def fail_late(*given: Any) -> Any:
        calls.append(1)
        if len(calls) >= 3:
            raise OSError("the disk is gone")
        return read(*given)

    monkeypatch.setattr(arrays, "read", fail_late)
    monkeypatch.setattr(arrays, "batches", lambda sizes, limit=1: batches(sizes, limit))
    with pytest.raises(CheckpointError, match=r"nothing has changed.*the disk is gone.*HINT"):
        program.checkpoint.restore(saved / "ckpt-2")
    assert program.numbers() == {7}
    # Where there is not enough memory for a second copy, what has changed is said.
    calls.clear()
    monkeypatch.setattr(restoring, "_room", lambda: 1)
    with pytest.raises(CheckpointError, match=r"2 of \d values have changed"):
        program.checkpoint.restore(saved / "ckpt-2")
    monkeypatch.setattr(arrays, "read", read)
    program.checkpoint.restore(saved / "ckpt-2")
    assert program.numbers() == {2}


def test_a_position_that_cannot_be_taken_changes_nothing(tmp_path: Path) -> None:
    bad = Program(5)
    bad.position.at = -1
    path = bad.checkpoint.write(tmp_path / "bad", block=True)
    program = Program(7)
    with pytest.raises(InputError, match="no position -1"):
        program.checkpoint.restore(path)
    assert program.numbers() == {7}


class Pair:
    """Two workers, of which this process is one; the other has looked at its part of the files."""

    workers, names = 2, ("worker 0", "worker 1")

    def __init__(self, rank: int, path: Path) -> None:
        self.rank, self._path = rank, path

    def exchange(self, purpose: str, text: str) -> list[str]:
        assert purpose == "restore"
        other = ["", ""]
        try:
            restoring.verify(self._path, part=(1 - self.rank, 2))
        except CheckpointDamagedError as error:
            other = ["CheckpointDamagedError", f"CheckpointDamagedError: {error}"]
        told = [json.dumps(other)] * 2
        told[self.rank] = text
        return told


@pytest.mark.parametrize("rank", [0, 1])
def test_workers_learn_of_damages_before_they_read(
    rank: int, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each checks a part of the files alone, and may need one of another's: all fall back to the same checkpoint."""
    program = Program(7)
    for number, name in enumerate(checksums.names(saved / "ckpt-2")):
        path = tmp_path / str(number)
        shutil.copytree(saved / "ckpt-2", path)
        (path / name).unlink()
        pair: Any = Pair(rank, path)
        monkeypatch.setattr(committing, "saving_cluster", lambda pair=pair: pair)
        with pytest.raises(CheckpointDamagedError):
            program.checkpoint.restore(path)
        assert program.numbers() == {7}


class Fussy:
    """A value of another library that does not take every number."""

    def __init__(self, value: Any, refused: float) -> None:
        self.value, self._refused = value, refused

    def set(self, value: Any) -> None:
        self.value = value  # half done by then
        if np.any(np.asarray(value) == self._refused):
            raise TypeError(f"{self._refused} is not welcome")


@pytest.mark.parametrize("room", [None, 1])
def test_a_value_that_another_library_does_not_take_changes_nothing(
    room: int | None, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fussy, program = Fussy(7, 2), Program(7)
    found = program.checkpoint._found()  # pyright: ignore[reportPrivateUsage]
    last = list(found.leaves)[-3]
    found.leaves[last] = CellLeaf(lambda: fussy.value, fussy.set)
    monkeypatch.setattr(jd.Checkpoint, "_found", lambda _: found)
    held = program.variables["w"].read_value()
    if room is not None:
        monkeypatch.setattr(restoring, "_room", lambda: room)
        monkeypatch.setattr(arrays, "batches", lambda sizes, limit=1: [slice(i, i + 1) for i in range(len(sizes))])
        with pytest.raises(CheckpointError, match=rf"value {last} .*not welcome.* values have changed"):
            program.checkpoint.restore(saved / "ckpt-2")
        return
    with pytest.raises(
        CheckpointError, match=rf"value {last} .*TypeError: 2 is not welcome; nothing has changed.*HINT"
    ):
        program.checkpoint.restore(saved / "ckpt-2")
    assert program.numbers() == {fussy.value} == {7}
    # What was read before is not given up by a step.
    jd.function(lambda: program.variables["w"].assign_add(np.ones((3, 2), np.float32)))()
    assert np.unique(held).tolist() == [7]
    program.checkpoint.restore(saved / "ckpt-1")
    assert program.numbers() == {1, 7}, "all but the number whose place the fussy value takes"
    assert fussy.value == 1


def test_what_cannot_be_put_back_is_noted(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(7)

    def move(state: dict[str, int]) -> None:
        if state["at"] == 7:
            raise ValueError("no way back")
        program.position.at = state["at"]

    def fail(*_: Any) -> None:
        raise ValueError("not taken")

    monkeypatch.setattr(program.position, "set_state", move)
    monkeypatch.setattr(VariableLeaf, "put", fail)
    with pytest.raises(CheckpointError, match="not taken") as caught:
        program.checkpoint.restore(saved / "ckpt-2")
    assert any("could not be put back: ValueError: no way back" in note for note in caught.value.__notes__)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(Program(1).checkpoint.write(tmp_path / "one", block=True))
    (path / "data" / "process_0-of-1.json").unlink()
    (path / "data" / "process_0-of-1.json").mkdir()
    with pytest.raises(CheckpointDamagedError, match=r"process_0-of-1\.json: [\s\S]*HINT"):
        Program().checkpoint.read(path)
    (path / "jaxtribute.json").unlink()
    (path / "jaxtribute.json").mkdir()
    with pytest.raises(CheckpointDamagedError, match=r"jaxtribute\.json cannot be read"):
        Program().checkpoint.read(path)


def test_the_parts_of_several_processes_are_all_files(saved: Path) -> None:
    marks = Description.read(saved / "ckpt-2").files
    names = checksums.names(saved / "ckpt-2")
    assert sorted([*marks, "jaxtribute.json"]) == names
    assert checksums.damaged_files(saved / "ckpt-2", marks) == []
    nowhere = [checksums.damaged_files(saved / "nowhere", marks, (part, 3)) for part in range(3)]
    assert sorted(line for lines in nowhere for line in lines) == sorted(f"{name}: missing" for name in marks)
    assert all(nowhere)


def test_the_checksum_is_that_of_zlib(tmp_path: Path) -> None:
    content = random.Random(0).randbytes(3 << 20)
    (tmp_path / "file").write_bytes(content)
    assert checksums.checksum_of(tmp_path / "file") == (len(content), zlib.crc32(content))
