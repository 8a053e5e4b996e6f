"""Processes of a cluster as Ray actors: placed by resources, restarted by Ray when they end."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import ray
from ray import exceptions

from jaxtribute._src.addons.launcher.ray_cluster import QUIET, join
from jaxtribute._src.addons.messaging.errors import told
from jaxtribute._src.addons.messaging.transport import Endpoint, TaskSettings, own_host
from jaxtribute._src.addons.parameter_servers.engines.engine import Back, Failed, Lost, TaskMaker, stack_of
from jaxtribute._src.addons.parameter_servers.engines.ray_node import START_S, RayNode, resource_of
from jaxtribute.errors import ClusterError, DeadlineError
from jaxtribute.extending import Folder, Kinds, tune_allocator

_LOG = logging.getLogger(__name__)
_THREADS = 4
_ANSWER_S = 60
_STACK_S = 5
_TRIES = 3
"""Number of times that Ray is started: it gives itself 30 s, too few on a busy machine."""
_JOINS = "ENABLE_RAY_CLUSTER"
_STORE_BYTES = 100 << 20
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAXTRIBUTE_RAY_TASK": "1",
}


class TaskActor:
    """One task in a process of its own."""

    def __init__(
        self, make: TaskMaker, role: str, index: int, settings: TaskSettings, remote: bool, *arguments: object
    ) -> None:
        tune_allocator()  # arrays of one size come and go
        self._folder: Folder | None = None
        if not settings.seen_here():
            self._folder = Folder()  # this machine's own; tasks of the same user here find its sockets
            settings = replace(settings, folder=self._folder.path)
        host = own_host() if remote else None
        self._task, self._name = make(role, index, settings, host, *arguments), f"{role} {index}"
        self._thread = threading.Thread(target=self._run, name=f"jaxtribute-{role}-{index}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Kinds.TASK.during(self._task, self._name):
                self._task.run()
            if self._folder is not None:
                self._folder.close()
        except BaseException:  # noqa: BLE001
            # The process would live on, deaf: if it ends, Ray starts another, and those who wait are told.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def endpoint(self) -> Endpoint:
        """Address of the task."""
        return self._task.endpoint

    def pid(self) -> int:
        """The process."""
        return os.getpid()

    def define(self, key: int, blob: bytes) -> None:
        """Brings code."""
        self._task.define(key, blob)

    def take(self, closure: int) -> bytes | None:
        """Returns a worker's pickled result."""
        return self._task.take(closure)

    def stack(self) -> str:
        """Returns where the task's thread is."""
        return stack_of(self._thread)

    def serve(self) -> None:
        """Returns when the task has ended: whoever waits for it notices that."""
        self._thread.join()

    def stop(self) -> None:
        """Ends the task."""
        self._task.stop()


class RayEngine:
    """The tasks as Ray actors.

    Args:
      make: makes a task, in its process.
      settings: what all tasks are told.
      address: of the Ray cluster; None for a local one of this process, unless it is connected to one already.
      remote: whether tasks may be on other machines.
      node: the node of this process that holds the cluster, where each task is a `jd.Server` that offers its place.
    """

    def __init__(
        self,
        make: TaskMaker,
        settings: TaskSettings,
        address: str | None = None,
        *,
        remote: bool = False,
        node: RayNode | None = None,
    ) -> None:
        self._make, self._settings, self._remote, self._resources = make, settings, remote, node is not None
        self._node = node
        self._owns = not ray.is_initialized()
        if self._owns:
            connect(address, settings.folder, START_S if node is not None else 0.0)
        self.host = own_host() if remote else None
        self._actors: dict[tuple[str, int], Any] = {}
        self._arguments: dict[tuple[str, int], tuple[Any, ...]] = {}
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None

    def launch(self, role: str, index: int, *arguments: object) -> None:
        """Starts an actor."""
        options: dict[str, Any] = {
            # A local node of Ray offers one CPU, which all tasks share.
            "num_cpus": 0,
            "max_restarts": -1,
            "max_concurrency": _THREADS,
            "runtime_env": {"env_vars": _variables(role, index)},
        }
        if self._resources and role in ("ps", "worker"):
            options["resources"] = {resource_of(role, index): 1}
        actor: Any = ray.remote(TaskActor)
        self._actors[role, index] = actor.options(**options).remote(
            self._make, role, index, self._settings, self._remote, *arguments
        )

    def endpoint(self, role: str, index: int, timeout_s: float) -> Endpoint:
        """Address of a task, once it runs.

        Raises:
          DeadlineError: it does not run in time.
        """
        try:
            return ray.get(self._actors[role, index].endpoint.remote(), timeout=timeout_s)
        except exceptions.GetTimeoutError:
            raise DeadlineError(
                f"{role} {index} has not started within {timeout_s:.0f} s. HINT: does a node of the Ray cluster offer "
                f"what it needs{f' ({resource_of(role, index)})' if self._resources else ''}? See `ray status`."
            ) from None

    def define(self, role: str, index: int, key: int, blob: bytes) -> None:
        """Brings code to a task."""
        # A worker is not waited for: it may be computing.
        # It asks again for a function that has not come yet; a server has to have the code before the request that uses
        # it.
        brought = self._actors[role, index].define.remote(key, blob)
        if role != "worker":
            ray.get(brought, timeout=_ANSWER_S)

    def take(self, index: int, closure: int) -> bytes | None:
        """Returns a worker's pickled result; None if the worker is gone."""
        with contextlib.suppress(Exception):  # Ray's, or what is below Ray
            return ray.get(self._actors["worker", index].take.remote(closure), timeout=_ANSWER_S)
        return None

    def stack(self, index: int) -> str:
        """Returns where a worker's thread is; nothing if its process does not say."""
        with contextlib.suppress(Exception):
            return ray.get(self._actors["worker", index].stack.remote(), timeout=_STACK_S)
        return ""

    def renew(self, index: int) -> None:
        """Ends a worker's process; Ray starts another."""
        ray.kill(self._actors["worker", index], no_restart=False)

    def pid(self, role: str, index: int) -> int:
        """The process of a task; waits while it is being started."""
        while True:
            try:
                return ray.get(self._actors[role, index].pid.remote(), timeout=_ANSWER_S)
            except exceptions.ActorUnavailableError:
                self._stopping.wait(0.1)

    def watch(self, lost: Lost, back: Back, failed: Failed) -> None:
        """Begins to watch."""

        def run() -> None:
            try:
                self._watch(lost, back)
            except BaseException as error:  # noqa: BLE001 (whatever it is, those who wait are told)
                _LOG.exception("the thread ends that watches Ray's processes")
                failed(f"the processes that Ray runs cannot be watched any more: {told(error)}")

        self._watcher = threading.Thread(target=run, name="jaxtribute-watch", daemon=True)
        self._watcher.start()

    def _watch(self, lost: Lost, back: Back) -> None:
        # `serve` returns when the task has ended, and fails when its process has: in both cases the reference gets
        # ready.
        serving = {actor.serve.remote(): task for task, actor in self._actors.items()}
        returning: dict[Any, tuple[str, int]] = {}
        while not self._stopping.is_set():
            ready, _ = ray.wait([*serving, *returning], num_returns=1, timeout=0.2)
            for ref in ready:
                if self._stopping.is_set():
                    return
                task = serving.pop(ref, None)
                if task is not None:
                    # Told before anyone asks the new process: the closures of the old one must be given to others
                    # first.
                    lost(*task)
                    returning[self._ask(*task)] = task
                    continue
                task = returning.pop(ref)
                try:
                    endpoint = ray.get(ref)
                    # Watched before it is told of, as it may end while the coordinator activates it.
                    serve = self._actors[task].serve.remote()
                    back(*task, endpoint if isinstance(endpoint, Endpoint) else None)
                    serving[serve] = task
                except (exceptions.RayError, ClusterError, DeadlineError) as error:
                    _LOG.info("%s %d is not back yet: %s", *task, error)
                    self._stopping.wait(0.2)  # Ray is starting it again
                    returning[self._ask(*task)] = task

    def _ask(self, role: str, index: int) -> Any:
        actor = self._actors[role, index]
        return (actor.pid if role == "worker" else actor.endpoint).remote()

    def stop(self) -> None:
        """Ends all actors, and Ray if this object started it."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()
        if self._owns:
            ray.shutdown()
        if self._node is not None:
            self._node.stop()


def connect(address: str | None, folder: str, patience_s: float) -> None:
    """Joins a Ray cluster, or starts a small one on this machine that is gone with this process.

    Args:
      address: of the cluster; None to start one.
      folder: where one that is started keeps its files.
      patience_s: how long a cluster that is being started may be without a node on this machine, in seconds.

    Raises:
      ClusterError: there is no such cluster, or this machine is none of its nodes.
    """
    if address is not None:
        join(address, patience_s)
        return
    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": _STORE_BYTES, "include_dashboard": False, **QUIET}
    for tried in range(1, _TRIES + 1):
        try:
            with _on_loopback(), warnings.catch_warnings():
                # JAX warns of forks, and Ray's programs begin with one: they compute nothing before they are executed.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                ray.init(_temp_dir=f"{folder}/ray", **options)
        except Exception as error:  # Ray raises a bare one
            ray.shutdown()
            _end_half_started(error)
            if tried < _TRIES and "timed out" in str(error):
                _LOG.warning("Ray has not started within its own half a minute; it is started once more")
                continue
            raise ClusterError(
                f"Ray could not be started on this machine: {told(error)} HINT: is it too busy, or short of memory?"
            ) from error
        return


def _end_half_started(error: Exception) -> None:
    """Ends the processes of a Ray node that was given up while it started; nobody but the error's frames has it."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        kill = getattr(frame.f_locals.get("self"), "kill_all_processes", None)
        if kill is not None:
            with contextlib.suppress(Exception):  # what runs yet ends with this process
                kill(check_alive=False, allow_graceful=False)


@contextlib.contextmanager
def _on_loopback() -> Generator[None]:
    """Lets a Ray that starts listen on loopback only, unless the user's environment says otherwise.

    Ray does so where it takes a machine for one that joins no cluster, as it takes those with macOS or Windows. Asked
    for the address 127.0.0.1 it would choose another one, and listen on all.
    """
    constants = importlib.import_module("ray._private.ray_constants")
    before = getattr(constants, _JOINS, None)
    if before is None or os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        yield
        return
    setattr(constants, _JOINS, False)
    try:
        yield
    finally:
        setattr(constants, _JOINS, before)


def _variables(role: str, index: int) -> dict[str, str]:
    # Servers compute on the CPU; each process is one of several on its machine.
    variables = {**_ENVIRONMENT, "JAX_PLATFORMS": "cpu"} if role != "worker" else dict(_ENVIRONMENT)
    folder = next((one.run_folder for one in Kinds.TASK.observers if one.run_folder), "")
    if folder:
        variables |= {"JAXTRIBUTE_RUN": folder, "JAXTRIBUTE_RUN_TASK": f"{role} {index}"}
    return variables
