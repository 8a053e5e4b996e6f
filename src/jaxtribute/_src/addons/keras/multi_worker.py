"""Keras on several workers: who shows and writes what, and one order of the examples for all."""

from __future__ import annotations

import inspect
import json
import random
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import callbacks

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
        kept = [one for one in listed if not isinstance(one, _REPORTERS)]
        for one in kept:
            if isinstance(one, callbacks.ModelCheckpoint):
                one.verbose = 0
        bound.arguments["callbacks"] = kept
    return bound.args[1:], bound.kwargs


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


def once(strategy: Strategy, model: KerasModel, path: Leaf, write: Callable[[], Any]) -> Any:
    """Lets the first worker write a file or folder, and the others go on once it is there.

    A worker that does not see it then, as its disk is one of its own, or its path, writes it too.

    Args:
      strategy: whose workers they are.
      model: whose values are written.
      path: what is written.
      write: writes it.

    Returns:
      What `write` returns; None on a worker that has not written.

    Raises:
      CheckpointError: (on the other workers) the first one has failed to.
    """
    peers = strategy.extended.mesh.peers
    if peers is None or _state.writing:
        return write()
    optimizer = getattr(model, "optimizer", None)  # there is none before `compile`
    with read_by_all([*model.variables, *(optimizer.variables if optimizer else ())]):
        return _once(is_first(strategy), peers, path, write)


def _once(first: bool, peers: Foreign, path: Leaf, write: Callable[[], Any]) -> Any:
    result = None
    if first:
        try:
            result = _written(write)
        except Exception as error:
            peers.exchange(_FILES, json.dumps({"failure": f"{type(error).__name__}: {error}"}))
            raise
    told = json.loads(peers.exchange(_FILES, json.dumps({"mark": _mark(path) if first else None}))[0])
    if "failure" in told:
        raise CheckpointError(
            f"worker 0 could not write a Keras model's file: {told['failure']}. HINT: see its own error."
        )
    if not first and (told["mark"] is None or told["mark"] != _mark(path)):
        return _written(write)
    return result


def _written(write: Callable[[], Any]) -> Any:
    """Writes, as part of which others of Keras's functions may."""
    _state.writing = True
    try:
        with internals.own_names():
            return write()
    finally:
        _state.writing = False


def _mark(path: Leaf) -> Any:
    """Marks that tell a file or folder from all others, whoever looks at it; None if there is none."""
    if "://" in str(path):
        return str(path)  # a store that all workers reach
    try:
        with suppress(IsADirectoryError):
            Path(path).open("rb").close()  # a network's file system looks for it anew then
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
