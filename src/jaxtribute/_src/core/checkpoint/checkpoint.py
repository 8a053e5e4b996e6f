"""`Checkpoint`: the whole state of a training program, to files and back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.checkpoint import arrays, committing
from jaxtribute._src.core.checkpoint.background import Background, settle_all
from jaxtribute._src.core.checkpoint.collecting import Contents, Named, cell, collect
from jaxtribute._src.core.checkpoint.committing import STATE, Save, SaveChannel
from jaxtribute._src.core.checkpoint.description import Description, Differences
from jaxtribute._src.core.checkpoint.files import FILE, check_name, check_path, check_prefix, check_text, stem
from jaxtribute._src.core.checkpoint.owner import Owner
from jaxtribute._src.core.checkpoint.restoring import Restore, mismatch
from jaxtribute._src.core.checkpoint.series import Past
from jaxtribute._src.core.checkpoint.turns import TURN
from jaxtribute._src.core.observers import FLUSH, RESTORE, SAVE, observed
from jaxtribute._src.core.types import Foreign, Nest
from jaxtribute._src.core.values.copies import SpareMemory
from jaxtribute._src.core.values.stored import updating
from jaxtribute.errors import ArgumentError, CheckpointError, ContextError

_COUNTERS = ("save_counter", "run_counter")


class RestoreStatus:
    """Summary of the parts that a restore has left out.

    Source: the status objects of `tf.train.Checkpoint.restore`.
    """

    differences: Differences

    def __init__(self, path: Path, differences: Differences) -> None:
        self._path, self.differences = path, differences

    def assert_consumed(self) -> RestoreStatus:
        """Checks that the checkpoint and the program hold the same names.

        Raises:
          CheckpointMismatchError: they do not; it lists the names.
        """
        if self.differences:
            raise mismatch(self._path, self.differences)
        return self

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Checks that everything in the program was in the checkpoint.

        Raises:
          CheckpointMismatchError: something was not.
        """
        if self.differences.missing:
            raise mismatch(self._path, Differences(self.differences.missing, (), ()))
        return self

    def expect_partial(self) -> RestoreStatus:
        """Says that a partial restore is meant. Returns itself."""
        return self

    def __repr__(self) -> str:
        return f"<restored {self._path}{', but' if self.differences else ''}\n{self.differences}>".replace("\n>", ">")


class Checkpoint(Named):
    """The state of a training program: saved while the training goes on, restored under any strategy.

    Args:
      trackables: what belongs to the state, by name: `jd.Variable`s, `jd.Optimizer`s (their slots), distributed
        iterators (their positions), models of Flax NNX and Keras, nests (of these, of arrays, random keys and
        numbers), objects with variables among their attributes, further checkpoints, whose names go on below their own.
        Each is an attribute of the checkpoint by its name.
        Variables are restored in place; plain arrays and numbers cannot change, so a nest that has some is replaced:
        read it from the attribute after a restore, and assign it there before a save.

    In a cluster all workers make the same calls.

    Raises:
      ArgumentError: a name that the class itself uses.

    Examples:
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     w = jd.Variable(1.0)
      ...     checkpoint = jd.Checkpoint(w=w)
      ...     path = checkpoint.save(f"{folder}/ckpt")
      ...     changed = w.assign(5.0)
      ...     status = checkpoint.restore(path)
      >>> float(w)
      1.0

    Source: `tf.train.Checkpoint`.
    """

    def __init__(self, **trackables: Nest) -> None:
        # Past this class's own `__setattr__`, which takes any name for that of a trackable.
        object.__setattr__(self, "_trackables", {})
        object.__setattr__(self, "_background", Background())
        object.__setattr__(self, "_memory", SpareMemory())
        object.__setattr__(self, "_counts", dict.fromkeys(_COUNTERS, 0))
        object.__setattr__(self, "_past", Past())
        object.__setattr__(self, "_channel", None)
        for name, value in trackables.items():
            setattr(self, name, value)

    _trackables: dict[str, Any]
    _background: Background
    _memory: SpareMemory
    _counts: dict[str, int]
    _past: Past
    _channel: SaveChannel | None

    def __setattr__(self, name: str, value: Nest) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ArgumentError(
                f"a checkpoint cannot keep anything by the name {name!r}, which it uses itself. HINT: choose another."
            )
        self._trackables[name] = value

    def __getattr__(self, name: str) -> Any:
        trackables = self.__dict__.get("_trackables", {})
        if name not in trackables:
            raise AttributeError(f"the checkpoint keeps {list(trackables)}, and no {name!r}", name=name, obj=self)
        return trackables[name]

    @property
    def save_counter(self) -> int:
        """Number of calls of `save`, over all runs."""
        return self._counts["save_counter"]

    @property
    def run_counter(self) -> int:
        """Number of calls of `PreemptionCheckpointHandler.run` that have ended, over all runs."""
        return self._counts["run_counter"]

    def save(self, file_prefix: str | PathLike[str], *, block: bool = False, timeout_s: float | None = None) -> str:
        """Saves to `{file_prefix}-{save_counter}`, counting up.

        Args:
          file_prefix: a path; its folder is made if it does not exist.
          block: whether to return only once the checkpoint is complete. Otherwise the values are what they are
            now, whatever the training does meanwhile, and an error comes out at the next call.
          timeout_s: how long workers wait for each other; by default as long as for a step, at most ten
            minutes.

        Returns:
          The path of the checkpoint.

        Raises:
          CheckpointError: the save before this one failed, or with `block` this one.
          DeadlineError: likewise, because a worker did not come.
          ArgumentError: a prefix that has no name in it, as "/" and "folder/".
          ContextError: called in a replica function or a `jd.function`.

        Source: `tf.train.Checkpoint.save`.
        """
        prefix = check_prefix(file_prefix, "file_prefix")
        with self._background.alone:
            self.wait()
            return self.write(f"{prefix}-{self.count()}", block=block, timeout_s=timeout_s)

    def count(self, counter: str = "save_counter") -> int:
        """Counts `save_counter` or `run_counter` up, and returns it; for managers and handlers."""
        self._counts[counter] += 1
        return self._counts[counter]

    @staticmethod
    def _agreed_path(path: str | PathLike[str]) -> Path:
        """The first worker's path, where each worker may have been told another; its folder is made."""
        own, cluster = check_path(path, "path"), committing.saving_cluster()
        if cluster is None:
            return own
        own.parent.mkdir(parents=True, exist_ok=True)
        return Path(cluster.exchange("checkpoint path", str(own))[0])

    @observed(SAVE)
    def write(
        self,
        path: str | PathLike[str],
        *,
        block: bool = False,
        timeout_s: float | None = None,
        committed: Callable[[], None] = lambda: None,
        owner: Owner | None = None,
    ) -> str:
        """Saves to exactly this path, and does not count; otherwise as `save`.

        Args:
          path: where the checkpoint will be; one that is there is replaced once the new one is complete.
          block: whether to return only once it is complete.
          timeout_s: how long workers wait for each other.
          committed: called, in a thread of the first worker, once it is complete.
          owner: what makes this process the only one that saves under this name, for managers; by default it is so for
            this save.

        Source: `tf.train.Checkpoint.write`.
        """
        _check_context("save")
        target = check_path(path, "path")
        check_name(target.name, f"path={str(path)!r}, whose last part")
        group = committing.together()
        if group is not None and not group.writes(target):
            return str(target)  # another process writes it
        claim = owner or Owner(target.parent, stem(target))
        with self._background.alone:
            # One save at a time: two would hold two copies of what the training has changed meanwhile. An error of the
            # one before comes out here.
            self._background.wait()
            collected, channel = self._found(), self._agreeing()
            if channel is None:
                claim.check_manager()  # at once; of several workers the first alone knows, and tells the others
            here = channel and channel.cluster.meets("the save of a checkpoint")
            positions = {name: _position(name, iterator) for name, iterator in collected.iterators.items()}
            with updating:  # no step in between: all values are of one moment
                specs, leaves = collected.snapshots(self._memory)  # a function of its own: see interrupts
            description = Description.of(specs, positions, channel.cluster.workers if channel else 1)
            # Still in the thread that trains: no step can come before what is written first is taken.
            arrays.begin(leaves)
            self._background.start(
                Save(
                    path=target,
                    arrays=leaves,
                    positions=positions,
                    description=description,
                    committed=committed,
                    owner=claim,
                    past=self._past,
                    owned=owner is not None,
                    channel=channel,
                    here=here,
                    timeout_s=timeout_s,
                ).run,
                target,
            )
            if block:
                self._background.wait()
        return str(target)

    @property
    def saving(self) -> bool:
        """True if a save is under way."""
        return self._background.busy

    @observed(FLUSH)
    def wait(self) -> None:
        """Waits until the save that is under way is complete.

        Raises:
          CheckpointError: it failed.
          DeadlineError: a worker did not come.
        """
        self._background.wait()

    def restore(self, save_path: str | PathLike[str] | None, *, strict: bool = True) -> RestoreStatus:
        """Restores everything, `save_counter` and `run_counter` included.

        The checkpoint may be of another strategy, and of another number of devices or workers.

        Args:
          save_path: what `save` returned; None (what `latest_checkpoint` gives if there is none) does nothing.
          strict: whether names that only the checkpoint or only the program has are an error. A value of another
            shape or dtype always is.

        Returns:
          What was left out, with checks to call.

        Raises:
          CheckpointMismatchError: names, shapes or dtypes differ: all that do are listed.
          CheckpointDamagedError: files are missing or not as they were written: they are listed.
          CheckpointUnreadableError: the system cannot read files now, nor after a moment; they may be whole.
          CheckpointError: there is no complete checkpoint, or it cannot be read.
          InputError: an iterator cannot go to its position.
          ArgumentTypeError: `save_path` is no path.

        After an error nothing has changed, on any worker. All is read before the first value changes; only if that
        would take more than half of the free memory, a disk that fails in the middle leaves a part, and it says so.

        Source: `tf.train.Checkpoint.restore`.
        """
        return self._restore(save_path, strict, counters=True)

    def read(self, save_path: str | PathLike[str] | None, *, strict: bool = True) -> RestoreStatus:
        """Restores everything but `save_counter` and `run_counter`; otherwise as `restore`.

        Source: `tf.train.Checkpoint.read`.
        """
        return self._restore(save_path, strict, counters=False)

    @observed(RESTORE)
    def _restore(self, save_path: str | PathLike[str] | None, strict: bool, *, counters: bool) -> RestoreStatus:
        _check_context("restore")
        with self._background.alone:
            self._background.wait()
            if save_path is None:
                return RestoreStatus(Path(), Differences((), (), ()))
            path = own = check_path(save_path, "save_path")
            if (group := committing.together()) is not None:
                # Processes that join later restore it as well.
                path = self._past.begun = Path(group.first(f"the restore of {own}", lambda: str(own)))
            settle_all(path)  # another object may be saving it
            collected, without = self._found(), () if counters else _COUNTERS
            for name in without:
                del collected.leaves[name]
            differences, turn = Restore(path, collected, strict, without, committing.saving_cluster()).run()
            self._past.restored(path, turn)
        return RestoreStatus(path, differences)

    @property
    def _alone(self) -> threading.RLock:
        """Held by managers while they count and save, which no other thread may do then."""
        return self._background.alone

    def _agreeing(self) -> SaveChannel | None:
        """Agreement of the workers on this object's saves; None for one process."""
        cluster = committing.saving_cluster()
        if cluster is not None and (self._channel is None or self._channel.cluster is not cluster):
            object.__setattr__(self, "_channel", SaveChannel(cluster))
        return self._channel if cluster is not None else None

    def _found(self) -> Contents:
        collected = collect(self._trackables, self._trackables.__setitem__)
        for name in collected.leaves:
            check_text(name, "the name of a value")
        for name in collected.iterators:
            check_name(name, "the name of an iterator, whose position is saved in a folder of that name,")
            if name in (STATE, FILE, TURN):
                raise ArgumentError(
                    f"an iterator named {name!r} would be saved where other files are. HINT: rename it."
                )
        collected.leaves.update({name: cell(self._counts, name) for name in _COUNTERS})
        return collected

    def __repr__(self) -> str:
        return f"<jd.Checkpoint of {', '.join(self._trackables)}; saved {self.save_counter} times>"


def _position(name: str, iterator: Foreign) -> str:
    state = iterator.get_state()
    try:
        return json.dumps(state)
    except TypeError:
        raise CheckpointError(
            f"the position of {name} is a {type(state).__name__}, which JSON cannot hold. HINT: distribute the dataset "
            "(strategy.experimental_distribute_dataset), or give the object positions of numbers, strings and lists."
        ) from None


def _check_context(action: str) -> None:
    context = contexts.current()
    if context.executor.traced or context.executor.local:
        raise ContextError(
            f"Checkpoint.{action} was called in a jd.function or a replica function, where values are not final. "
            "HINT: call it between steps, in the program that calls them."
        )
