"""`ClusterCoordinator`: schedules functions on the workers of a cluster."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import jax
import numpy as np

from jaxtribute import Variable
from jaxtribute._src import jax_settings
from jaxtribute._src.addons.messaging.encoding import NotPlainError, encode
from jaxtribute._src.addons.messaging.errors import name_of, told
from jaxtribute._src.addons.parameter_servers.scheduling import pickling
from jaxtribute._src.addons.parameter_servers.scheduling.closures import MAX_ATTEMPTS, Definition, checked_timeout
from jaxtribute._src.addons.parameter_servers.scheduling.per_worker import (
    PerWorkerDataset,
    PerWorkerValues,
    check_dataset_fn,
)
from jaxtribute._src.addons.parameter_servers.scheduling.remote_value import RemoteValue
from jaxtribute._src.addons.parameter_servers.server import saves
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.extending import Kinds
from jaxtribute.typing import Function, Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy
    from jaxtribute._src.addons.parameter_servers.scheduling.cluster import Cluster

_DEFINITIONS = 1024
_making = threading.Lock()
"""Held while a strategy's coordinator is made: two threads may ask for it."""


class ClusterCoordinator:
    """Runs functions on the workers of a `jd.ParameterServerStrategy`, each on any that is free.

    A function whose worker dies runs again on another one; what it had sent to parameter servers is not applied twice.
    The first error that a function raises is raised by the next `schedule` or `join`, and functions that have not
    started by then do not run. After that the coordinator can be used again.

    A strategy has one coordinator: `ClusterCoordinator(strategy)` returns the one that there is.

    Args:
      strategy: the strategy.
      max_attempts: how many processes may end while they run a function, by `os._exit`, a crash or too little memory,
        before the function fails instead of running again; by default 3, or what the strategy's coordinator has.

    Raises:
      ArgumentTypeError: another strategy.
      ArgumentError: `max_attempts` is no positive number, or not that of the strategy's coordinator.

    Source: `tf.distribute.coordinator.ClusterCoordinator`.
    """

    _strategy: Strategy

    def __new__(cls, strategy: Strategy, *, max_attempts: int | None = None) -> ClusterCoordinator:
        """Returns the strategy's coordinator, made at the first call."""
        if max_attempts is not None and (type(max_attempts) is not int or max_attempts < 1):
            raise ArgumentError(f"max_attempts is {max_attempts!r}. HINT: pass 1 or more.")
        cluster = _cluster_of(strategy)
        with _making:
            made = cluster.coordinator() if cluster.coordinator is not None else None
            if made is None:
                made = super().__new__(cls)
                made._begin(strategy, cluster, max_attempts or MAX_ATTEMPTS)
                # Weak, as the coordinator holds the strategy: the two would else wait for Python to look for circles.
                cluster.coordinator = weakref.ref(made)
        if max_attempts not in (None, made._max_attempts):
            raise ArgumentError(
                f"max_attempts is {max_attempts}, and the strategy's coordinator was made with {made._max_attempts}. "
                "HINT: say it where the coordinator is made first."
            )
        return made

    def __init__(self, strategy: Strategy, *, max_attempts: int | None = None) -> None:
        del strategy, max_attempts  # Python calls it again for a coordinator that there is: it has begun

    def _begin(self, strategy: Strategy, cluster: Cluster, max_attempts: int) -> None:
        self._strategy, self._cluster, self._max_attempts = strategy, cluster, max_attempts
        self._queue = cluster.dispatcher.queue
        self._definitions: OrderedDict[Any, tuple[Definition, Any, pickling.Watch]] = OrderedDict()
        self._values: set[int] = set()
        """Numbers of the workers' own values that were passed."""
        self._unused: deque[int] = deque()
        """Those of them that are garbage here."""

    def __reduce__(self) -> Any:
        return pickling.CoordinatorElsewhere, ()

    @property
    def strategy(self) -> Strategy:
        """The strategy. Source: `tf.distribute.coordinator.ClusterCoordinator.strategy`."""
        return self._strategy

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self._cluster.workers

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Nest] | None = None,
        kwargs: Mapping[str, Nest] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> RemoteValue:
        """Runs a function on a worker, some time, and returns at once.

        A `jd.function` is compiled on the worker: one request to each server brings the variables that it reads, one
        takes its updates. Any other function runs as Python there. What it closes over is copied to the worker when it
        is first scheduled, but for variables, optimizers, the strategy and other compiled functions.

        Args:
          fn: the function.
          args: its positional arguments, a tuple or list: arrays, numbers, strings, nests of them, and iterators of
            `create_per_worker_dataset`. JAX's arrays arrive as JAX's, NumPy's as NumPy's. Anything else is copied to
            the worker when it is first passed.
          kwargs: its keyword arguments.
          timeout_s: how long it may run, in seconds; by default as long as it takes, with a warning that says where it
            is after a minute, and whenever its age has doubled. One that takes longer fails, its worker's process is
            ended, and another takes the worker's place; what it has sent to parameter servers stays.

        Returns:
          What will be its result.

        Raises:
          ArgumentTypeError: `fn` is no function, or something that cannot be on a worker.
          ArgumentError: `timeout_s` is no positive number.
          Exception: what an earlier function raised.

        Source: `tf.distribute.coordinator.ClusterCoordinator.schedule`.
        """
        if not callable(fn):
            raise ArgumentTypeError(f"schedule was given {fn!r} of type {type(fn).__name__}. HINT: pass a function.")
        timeout_s = checked_timeout(timeout_s)
        if Kinds.SCHEDULE.due():
            with Kinds.SCHEDULE.during(self, getattr(fn, "__name__", "function"), fn, args or (), kwargs or {}):
                pass
        leaves, tree = _flattened(args, kwargs)
        arrays: list[Any] = []
        plain: list[Any] = []
        constants: list[Any] = []
        for leaf in leaves:
            try:
                if isinstance(leaf, Variable):
                    raise NotPlainError
                # What is plain travels with each call; all else belongs to the definition, and travels once for each
                # worker.
                plain.append(encode(_fetched(leaf), arrays))
                constants.append(_PLACE)
            except NotPlainError:
                constants.append(leaf)
        arrays = list(map(_unchanging, arrays))
        definition = self._definition(fn, tree, constants)
        return self._queue.put(definition, plain, arrays, timeout_s, self._max_attempts)

    def _definition(
        self, fn: Callable[..., Any], tree: jax.tree_util.PyTreeDef, constants: Sequence[Any]
    ) -> Definition:
        # By identity: comparing constants may be costly, or be the user's code; the same objects are passed again and
        # again.
        self._let_go()
        settings = jax_settings.current()
        key = fn, tree, tuple(self._key_of(constant) for constant in constants), *settings.values()
        try:
            if any(isinstance(constant, np.ndarray) for constant in constants):
                raise TypeError  # such as a masked array: its elements may be others than the last time
            found = self._definitions.get(key)
        except TypeError:
            key, found = object(), None  # a function that cannot be hashed travels each time
        watch = pickling.Watch() if found is None else found[2]
        if found is not None and watch.changed:
            # A layer was frozen, or rebuilt: what workers have is as it was before.
            self._cluster.dispatcher.forget(found[0])
            found, watch = None, pickling.Watch(watch.number + 1)
        if found is not None:
            self._definitions.move_to_end(key)
        else:
            places = [i for i, constant in enumerate(constants) if constant is _PLACE]
            arguments = _Arguments(tree, [None if c is _PLACE else c for c in constants], places)
            blob = cloudpickle.dumps((settings, pickling.dumps((fn, arguments), watch=watch)))
            # The constants are kept, so that their ids stay theirs. Values of each worker are known by number, and go
            # when the user lets go of them.
            kept = [constant for constant in constants if not isinstance(constant, PerWorkerValues)]
            numbers = frozenset(constant.number for constant in constants if isinstance(constant, PerWorkerValues))
            definition = Definition(next(self._cluster.definitions), blob, name_of(fn), values=numbers)
            found = self._definitions[key] = definition, kept, watch
            if len(self._definitions) > _DEFINITIONS:
                self._cluster.dispatcher.forget(self._definitions.popitem(last=False)[1][0])
        return found[0]

    def _key_of(self, constant: object) -> object:
        """Returns what a constant of a call is known by."""
        if not isinstance(constant, PerWorkerValues):
            return id(constant)
        if constant.number not in self._values:
            self._values.add(constant.number)
            # Garbage is collected anywhere, with any lock held: this notes the number, and no more.
            weakref.finalize(constant, self._unused.append, constant.number).atexit = False
        return PerWorkerValues, constant.number

    def _let_go(self) -> None:
        """Lets workers drop their own values, such as iterators of past epochs, that nobody can pass any more."""
        while self._unused:
            number = self._unused.popleft()
            self._values.discard(number)
            keys = [key for key, (definition, _, _) in self._definitions.items() if number in definition.values]
            definitions = [self._definitions.pop(key)[0] for key in keys]
            self._cluster.dispatcher.forget(*definitions, value=number)

    def join(self) -> None:
        """Waits until all scheduled functions have ended.

        Raises:
          Exception: what the first function that failed raised; those that had not started did not run.
          ClusterError: a parameter server is lost, or there is no worker.

        Source: `tf.distribute.coordinator.ClusterCoordinator.join`.
        """
        self._queue.join()

    def done(self) -> bool:
        """Returns whether all scheduled functions have ended.

        Raises:
          Exception: what the first function that failed raised.

        Source: `tf.distribute.coordinator.ClusterCoordinator.done`.
        """
        return self._queue.done()

    def fetch(self, val: Nest) -> Any:
        """Waits for the results in a nest of `RemoteValue`s and returns the nest with them.

        Source: `tf.distribute.coordinator.ClusterCoordinator.fetch`.
        """
        return jax.tree.map(lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, val)

    def create_per_worker_dataset(self, dataset_fn: Function | Iterable[Nest]) -> PerWorkerDataset:
        """Makes a dataset on each worker, when a function there first uses it.

        Args:
          dataset_fn: makes the dataset; called on each worker, and again on one that was restarted. A dataset itself
            is copied to each worker.

        Returns:
          What `iter` makes an iterator of, to be passed to `schedule`.

        Source: `tf.distribute.coordinator.ClusterCoordinator.create_per_worker_dataset`.
        """
        return PerWorkerDataset(check_dataset_fn(dataset_fn))

    def save(self, directory: str | PathLike[str] | None = None) -> Path:
        """Keeps what all servers hold, for `restore`: variables, slots, and which functions have been applied.

        Each server writes its own part. Updates of functions that have ended are in it; `join` first, so that of all
        others none is. The last two are kept.

        Args:
          directory: where, on a disk that all servers see; by default where it was the last time, at first a folder
            that goes with the strategy.

        Returns:
          The folder written.
        """
        return self._cluster.save(directory)

    @staticmethod
    def latest_save(directory: str | PathLike[str]) -> Path | None:
        """Finds what was saved last in a directory, by this program or by an earlier run of it; None if nothing was.

        The files are read and compared with their checksums. Of a save that is damaged a warning says so, and the one
        before it is looked at.

        Args:
          directory: as given to `save`.

        Returns:
          A folder for `restore`.

        Raises:
          ClusterError: there are saves, and all are damaged.
        """
        return saves.latest(Path(directory))

    def restore(self, path: str | PathLike[str] | None = None) -> None:
        """Goes on from what was saved, after a parameter server was lost, or in a program that was started again.

        Waits for the new server. All servers go back to that state, so that what they hold fits together; functions
        that were running are forgotten.

        Args:
          path: a folder that `save` returned, by default the last of this coordinator. Of an earlier run, it takes as
            many servers, and the same variables and optimizers made in the same order.

        Raises:
          ClusterError: nothing was saved, or what was saved is damaged, or of other servers, variables or optimizers;
            nothing has changed then. Where a server fails while it loads, none can be used until another `restore`.
          DeadlineError: the server does not come back.
        """
        self._cluster.restore(path)


def _cluster_of(strategy: Strategy) -> Cluster:
    """Returns the cluster of a strategy that has one here."""
    from jaxtribute._src.addons.parameter_servers.scheduling.cluster import Cluster

    cluster = getattr(getattr(strategy, "extended", None), "cluster", None)
    if not isinstance(cluster, Cluster):
        raise ArgumentTypeError(f"ClusterCoordinator was given {strategy!r}. HINT: pass a jd.ParameterServerStrategy.")
    return cluster


class _Arguments:
    """Puts a call's arguments together: those that travel each time, and the constants."""

    def __init__(self, tree: jax.tree_util.PyTreeDef, constants: list[Any], places: list[int]) -> None:
        self.tree, self.constants, self.places = tree, constants, places

    def __call__(self, values: Sequence[Any]) -> Any:
        leaves = list(self.constants)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        return self.tree.unflatten(leaves)


def _flattened(args: Nest, kwargs: Nest) -> tuple[list[Any], Any]:
    """Returns the leaves of the arguments of a call, and how they are put together.

    Raises:
      ArgumentTypeError: they are no arguments of a call.
    """
    if args is not None and not isinstance(args, (tuple, list)):
        raise ArgumentTypeError(f"args is of type {type(args).__name__}. HINT: pass a tuple or list: args=(x,).")
    named = kwargs is None or (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs))
    if not named:
        raise ArgumentTypeError(
            f"kwargs is of type {type(kwargs).__name__}. HINT: pass a dictionary with names as keys: kwargs={{'x': 1}}."
        )
    try:
        return jax.tree.flatten((tuple(args or ()), dict(kwargs or {})), is_leaf=_is_whole)
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentTypeError(
            f"the arguments cannot be taken apart: {told(error)}. "
            "HINT: pass nests that do not hold themselves, with keys of one type in a dictionary."
        ) from error


_PLACE = object()


def _unchanging(array: Leaf) -> Any:
    """An array as it is now."""
    # Copied where the caller could write into it before it has left.
    return np.array(array) if isinstance(array, np.ndarray) and array.flags.writeable else array


def _is_whole(value: object) -> bool:
    # JAX will refuse iterators among leaves; those of each worker are references, any other does not travel.
    return isinstance(value, (Variable, Iterator))


def _fetched(value: Leaf) -> Any:
    return value.fetch() if isinstance(value, RemoteValue) else value
