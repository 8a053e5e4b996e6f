"""The coordinator's side of a cluster: its variables and optimizers, its processes, what is saved and restored."""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import jax
import numpy as np
import optax

from jaxtribute import VariableAggregation, VariableSynchronization
from jaxtribute._src import jax_settings
from jaxtribute._src.addons.messaging.transport import Endpoint, Hub, TaskSettings, deadline, end_idle_threads
from jaxtribute._src.addons.messaging.wire import Header
from jaxtribute._src.addons.parameter_servers.engines.engine import Engine
from jaxtribute._src.addons.parameter_servers.partitioners import Partitioner
from jaxtribute._src.addons.parameter_servers.scheduling.closures import Numbers, Worker
from jaxtribute._src.addons.parameter_servers.scheduling.dispatcher import Dispatcher
from jaxtribute._src.addons.parameter_servers.scheduling.health import LOST, Health
from jaxtribute._src.addons.parameter_servers.scheduling.placement import Placement
from jaxtribute._src.addons.parameter_servers.server import saves
from jaxtribute._src.addons.parameter_servers.server.client import Client, Request, ServerLostError
from jaxtribute._src.addons.parameter_servers.server.layout import Layout, Shard
from jaxtribute._src.addons.parameter_servers.variables.access import Access
from jaxtribute._src.addons.parameter_servers.variables.optimizer import RemoteOptimizer, plan_parts
from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable, ShardInfo, VariableDescription
from jaxtribute.errors import ClusterError, DeadlineError
from jaxtribute.extending import Folder, Parameters, Slots
from jaxtribute.typing import DType, Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy
    from jaxtribute._src.addons.parameter_servers.scheduling.coordinator import ClusterCoordinator


class Cluster:
    """Servers and workers, and all that is on them.

    Args:
      engine: where their processes run.
      folder: for sockets; removed at the end.
      settings: what all processes are told.
      servers: how many parameter servers.
      workers: how many workers.
      partitioner: how variables are split.
      replicas: how many mirrors each server has, 0 or 1.
      staleness: how many of its own pushes a worker's values may be behind.
      timeout_s: how long a process may take to start or to answer.
    """

    def __init__(
        self,
        engine: Engine,
        folder: Folder,
        settings: TaskSettings,
        *,
        servers: int,
        workers: int,
        partitioner: Partitioner | None = None,
        replicas: int = 0,
        staleness: int = 0,
        timeout_s: float = 60.0,
    ) -> None:
        self.engine, self._folder, self.timeout_s = engine, folder, timeout_s
        self.servers, self.workers, self._mirrored = servers, workers, bool(replicas)
        self.numbers: Numbers = Numbers()
        self.definitions: itertools.count[int] = itertools.count(1)
        self._placement = Placement(servers, partitioner)
        self._code: dict[int, tuple[int, bytes]] = {}
        """For each optimizer and computed initial value: its code, and -1 or the only server that needs it."""
        self._health = Health()
        self._saved: Path | None = None
        self.epoch: int = 1
        self.coordinator: weakref.ref[ClusterCoordinator] | None = None
        """The strategy's one coordinator, if it has been asked for."""
        hub = Hub(settings.folder, settings.keys, engine.host)
        # All are started before the first is waited for: a process takes seconds to import what it needs.
        for index in range(servers):
            engine.launch("ps", index)
            if self._mirrored:
                engine.launch("mirror", index)
        for index in range(workers):
            engine.launch("worker", index, hub.endpoint, staleness, timeout_s)
        self.endpoints: list[Endpoint] = []
        self._mirrors: list[Endpoint] = []
        self.dispatcher = Dispatcher(
            hub,
            [_worker_of(engine, index) for index in range(workers)],
            self.numbers,
            lambda: (self.endpoints, self.epoch),
            timeout_s,
        )
        self.client: Client = Client(settings.keys, timeout_s, self._health.check)
        self.access: Access = Access(
            self.client, self._token, self._persist, lambda header: self.numbers.end(header["once"][0])
        )
        # A strategy that is dropped without `close` ends its processes, also at the end of the program.
        self._close = weakref.finalize(self, _close, self.dispatcher, self.client, engine, folder)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        for index in range(self.servers):
            self.endpoints.append(self.engine.endpoint("ps", index, self.timeout_s))
            if self._mirrored:
                self._mirrors.append(self.engine.endpoint("mirror", index, self.timeout_s))
        self.client.connect(self.endpoints, self.epoch)
        self._activate(range(self.servers))
        self.dispatcher.announce()
        self.engine.watch(self._on_lost, self._on_back, self.dispatcher.queue.fail)

    def close(self) -> None:
        """Ends all processes."""
        self._close()

    # Variables.

    def create(
        self, initial: Leaf, dtype: DType, check: Callable[[np.dtype[Any]], None], beside: Layout | None = None
    ) -> tuple[int, Layout]:
        """Makes a variable; returns its number and where it is.

        Args:
          initial: its first value, or what computes it.
          dtype: its element type; None for that of the value.
          check: is told the element type before anything is made.
          beside: where another variable is that it is to lie beside.
        """
        from jaxtribute.extending import initial_array

        by_part = _by_part(initial)
        if by_part is not None:
            shape = tuple(by_part.keywords["shape"])
            kind = np.dtype(jax.dtypes.canonicalize_dtype(dtype or by_part.keywords.get("dtype", "float32")))
            check(kind)
            layout = self._placement.layout(shape, kind, beside)
            for shard in layout.shards:
                self._initialize(shard, by_part, kind)
            self._placement.note(layout)
            return next(self._placement.keys), layout
        value = np.asarray(initial_array(initial, dtype))
        check(value.dtype)
        layout = self._placement.layout(value.shape, value.dtype, beside)
        requests: dict[int, Request] = {}
        for shard, piece in layout.pieces(value):
            header, arrays = requests.setdefault(shard.server, ({"t": "create", "keys": []}, []))
            header["keys"].append(shard.key)
            arrays.append(piece)
        self._ask(requests)
        self._placement.note(layout)
        return next(self._placement.keys), layout

    def _initialize(self, shard: Shard, function: functools.partial[Any], dtype: np.dtype[Any]) -> None:
        id_ = next(self._placement.keys)
        self.engine.define("ps", shard.server, id_, cloudpickle.dumps(jax_settings.AsHere(_PartOf(function))))
        header: Header = {"t": "initialize", "id": id_, "key": shard.key, "start": shard.start}
        self._ask({shard.server: ({**header, "shape": shard.shape, "dtype": dtype.name}, [])})

    def create_optimizer(
        self, transform: optax.GradientTransformation, nest: Nest, strategy: Strategy
    ) -> RemoteOptimizer:
        """Makes an optimizer's slots beside its variables."""
        variables, tree = jax.tree.flatten(nest, is_leaf=lambda leaf: isinstance(leaf, ServerVariable))
        state, belongings, parts = plan_parts(transform, variables, Parameters.of(variables, tree))
        leaves = jax.tree.leaves(state)
        shards: list[list[Shard]] = [[] for _ in leaves]
        owners: list[int | None] = [None] * len(leaves)
        # A structure cannot be sent, but a nest of that structure.
        numbers = tree.unflatten(range(len(variables)))
        key, code = next(self._placement.keys), cloudpickle.dumps((transform, numbers, jax_settings.current()))
        self._define(key, code)
        requests: dict[int, Request] = {}
        for part in parts:
            keys = [next(self._placement.keys) for _ in part.slots]
            header = {"t": "optimizer", "id": key, "params": [shard.key for _, shard in part.shards], "slots": keys}
            header |= {"places": [i for i, _ in part.shards], "leaves": [leaf for leaf, _ in part.slots]}
            requests[part.server] = {**header, "owners": [owner for _, owner in part.slots]}, []
            for slot, (leaf, owner), shape in zip(keys, part.slots, part.shapes, strict=True):
                beside = part.shards[owner][1] if owner is not None else Shard(0, part.server, 0, 0, shape)
                shards[leaf].append(replace(beside, key=slot, shape=shape))
                owners[leaf] = part.shards[owner][0] if owner is not None else None
        self._ask(requests)
        names = Slots.names(
            [one.path for one in belongings], [None if o is None else variables[o].name for o in owners]
        )
        slots: list[ServerVariable] = []
        for leaf, where, owner, name in zip(leaves, shards, owners, names, strict=True):
            # The parts came server by server; a layout lists its shards by rows.
            where.sort(key=lambda shard: shard.start)
            layout = Layout(tuple(leaf.shape), np.dtype(leaf.dtype), tuple(where), copies=owner is None)
            self._placement.note(layout)
            kinds = VariableSynchronization.ON_WRITE, VariableAggregation.NONE
            slots.append(
                ServerVariable.described(
                    VariableDescription(next(self._placement.keys), name, layout, False, *kinds), strategy
                )
            )
        made = Slots(tuple(slots), jax.tree.structure(state), tuple(owners), (None,) * len(slots))
        return RemoteOptimizer(key, variables, parts, made, transform, numbers)

    def _define(self, key: int, blob: bytes) -> None:
        self._code[key] = -1, blob
        for index in range(self.servers):
            self._bring(index, key, blob)

    def _bring(self, index: int, key: int, blob: bytes) -> None:
        self.engine.define("ps", index, key, blob)
        if self._mirrored:
            self.engine.define("mirror", index, key, blob)

    # Requests.

    def _ask(self, requests: dict[int, Request]) -> dict[int, tuple[Header, list[Any]]]:
        return self._persist(lambda: self.client.call(requests))

    def _token(self) -> Header:
        return {"once": [self.numbers.begin(), 0], "floor": self.numbers.floor()}

    def _persist(self, function: Callable[[], Any]) -> Any:
        """Calls a function that asks servers, again when one that failed is back with its state."""
        left = deadline(self.timeout_s)
        while True:
            try:
                return function()
            except ServerLostError as error:
                # Without a mirror the state is gone, and asking again would meet an empty server.
                if not self._mirrored or not left():
                    raise self._health.failure or error from None
                self._health.wait(left())

    # Failures.

    def _on_lost(self, role: str, index: int) -> None:
        """A process has ended."""
        if role == "worker":
            self.dispatcher.lost(index)
        elif role == "ps":
            self._health.lose(index)
            if self._mirrored:
                # With a mirror its work goes on when the successor has loaded it; meanwhile a closure would wait at a
                # worker.
                self.dispatcher.pause()
                return
            self._fail(ClusterError(LOST.format(index)))

    def _on_back(self, role: str, index: int, endpoint: Endpoint | None) -> None:
        """A process runs again, with nothing of what it had."""
        if role == "worker" or endpoint is None:
            self.dispatcher.back()
            return
        # The code of optimizers is in no state, and the state names it: it has to be there before the state is loaded.
        for key, (_, blob) in self._code.items():
            self.engine.define(role, index, key, blob)
        if role == "mirror":
            self._mirrors[index] = endpoint
            self._activate([index])
            return
        self.endpoints[index] = endpoint
        try:
            if self._mirrored:
                self.client.connect(self.endpoints, self.epoch)
                self._activate([index], recover=True)
        except ClusterError as error:
            self._fail(error)
            return
        self._health.regain(index)
        if self._mirrored:
            self.dispatcher.announce()

    def _activate(self, servers: Sequence[int], *, recover: bool = False) -> None:
        requests: dict[int, Request] = {}
        for index in servers:
            header: Header = {"t": "activate", "epoch": self.epoch, "recover": recover}
            if self._mirrored:
                header["mirror"] = self._mirrors[index].plain()
            requests[index] = header, []
        # The shared client's lock may be held by a thread that waits for just this server.
        own = self.client.another()
        own.connect(self.endpoints, self.epoch)
        try:
            own.call(requests)
        finally:
            own.close()

    # What is saved.

    def save(self, directory: str | PathLike[str] | None = None) -> Path:
        """Writes what all servers hold, each its own part; returns the folder."""
        # Absolute: servers may have other working directories.
        before = Path(self._folder.path) / "saved" if self._saved is None else self._saved.parent
        path = saves.next_folder(Path(directory).absolute() if directory else before)
        answers = self._ask(self._about_files("save", path))
        marks = {server: header["mark"] for server, (header, _) in answers.items()}
        saves.complete(path, saves.SaveDescription.of(self.numbers.last(), self._placement.shards, marks))
        self._saved = path
        return path

    def _about_files(self, kind: str, folder: Path) -> dict[int, Request]:
        """Asks each server to `save` or `restore` its own file of a folder."""
        requests: dict[int, Request] = {}
        for index in range(self.servers):
            requests[index] = {"t": kind, "path": str(saves.file_of(folder, index))}, []
        return requests

    def restore(self, path: str | PathLike[str] | None = None) -> None:
        """Brings back what was saved last, on all servers, and forgets what was running."""
        chosen = Path(path).absolute() if path else self._saved
        description = saves.described(chosen)
        assert chosen is not None
        description.check(chosen, self.servers, self._placement.shards)
        self.client.check_open(range(self.servers))
        if not self._health.wait(self.timeout_s):
            raise DeadlineError(
                f"parameter server {sorted(self._health.lost)} is not back after {self.timeout_s:.0f} s. "
                "HINT: does its node still run? See `ray status`."
            )
        self.epoch += 1
        self._health.failure = None
        try:
            self._activate(range(self.servers))
            self.client.connect(self.endpoints, self.epoch)
            self.client.call(self._about_files("restore", chosen))
        except BaseException as error:
            self._disown(chosen, error)
            raise
        self.numbers.skip(description.number)  # servers take no updates that they take for earlier ones
        if self._mirrored:
            self._activate(range(self.servers))
        self.dispatcher.queue.mend()
        self.dispatcher.announce()

    def _disown(self, path: Path, error: BaseException) -> None:
        """Sees to it that nobody goes on with servers some of which hold what was saved, and some what was before."""
        failure = ClusterError(
            f"the servers hold parts of different states, since the restore of {path} has ended with "
            f"{type(error).__name__}: {error}. HINT: call coordinator.restore() once more."
        )
        self.epoch += 1  # of which no server knows: each answers that it has lost its state
        self.client.connect(self.endpoints, self.epoch)
        self._fail(failure)

    def _fail(self, failure: ClusterError) -> None:
        """Ends what runs and what comes, until a restore."""
        self._health.failure = failure
        self.dispatcher.abort(failure)


class _PartOf:
    """Computes one shard's first value, on its server."""

    def __init__(self, function: functools.partial[Any]) -> None:
        self._function = function

    def __call__(self, shape: tuple[int, ...], start: int) -> Any:
        offset = (start, *(0 for _ in shape[1:]))
        return self._function(shape=shape, shard_info=ShardInfo(shape, offset))


def _by_part(initial: object) -> functools.partial[Any] | None:
    """`initial` if it can compute a part of its value: a partial function of `shape` that takes `shard_info`."""
    if not isinstance(initial, functools.partial) or "shape" not in initial.keywords:
        return None
    takes = inspect.signature(initial.func).parameters
    return initial if "shard_info" in takes else None


def _worker_of(engine: Engine, index: int) -> Worker:
    """A worker of an engine, as the dispatcher deals with it."""
    return Worker(
        index,
        functools.partial(engine.define, "worker", index),
        functools.partial(engine.take, index),
        functools.partial(engine.stack, index),
        functools.partial(engine.renew, index),
    )


def _close(dispatcher: Dispatcher, client: Client, engine: Engine, folder: Folder) -> None:
    dispatcher.close()
    client.close()
    engine.stop()
    folder.close()
    end_idle_threads()
