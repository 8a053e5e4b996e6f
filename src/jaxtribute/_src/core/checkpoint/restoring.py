"""Restores a checkpoint whole, or changes nothing.

All that may be wrong with its files is found first: their checksums, names and shapes, the positions, the arrays. Each
worker looks at one part of the files, and they tell each other. Only then values change.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxtribute._src.core import checksums
from jaxtribute._src.core.checkpoint import arrays
from jaxtribute._src.core.checkpoint.collecting import Contents
from jaxtribute._src.core.checkpoint.committing import STATE
from jaxtribute._src.core.checkpoint.description import Description, Differences, damaged
from jaxtribute._src.core.checkpoint.files import not_read, standing
from jaxtribute._src.core.checkpoint.forms import Spec, dtype_of
from jaxtribute._src.core.checkpoint.series import Identity, identity_of
from jaxtribute._src.core.checkpoint.turns import Turn
from jaxtribute._src.core.cluster.runtime import Cluster
from jaxtribute._src.core.input.iterator import position_file
from jaxtribute._src.core.reading import passing, patiently
from jaxtribute._src.core.values.stored import updating
from jaxtribute._src.json_reading import read_json
from jaxtribute._src.regular_files import IrregularError, text_of
from jaxtribute.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointUnreadableError,
)


@dataclass(frozen=True)
class Restore:
    """One restore, as one process sees it.

    Attributes:
      path: the checkpoint.
      contents: the program's values.
      strict: whether names that only the checkpoint or only the program has are an error.
      without: names that are left out.
      cluster: all workers, which restore together; None for one process.
    """

    path: Path
    contents: Contents
    strict: bool
    without: Sequence[str]
    cluster: Cluster | None

    def run(self) -> tuple[Differences, Turn | None]:
        """Restores; returns what was left out, and the turn of the checkpoint.

        Raises:
          CheckpointMismatchError: names, shapes or dtypes differ.
          CheckpointDamagedError: files are not as they were written; on another worker, too.
          CheckpointUnreadableError: they cannot be read now, or are replaced just now.
          CheckpointError: they cannot be read.
          InputError: an iterator cannot go to its position.
        """
        undo: list[Callable[[], None]] = []
        values = _Values(self.path, self.contents)
        try:
            contents = self._prepare(values, undo)
            self._change(values, undo)
        # Ctrl-C, too, must not leave half of another state. Values go back before positions, as they changed last.
        except BaseException as error:
            _put_back([*undo, *values.undo], error)
            raise
        return contents

    def _prepare(self, values: _Values, undo: list[Callable[[], None]]) -> tuple[Differences, Turn | None]:
        """Checks all files, then reads what is needed; each time agrees with the other workers that all is well."""
        error: Exception | None = None
        differences, saved, identity = Differences((), (), ()), None, identity_of(self.path)
        try:
            saved = self._described()
            differences = self._fitting(saved)
            self._verify(saved, identity)
        except Exception as problem:  # noqa: BLE001  # the other workers must learn of it, whatever it is
            error = problem
        # Before anything is read: a file that another worker finds damaged would be a raw error here.
        _agree(self.path, error, self.cluster, values.state)
        assert saved is not None
        try:
            values.read(saved)
            self._go_to(saved, undo)
            _check_same(self.path, identity)
        except Exception as problem:  # noqa: BLE001  # the same
            error = problem
        _agree(self.path, error, self.cluster, values.state)
        return differences, saved.turn

    def _change(self, values: _Values, undo: list[Callable[[], None]]) -> None:
        """Puts all values in their places; agrees with the other workers that all could."""
        error: Exception | None = None
        try:
            values.put()
            undo.extend(rebuild() for rebuild in self.contents.rebuilds)
        except Exception as problem:  # noqa: BLE001  # such as another library's, of a value that it does not take
            error = problem
        _agree(self.path, error, self.cluster, values.state)

    def _described(self) -> Description:
        saved = Description.read(standing(self.path))
        for name in self.without:
            saved = saved.without(name)
        return saved

    def _fitting(self, saved: Description) -> Differences:
        specs = {name: leaf.spec for name, leaf in self.contents.leaves.items()}
        differences = Differences.between(saved, specs, self.contents.iterators)
        if differences.unlike or (self.strict and differences):
            raise mismatch(self.path, differences)
        return differences

    def _verify(self, saved: Description, identity: Identity | None) -> None:
        part = (self.cluster.rank, self.cluster.workers) if self.cluster is not None else (0, 1)
        _verify(self.path, saved, identity, part)

    def _go_to(self, saved: Description, undo: list[Callable[[], None]]) -> None:
        """Sends the iterators to their positions, and notes how to send them back."""
        for name in self.contents.iterators.keys() & set(saved.iterators):
            iterator = self.contents.iterators[name]
            files = sorted(file for file in saved.files if file.rpartition("/")[0] == name)
            own = f"{name}/{position_file()}"
            position = self._position(own if own in files else files[0])
            before = iterator.get_state()
            # Before any value changes: an iterator may refuse its position.
            iterator.set_state(position)
            undo.append(lambda iterator=iterator, before=before: iterator.set_state(before))

    def _position(self, name: str) -> Any:
        """The position of an iterator, from its file."""
        try:
            return patiently(lambda: read_json(standing(self.path) / name))
        except (ValueError, IrregularError) as error:
            raise damaged(self.path, str(error)) from error
        except (OSError, MemoryError) as error:
            raise not_read(self.path, error) from error


_TRIALS = 5
"""Trials to verify a checkpoint that other processes replace meanwhile."""


def read_all(path: Path) -> None:
    """Reads every array of a checkpoint, one after the other: they need not fit into this machine's memory together.

    Args:
      path: the checkpoint.

    Raises:
      CheckpointError: it cannot be read; OSError and ValueError likewise.
    """
    for name, spec in Description.read(path).values.items():
        if spec.size:
            arrays.read(path / STATE, {name: None})


def verify(path: Path, part: tuple[int, int] = (0, 1)) -> None:
    """Checks that the files of a checkpoint are as they were written; nothing else is looked at.

    Args:
      path: the checkpoint.
      part: which part of the files to look at, of how many.

    Raises:
      CheckpointDamagedError: some are not; they are listed.
      CheckpointUnreadableError: some cannot be read now, or are replaced again and again.
      CheckpointError: there is no checkpoint, or one of another version.
    """
    for trial in range(_TRIALS):
        identity = identity_of(path)
        try:
            _verify(path, Description.read(standing(path)), identity, part)
        except CheckpointError:
            if trial + 1 < _TRIALS and identity_of(path) not in (identity, None):
                continue  # a save has replaced it meanwhile
            raise
        return


def _verify(path: Path, saved: Description, identity: Identity | None, part: tuple[int, int]) -> None:
    try:
        problems = checksums.damaged_files(standing(path), saved.files, part)
    except (OSError, MemoryError) as error:
        raise not_read(path, error) from error
    if problems:
        _check_same(path, identity)
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise CheckpointDamagedError(
            f"{path} is damaged:{lines}\nHINT: restore an earlier checkpoint; manager.restore_or_initialize() does so "
            "by itself."
        )


def _check_same(path: Path, identity: Identity | None) -> None:
    """Checks that a checkpoint is still the one that was there, and not another save's of its name."""
    now = identity_of(path)
    if now is not None and now != identity:
        raise CheckpointUnreadableError(
            f"{path} was replaced by another save while it was read. HINT: read it again, or jd.latest_checkpoint."
        )


def mismatch(path: Path, differences: Differences) -> CheckpointMismatchError:
    """The error of a checkpoint that is of another program."""
    return CheckpointMismatchError(
        f"{path} does not fit this program:\n{differences}\nHINT: names follow from how the objects hang together; "
        "restore(path, strict=False) takes what both have."
    )


def _put_back(undo: list[Callable[[], None]], error: BaseException) -> None:
    """Undoes what was changed, the last first; what cannot be undone is noted in the error."""
    for back in reversed(undo):
        try:
            back()
        except Exception as problem:  # noqa: BLE001  # the others are put back all the same
            error.add_note(f"One value or position could not be put back: {type(problem).__name__}: {problem}")


_TOLD = (CheckpointDamagedError, CheckpointUnreadableError)
"""Errors that are told as such to the other workers; all others as `CheckpointError`."""


def _agree(path: Path, error: Exception | None, cluster: Cluster | None, state: str) -> None:
    """Raises on every worker if one has found an error, so that all restore or none."""
    if cluster is None:
        if error is not None:
            raise error
        return
    own = [type(error).__name__, "" if error is None else f"{type(error).__name__}: {error}"]
    told = [json.loads(text) for text in cluster.exchange("restore", json.dumps(own))]
    failed = [(rank, kind, text) for rank, (kind, text) in enumerate(told) if text]
    if not failed:
        return
    # Its own error says most, and has the traceback. Damage that other workers have not seen is reported below.
    if error is not None and not (isinstance(error, CheckpointDamagedError) and len(failed) > 1):
        raise error
    # All raise the same kind, as all or none fall back to an earlier checkpoint.
    kinds = {kind for _, kind, _ in failed}
    kind = next((kind for kind in _TOLD if kinds == {kind.__name__}), CheckpointError)
    lines = "".join(f"\n{cluster.names[rank]}: {text}" for rank, _, text in failed)
    raise kind(f"{path} was not restored, and {state}:{lines}")


class _Values:
    """The values of a checkpoint on their way into the program.

    All are read before the first is put in its place. Only if memory is short are they read in several parts.

    Args:
      path: the checkpoint.
      contents: the program's values.
    """

    def __init__(self, path: Path, contents: Contents) -> None:
        self._path, self._contents = path, contents
        self._specs: dict[str, Spec] = {}
        self._names: list[str] = []
        self._changed = 0
        """Values that were replaced for ever, as there was no memory to keep the old ones."""
        self.undo: list[Callable[[], None]] = []
        """Calls that put back the values that have changed."""
        # Nothing is read yet: a generator looks at the names, which `read` finds, when it is asked for its first part.
        self._parts = self._read_parts()
        self._first: dict[str, Any] = {}

    def read(self, saved: Description) -> None:
        """Reads the first part, which mostly is all of it, of what both the checkpoint and the program have."""
        self._specs = {name: saved.values[name] for name in self._contents.leaves if name in saved.values}
        self._names = [name for name, spec in self._specs.items() if spec.size]
        self._first = next(self._parts, {})

    def put(self) -> None:
        """Puts all values in their places."""
        empty: dict[str, Any] = {}
        for name, spec in self._specs.items():
            if not spec.size:  # nothing is written of them
                shape = (spec.rows, *spec.shape) if spec.rows else spec.shape
                empty[name] = np.zeros(shape, dtype_of(spec.dtype))
        self._put(empty)
        self._put(self._first)
        for part in self._parts:
            self._put(part)

    def _put(self, values: dict[str, Any]) -> None:
        with updating:
            for name in list(values):
                leaf = self._contents.leaves[name]
                try:
                    # Noted before the value changes: whatever happens in between, it can go back.
                    self.undo.append(leaf.keep())
                    leaf.put(values.pop(name), self._specs[name])
                except Exception as error:
                    raise CheckpointError(
                        f"the value {name} of {self._path} was not taken: {type(error).__name__}: {error}; "
                        f"{self.state}. HINT: see the cause above, and restore once more."
                    ) from error

    @property
    def state(self) -> str:
        """The state that an error leaves the values in."""
        return f"{self._changed} of {len(self._names)} values have changed" if self._changed else "nothing has changed"

    def _read_parts(self) -> Generator[dict[str, Any]]:
        names = self._names
        for part in list(arrays.batches([self._bytes(name) for name in names], _room())):
            values: dict[str, Any] = {}
            for batch in arrays.batches([self._bytes(name) for name in names[part]]):
                chosen = names[part][batch]
                wanted = {name: self._contents.leaves[name].placement(self._specs[name]) for name in chosen}
                try:
                    values |= patiently(lambda wanted=wanted: arrays.read(standing(self._path) / STATE, wanted))
                except Exception as error:
                    if passing(error):
                        raise CheckpointUnreadableError(f"{self.state}: {not_read(self._path, error)}") from error
                    raise CheckpointError(
                        f"{self._path} cannot be read: {type(error).__name__}: {error}. Its files are as they were "
                        f"written; {self.state}. HINT: see the cause above, and restore once more."
                    ) from error
            count = len(values)
            yield values
            if count < len(names):
                # There is no room for all old values beside the new ones: those of this part are gone now.
                self.undo.clear()
                self._changed += count

    def _bytes(self, name: str) -> int:
        """The memory that a value takes: that of one device, or of all that share the host's."""
        spec, placement = self._specs[name], self._contents.leaves[name].placement(self._specs[name])
        itemsize = dtype_of(spec.dtype).itemsize
        if placement is None:
            return spec.size * max(1, spec.rows) * itemsize
        shape, sharding = placement
        # The logical CPU devices share one memory, where each has its part; accelerators have memories of their own.
        host = [device for device in sharding.addressable_devices if device.platform == "cpu"]
        return math.prod(sharding.shard_shape(shape)) * itemsize * max(1, len(host))


def _room() -> int:
    """The bytes that values may take beside those that they replace: half of what is free on a device or the host."""
    # Half: until all is well, the old values stay beside the new ones, and Orbax needs room to read into.
    free = [_free_on_host()]
    for device in jax.local_devices():
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            free.append(stats["bytes_limit"] - stats["bytes_in_use"])
    return max(1, min(free) // 2)


def _free_on_host() -> int:
    """The bytes of the machine's memory, and of its container's, that this process may take; only Linux tells."""
    free = sys.maxsize
    for line in text_of("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit = text_of("/sys/fs/cgroup/memory.max").strip()
    if limit.isdecimal():
        # The container's count has the files that the kernel keeps in memory, and would give up: "inactive_file".
        used = int(text_of("/sys/fs/cgroup/memory.current") or 0)
        stat = dict(line.split() for line in text_of("/sys/fs/cgroup/memory.stat").splitlines())
        free = min(free, int(limit) - used + int(stat.get("inactive_file", 0)))
    return free
