"""Makes a checkpoint complete or not at all: it is written under another name, and renamed once all have written.

Processes tell each other over the cluster's key-value store, never by a collective: the training goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from jaxtribute._src.core import checksums
from jaxtribute._src.core.checkpoint import arrays
from jaxtribute._src.core.checkpoint.description import Description
from jaxtribute._src.core.checkpoint.files import (
    REPLACED,
    UNFINISHED,
    left_over,
    not_written,
    present,
    remedy,
    remove,
    standing,
    stem,
    sync,
    write_text,
)
from jaxtribute._src.core.checkpoint.owner import Owner
from jaxtribute._src.core.checkpoint.series import Past
from jaxtribute._src.core.checkpoint.turns import TURN
from jaxtribute._src.core.checksums import Mark
from jaxtribute._src.core.cluster import runtime
from jaxtribute._src.core.cluster.runtime import Cluster
from jaxtribute._src.core.cluster.step_log import Place
from jaxtribute._src.core.input.iterator import position_file
from jaxtribute._src.core.observers import WRITE
from jaxtribute._src.core.points import TOGETHER, Together
from jaxtribute._src.core.types import HostArray
from jaxtribute._src.core.values.stored import Lease
from jaxtribute.errors import CheckpointError, ClusterError, ConfigError, DeadlineError

STATE = "state"
"""The folder of a checkpoint that holds its arrays."""


def saving_cluster() -> Cluster | None:
    """The cluster of this process, or None if it is alone.

    Raises:
      ConfigError: JAX has several processes that this library did not bring together.
    """
    cluster = runtime.Cluster.current()
    if cluster is None and jax.process_count() > 1:
        raise ConfigError(
            f"this is one of {jax.process_count()} processes that have no cluster to agree on a checkpoint in. "
            "HINT: make a jd.MultiWorkerMirroredStrategy instead of calling jax.distributed.initialize."
        )
    return cluster if cluster is not None and cluster.workers > 1 else None


def together() -> Together | None:
    """The processes that train with this one without a cluster; None if there are none."""
    return next(filter(None, (find() for find in TOGETHER.entries())), None)


class SaveChannel:
    """Meeting place of the workers for the saves of one checkpoint object, which come one after the other.

    Args:
      cluster: the workers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._name = f"jaxtribute/save/{cluster.number('checkpoint')}"
        self._count = -1

    @property
    def key(self) -> str:
        """Beginning of the keys of the present save."""
        return f"{self._name}/{self._count}"

    def begin(self) -> None:
        """Goes on to the next save."""
        self._count += 1

    def clean(self) -> None:
        """Forgets the save before: all workers are in this one, so they have left it."""
        if self._count:
            self.cluster.delete(f"{self._name}/{self._count - 1}/")


@dataclass(frozen=True)
class Save:
    """One save, as one process sees it.

    Attributes:
      path: where the checkpoint will be.
      arrays: this process's arrays by name.
      positions: what the iterators' files hold, by the iterators' names.
      description: what the checkpoint says of itself.
      committed: called by the first process once the checkpoint is complete.
      owner: what makes this process the only one that saves there.
      past: the checkpoints that the values come from; it learns of this one.
      owned: whether it stays so after this save.
      channel: how the processes agree; None for one alone.
      here: the call, in which all processes must be then.
      timeout_s: how long the processes wait for each other; None for `Cluster.patience`.
    """

    path: Path
    arrays: Mapping[str, Lease | HostArray]
    positions: Mapping[str, str]
    description: Description
    committed: Callable[[], None]
    owner: Owner
    past: Past
    owned: bool = False
    channel: SaveChannel | None = None
    here: Place | None = None
    timeout_s: float | None = None

    @property
    def unfinished(self) -> Path:
        """Folder in which the checkpoint is written."""
        return self.path.with_name(self.path.name + UNFINISHED)

    def run(self) -> None:
        """Writes this process's part, and completes the checkpoint together with the others.

        Raises:
          CheckpointError: a process could not write; it is named.
          ClusterError: a process is in another call, or failed; it is named.
          DeadlineError: a process did not come in time; it is named.
        """
        try:
            with WRITE.during(self, str(self.path)):
                self._run()
        except (CheckpointError, ClusterError, DeadlineError):
            raise  # they name the worker already
        except Exception as error:
            raise not_written(self.path, error) from error
        finally:
            self._give_back()
            if not self.owned:
                self.owner.release()

    def _run(self) -> None:
        if self.channel is not None and self.channel.cluster.rank != 0:
            self._run_in(self.channel)
            return
        # Another manager of this name, in another thread, waits: their files and what they delete would mix.
        with self.owner.seat.saving:
            if self.channel is not None:
                self._run_in(self.channel)
                return
            self._make()
            with self._clearing():
                self._write()
                self._complete({})

    @contextlib.contextmanager
    def _clearing(self) -> Generator[None]:
        """Removes what is half written if that fails: a disk that is full would stay so."""
        try:
            yield
        except Exception:
            with contextlib.suppress(CheckpointError):
                self.owner.check()  # what is there may be another process's by now
                remove(self.unfinished)
            raise

    def _give_back(self) -> None:
        # Also if nothing came to be written: of a variable on loan each step makes a copy.
        for array in self.arrays.values():
            if isinstance(array, Lease):
                array.give_back()

    def _run_in(self, channel: SaveChannel) -> None:
        """The same in several processes: the first makes the folder, all write, the first completes it."""
        channel.begin()
        cluster, key = channel.cluster, channel.key
        timeout_s = cluster.patience(self.timeout_s)
        first = cluster.rank == 0
        # Nobody writes before the folder is there; if it could not be made, all skip the writing and learn why.
        made = _outcome(self._make) if first else ""
        if first:
            cluster.set(f"{key}/made", made)
        else:
            made = cluster.get(f"{key}/made", timeout_s, of=0, at=self.here)

        def write() -> None:
            # The marks are set before `written` is, so the first process finds them without waiting.
            self._write()
            cluster.set(f"{key}/marks/{cluster.rank}", json.dumps(self._own_marks()))

        cluster.set(f"{key}/written/{cluster.rank}", made or _outcome(write))
        if first:
            cluster.set(f"{key}/result", f"{cluster.names[0]}: {made}" if made else self._end(channel, timeout_s))
            channel.clean()
        # All wait for the end: a save that one process takes for complete is so for every other.
        result = cluster.get(f"{key}/result", timeout_s, of=0, at=self.here)
        if result:
            raise CheckpointError(
                f"{self.path} was not saved: {result}. HINT: see the output of the worker that is named; checkpoints "
                "that were complete before are untouched."
            )

    def _end(self, channel: SaveChannel, timeout_s: float) -> str:
        """Completes the checkpoint once all workers have written; returns what went wrong on any of them."""
        cluster, failed = channel.cluster, list[str]()
        for rank in range(cluster.workers):
            outcome = cluster.get(f"{channel.key}/written/{rank}", timeout_s, of=rank, at=self.here)
            if outcome:
                failed.append(f"{cluster.names[rank]}: {outcome}")

        def complete() -> None:
            with self._clearing():
                if failed:
                    raise CheckpointError("; ".join(failed))
                self._complete(self._all_marks(channel))

        verdict = _outcome(complete)
        return "; ".join(failed) or verdict

    def _make(self) -> None:
        """Makes the folder again; what is in it was left by a save that never ended."""
        self.owner.claim()
        self.owner.take_over()
        old = standing(self.path)
        if old != self.path:  # a program was killed while it replaced this checkpoint
            old.rename(self.path)
        # Writes that had been under way when a save failed may have made its folder again.
        for left in (self.unfinished, *left_over(self.path.parent, stem(self.path))):
            remove(left)
        with self._clearing():
            (self.unfinished / STATE).mkdir(parents=True)

    def _write(self) -> None:
        arrays.write(self.unfinished / STATE, self.arrays)
        for name, text in self.positions.items():
            (self.unfinished / name).mkdir(exist_ok=True)
            write_text(self.unfinished / name / position_file(), text)

    def _own_marks(self) -> dict[str, Mark]:
        """The marks of the files that this process alone writes."""
        own = arrays.folder_of_process(self.unfinished / STATE)
        files = [f"{STATE}/{own.name}/{name}" for name in checksums.names(own)]
        positions = [f"{name}/{position_file()}" for name in self.positions]
        return checksums.marks(self.unfinished, [*files, *positions])

    def _all_marks(self, channel: SaveChannel) -> dict[str, Mark]:
        """The marks that the processes have told."""
        cluster, marks = channel.cluster, dict[str, Mark]()
        for rank in range(cluster.workers):
            told = json.loads(cluster.get(f"{channel.key}/marks/{rank}", cluster.patience(self.timeout_s), of=rank))
            marks |= {name: (size, checksum) for name, (size, checksum) in told.items()}
        return marks

    def _complete(self, known: Mapping[str, Mark]) -> None:
        """Gives the checkpoint its name.

        Args:
          known: marks of files that need not be read again.
        """
        # The order makes it complete or not at all. The description is the last file, and whoever reads it finds all
        # others, with their checksums. The files are there before the name is, and the name before the old checkpoint
        # goes: whenever the machine stops, one of both is whole under a name that is looked for.
        arrays.merge(self.unfinished / STATE)
        turn = self.past.next(self.path)
        if turn is not None:
            write_text(self.unfinished / TURN, turn.as_text())
        # What the processes have written they have read themselves; the index is new.
        rest = [name for name in checksums.names(self.unfinished) if name not in known]
        marks = {**known, **checksums.marks(self.unfinished, rest)}
        replace(self.description, files=marks, turn=turn).write(self.unfinished)
        sync(self.unfinished)
        # The last look: had this process been stopped for minutes, another job could own the name by now, and its
        # checkpoint would be replaced here.
        self.owner.check()
        replaced = self.path.with_name(self.path.name + REPLACED)
        remove(replaced)
        if present(self.path):
            self.path.rename(replaced)  # from here until the next line the checkpoint of this name is found there
        self.unfinished.rename(self.path)
        self.past.saved(self.path, turn)
        sync(self.path.parent)
        remove(replaced)
        self.committed()


def _outcome(action: Callable[[], Any]) -> str:
    """Does it, and returns what went wrong."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  # the others must learn of it, whatever it is
        helps = "" if isinstance(error, CheckpointError) else f" ({remedy(error)})"
        return f"{type(error).__name__}: {error}{helps}"
    return ""
