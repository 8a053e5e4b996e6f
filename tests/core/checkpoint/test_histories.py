"""Random histories of a folder of checkpoints, against a model: a list of saves, each with the line it belongs to."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import jaxtribute as jd
from jaxtribute import errors
from jaxtribute._src.core import checksums, reading
from jaxtribute._src.core.checkpoint import committing, files
from jaxtribute._src.core.checkpoint.files import standing

KEPT = 3
FILES = ("jaxtribute.json", "turn.json", "state/manifest.ocdbt")


@dataclass
class Saved:
    """A checkpoint as the model knows it: the values that its training had come through, its own at the end."""

    number: int
    line: tuple[int, ...]
    damaged: bool = False
    described: bool = True

    @property
    def value(self) -> int:
        return self.line[-1]


class Folder(RuleBasedStateMachine):
    """A program that saves, goes back, is killed and begins anew; `saves` are in the order of saving."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / "run"
        self.saves: list[Saved] = []
        self.values = 0
        self.asked: set[int] = set()
        """Numbers that saves were given, of all that happened."""
        self.start()

    def start(self) -> None:
        self.checkpoint = jd.Checkpoint(value=0)
        self.manager = jd.CheckpointManager(self.checkpoint, self.folder, KEPT, block=True)
        self.line: tuple[int, ...] = ()
        self.counter = 0
        self.taken: set[int] = set()
        """Those among them that the present manager must not count up to."""
        self.found_damaged: list[Saved] = []

    def teardown(self) -> None:
        self.manager.close()
        shutil.rmtree(self.folder.parent)

    def expected(self) -> Saved | None:
        """The save that a restart must find; None where nothing is whole."""
        line = [one for one in reversed(self.saves) if one.value in self.saves[-1].line]
        return next((one for one in line if not one.damaged), None)

    def path(self, saved: Saved) -> Path:
        return self.folder / f"ckpt-{saved.number}"

    def take(self, saved: Saved, counter: int) -> None:
        assert self.checkpoint.value == saved.value
        assert self.checkpoint.save_counter == counter
        self.line, self.counter = saved.line, counter

    @rule(number=st.none() | st.integers(0, 6))
    def save(self, number: int | None) -> None:
        self.values += 1
        self.checkpoint.value = self.values
        path = self.manager.save(number)
        before, self.counter = self.counter, self.checkpoint.save_counter
        if number is None:
            assert self.counter not in self.taken
            assert self.asked.issuperset(range(before + 1, self.counter))
        else:
            assert self.counter == before + 1
            self.asked.add(number)
            self.taken.add(number)
        new = Saved(self.counter if number is None else number, (*self.line, self.values))
        assert path == str(self.path(new))
        self.saves = [one for one in self.saves if one.number != new.number]
        others = [one for one in self.saves if one not in self.found_damaged and one.described]
        for one in others[: 1 - KEPT]:
            self.saves.remove(one)
        self.saves.append(new)
        self.line = new.line

    @rule(place=st.integers(0, 9))
    def go_back(self, place: int) -> None:
        whole = [one for one in self.saves if not one.damaged]
        if whole:
            saved = whole[place % len(whole)]
            self.checkpoint.restore(self.path(saved))
            self.take(saved, self.checkpoint.save_counter)

    @rule()
    def begin_anew(self) -> None:
        self.manager.close()
        self.start()

    @rule(fault=st.sampled_from((None, None, errno.EIO, errno.EMFILE, errno.ESTALE)))
    def restart(self, fault: int | None) -> None:
        self.begin_anew()
        with contextlib.nullcontext() if fault is None else failing_once(fault):
            if not self.saves:
                assert self.manager.restore_or_initialize() is None
                return
            saved = self.expected()
            if saved is None:
                with pytest.raises(errors.CheckpointDamagedError):
                    self.manager.restore_or_initialize()
                return
            assert self.manager.restore_or_initialize() == str(self.path(saved))
        self.take(saved, self.checkpoint.save_counter)
        ahead = [one for one in self.saves if one.value in saved.line and not one.damaged and one.number > self.counter]
        self.taken = {one.number for one in ahead}
        newer = self.saves[self.saves.index(saved) + 1 :]
        self.found_damaged = [one for one in newer if one.value in self.saves[-1].line]

    @precondition(lambda self: self.saves)
    @rule()
    def restart_on_a_disk_that_is_gone(self) -> None:
        self.begin_anew()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "_PAUSES_S", ())
            patch.setattr(checksums, "checksum_of", refuse)
            if self.expected() is None:
                with pytest.raises(errors.CheckpointError):
                    self.manager.restore_or_initialize()
                self.begin_anew()
                return
            with pytest.raises(errors.CheckpointError) as caught:
                self.manager.restore_or_initialize()
        assert isinstance(caught.value, errors.CheckpointUnreadableError)
        assert self.checkpoint.value == 0
        with pytest.raises(errors.CheckpointError, match="is not replaced"):
            self.manager.save(self.saves[-1].number)
        self.begin_anew()

    @rule(place=st.integers(0, 9), file=st.sampled_from(FILES), kind=st.sampled_from(("cut", "missing")))
    def damage(self, place: int, file: str, kind: str) -> None:
        whole = [one for one in self.saves if not one.damaged]
        if not whole:
            return
        saved = whole[place % len(whole)]
        saved.damaged, saved.described = True, (file, kind) != (FILES[0], "missing")
        target = standing(self.path(saved)) / file
        content = target.read_bytes()
        target.unlink()
        if kind == "cut":
            target.write_bytes(content[: len(content) // 2])

    @rule(moment=st.integers(0, 2), number=st.none() | st.integers(0, 6))
    def kill_in_a_save(self, moment: int, number: int | None) -> None:
        """A save whose program ends before it is complete, or after, at one of the moments when the folder changes."""
        before = ([*self.saves], self.line, self.counter, self.values)
        with copied_at(moment, self.folder) as copy:
            self.save(number)
        self.manager.close()
        if copy.exists():
            shutil.rmtree(self.folder)
            copy.rename(self.folder)
            if _value_at(self.path(self.saves[-1])) != self.values:
                self.saves = before[0]
                self.values = before[3] + 1
            else:  # complete; what is too old is still there
                late = self.saves[-1]
                self.saves = [one for one in before[0] if one.number != late.number] + [late]
        self.start()

    @invariant()
    def the_latest_is_the_one_that_was_saved_last(self) -> None:
        paths = [self.path(one) for one in self.saves]
        names = [str(path) for path in paths if (standing(path) / "jaxtribute.json").exists()]
        assert self.manager.checkpoints == names
        if not self.saves:
            assert jd.latest_checkpoint(self.folder) is None
        elif (saved := self.expected()) is not None:
            assert jd.latest_checkpoint(self.folder) == str(self.path(saved))
        else:
            with pytest.raises(errors.CheckpointDamagedError):
                jd.latest_checkpoint(self.folder)


def refuse(*_: object) -> Any:
    raise OSError(errno.EIO, "Input/output error")


@contextlib.contextmanager
def failing_once(number: int) -> Generator[None]:
    """The first file that is looked at cannot be read, the next time it can."""
    mark, failed = checksums.checksum_of, list[int]()

    def fail(path: Path) -> Any:
        if not failed:
            failed.append(number)
            raise OSError(number, "not now")
        return mark(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_PAUSES_S", (0.0,))
        patch.setattr(checksums, "checksum_of", fail)
        yield


@contextlib.contextmanager
def copied_at(moment: int, folder: Path) -> Generator[Path]:
    """Copies a folder when a save comes to one of its last moments: what a program that is killed there leaves."""
    sync, calls = files.sync, list[Path]()
    copy = folder.with_name("copy")

    def note(place: Path) -> None:
        sync(place)
        if len(calls) == moment and folder.exists():
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.owner"))
        calls.append(place)

    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        result = rename(path, target)
        if path.name.startswith("ckpt") and moment == 2 and not copy.exists():
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.owner"))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committing, "sync", note)
        patch.setattr(Path, "rename", renamed)
        yield copy


def _value_at(path: Path) -> int:
    checkpoint = jd.Checkpoint(value=0)
    try:
        checkpoint.read(path, strict=False)
    except errors.CheckpointError:
        return -1
    return checkpoint.value


Folder.TestCase.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestHistories = Folder.TestCase
