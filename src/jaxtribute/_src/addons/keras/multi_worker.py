"""Keras on several workers: who shows and writes what, and the batches of arrays, in one order for all."""

from __future__ import annotations

import inspect
import json
import os
import random
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import callbacks

from jaxtribute import get_strategy
from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.variables import read_by_all
from jaxtribute.errors import CheckpointError, InputError
from jaxtribute.typing import Foreign, Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy

_REPORTERS = callbacks.CSVLogger, callbacks.ProgbarLogger, callbacks.RemoteMonitor, callbacks.TensorBoard
"""Callbacks that show figures or write them down, and nobody reads them during the training."""
_FILES = "files of Keras"
_WHOLE = ".keras", ".h5"
"""Ends of the names of what Keras writes as one file."""


def is_first(strategy: Strategy) -> bool:
    """True if this process is the worker that shows progress and writes files."""
    return strategy.extended.input_context().input_pipeline_id == 0


def several(strategy: Strategy) -> bool:
    """True if the strategy has more than one worker."""
    return strategy.extended.input_context().num_input_pipelines > 1


def silenced(method: Callable[..., Any], model: KerasModel, args: Leaf, kwargs: Leaf) -> tuple[Any, Any]:
    """The arguments of `fit`, `evaluate` or `predict` for a worker that is not the first."""
    bound = inspect.signature(method).bind(model, *args, **kwargs)
    bound.arguments["verbose"] = 0
    given = bound.arguments.get("callbacks")
    if given is not None and not isinstance(given, callbacks.CallbackList):
        listed = given if isinstance(given, (list, tuple)) else [given]
        kept = [_along(one) for one in listed if not isinstance(one, _REPORTERS) or _reads(one)]
        for one in kept:
            if isinstance(one, callbacks.ModelCheckpoint):
                one.verbose = 0
        bound.arguments["callbacks"] = kept
    return bound.args[1:], bound.kwargs


def _reads(callback: Foreign) -> bool:
    """True if a callback that reports reads the model's values, which all workers do together if each has a part."""
    return isinstance(callback, callbacks.TensorBoard) and bool(callback.histogram_freq or callback.embeddings_freq)


def _along(callback: Foreign) -> Any:
    return _Along(callback) if _reads(callback) else callback


class _Along(callbacks.Callback):
    """Reads with the first worker's `TensorBoard`, and writes nothing."""

    def __init__(self, callback: Foreign) -> None:
        super().__init__()
        self._callback = callback

    def set_model(self, model: KerasModel) -> None:
        super().set_model(model)
        if self._callback.embeddings_freq:
            self._callback.set_model(model)  # which fails on all workers, if it does

    def on_epoch_end(self, epoch: int, logs: Leaf = None) -> None:
        callback, model = self._callback, internals.model_of(self)
        if callback.histogram_freq and epoch % callback.histogram_freq == 0:
            with read_by_all(model.variables, get_strategy().extended.mesh.peers):
                pass
        if callback.embeddings_freq and epoch % callback.embeddings_freq == 0:
            callback._log_embeddings(epoch)  # a save, which all workers make


def folder(original: Callable[..., Any], path: Leaf) -> None:
    """Makes a folder that was not there a moment ago; another worker may have made it since."""
    try:
        original(path)
    except FileExistsError:
        if not Path(path).is_dir():
            raise


def histograms(original: Callable[..., Any], callback: Foreign, *args: Leaf) -> None:
    """`TensorBoard._log_weights`, which the first worker alone calls."""
    with read_by_all(internals.model_of(callback).variables, get_strategy().extended.mesh.peers):
        original(callback, *args)


@contextmanager
def running(strategy: Strategy) -> Generator[None]:
    """Around `fit`, `evaluate` and `predict`, behind which all workers meet: what callbacks write is there then."""
    outermost, _state.running = not _state.running, True
    try:
        yield
    finally:
        _state.running = not outermost
    peers = strategy.extended.mesh.peers
    if outermost and peers is not None:
        peers.exchange(_FILES, "")


def once(strategy: Strategy, model: KerasModel, path: Leaf, write: Callable[[Any], Any]) -> Any:
    """Lets the first worker write a file or folder, and the others that come go on once it is there.

    If each worker has all values, the first one waits for none: it may be the only one that saves. Another one writes
    too if it does not see what the first has written, as its disk is one of its own, or its path, or if the first has
    gone on without a save. Islands of `ElasticStrategy` write each, but for one that catches up with the others.

    Args:
      strategy: whose workers they are.
      model: whose values are written.
      path: what is written.
      write: writes it, to the path that it is told.

    Returns:
      What `write` returns; None on a worker that has not written.

    Raises:
      CheckpointError: (on the other workers) the first one has failed to.
      ClusterError: workers hold parts of the values, and another one does not save.
    """
    mesh = strategy.extended.mesh
    peers, catches_up = mesh.peers, getattr(mesh, "catches_up", None)
    if catches_up is not None and not _state.writing:  # each of several islands writes the same, in one place
        return None if catches_up else _written(path, write)
    if peers is None or _state.writing:
        return write(path)
    optimizer = getattr(model, "optimizer", None)  # there is none before `compile`
    with read_by_all([*model.variables, *(optimizer.variables if optimizer else ())], peers):
        return _once(is_first(strategy), peers, path, write)


def _once(first: bool, peers: Foreign, path: Leaf, write: Callable[[Any], Any]) -> Any:
    if first:
        try:
            result = _written(path, write)
        except Exception as error:
            peers.announce(_FILES, json.dumps({"failure": f"{type(error).__name__}: {error}"}))
            raise
        peers.announce(_FILES, json.dumps({"mark": _mark(path)}))
        return result
    told = json.loads(peers.announced(_FILES, 0) or "{}")
    if "failure" in told:
        raise CheckpointError(
            f"worker 0 could not write a Keras model's file: {told['failure']}. HINT: see its own error."
        )
    mark = told.get("mark")
    return _written(path, write) if mark is None or mark != _mark(path) else None


def _written(path: Leaf, write: Callable[[Any], Any]) -> Any:
    """Writes, as part of which others of Keras's functions may.

    A file is there whole or not at all: another worker may look at it, or write it too.
    """
    whole = isinstance(path, (str, os.PathLike)) and str(path).endswith(_WHOLE) and "://" not in str(path)
    target = Path(path).absolute() if whole else None
    place = path if target is None else target.with_name(f".{os.getpid()}-{uuid.uuid4().hex[:8]}-{target.name}")
    _state.writing = True
    try:
        with internals.own_names():
            result = write(place)
        if target is not None:
            Path(place).replace(target)
        return result
    finally:
        _state.writing = False
        if target is not None:
            Path(place).unlink(missing_ok=True)


def _mark(path: Leaf) -> Any:
    """Marks that tell a file or folder from all others, whoever looks at it; None if there is none."""
    if "://" in str(path):
        return str(path)  # a store that all workers reach
    try:
        with suppress(IsADirectoryError):
            Path(path).open("rb").close()  # a network's file system looks for it again then
        found = Path(path).stat()
    except (OSError, TypeError):
        return None
    return [found.st_ino, found.st_size, found.st_mtime_ns]


class _State(threading.local):
    running = False
    """True within `fit` and its like."""
    writing = False
    """True while this worker writes what it alone writes."""


_state = _State()


def sharded(x: Nest, strategy: Strategy) -> Any:
    """A dataset whose files or records the workers can share out, as a distributed one; all else as it is."""
    if internals.is_of_tensorflow(x):
        return strategy.experimental_distribute_dataset(x)
    if internals.is_dataset(x):
        # On one device Keras goes through a dataset of Grain's in the same order in each epoch.
        return strategy.experimental_distribute_dataset(x).in_one_order()
    return x


def in_one_order(adapter: Foreign, strategy: Strategy) -> Iterator[Any]:
    """An adapter's batches, shuffled as on the first worker.

    Raises:
      InputError: a `PyDataset` that other threads shuffle.
    """
    iterator = adapter.get_jax_iterator()
    # Every worker reads the same arrays then, in the same order.
    if not internals.shuffles(adapter):
        return iterator
    threaded = internals.read_by_threads(adapter)
    if threaded is not None:
        raise InputError(
            f"{threaded!r} has workers={threaded.workers}, which would shuffle it in another order "
            "on each worker of the strategy. HINT: pass shuffle=False, and shuffle in on_epoch_end() by a seed."
        )
    return _seeded(iterator, _agreed_seed(strategy))


def _agreed_seed(strategy: Strategy) -> int:
    """A seed that the first worker draws."""
    peers = strategy.extended.mesh.peers
    seed = int(np.random.randint(1 << 31))
    return seed if peers is None else int(peers.exchange("order of Keras's examples", str(seed))[0])


def _seeded(iterator: Iterator[Any], seed: int) -> Iterator[Any]:
    """Runs an iterator on random numbers of its own, NumPy's and Python's."""
    # Of both, since a `PyDataset` of the user's may shuffle by either.
    inside = np.random.RandomState(seed).get_state(), random.Random(seed).getstate()
    while True:
        # Exchanged around each batch: the rest of the program draws as if nothing had been drawn here.
        outside = np.random.get_state(), random.getstate()
        np.random.set_state(inside[0])
        random.setstate(inside[1])
        try:
            batch = next(iterator, None)
        finally:
            inside = np.random.get_state(), random.getstate()
            np.random.set_state(outside[0])
            random.setstate(outside[1])
        if batch is None:
            return
        yield batch
