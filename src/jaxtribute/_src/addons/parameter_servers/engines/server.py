"""`Server`: this process as a task of a cluster, under the name that TensorFlow's programs give it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from jaxtribute import ClusterSpec
from jaxtribute.cluster_resolver import SimpleClusterResolver
from jaxtribute.errors import ClusterError, ClusterSpecError
from jaxtribute.extending import Cluster, Roster, settings

if TYPE_CHECKING:
    from jaxtribute.compat.tf.train import ClusterDef

Tasks = Sequence[str] | Mapping[int, str]
_JOINED = "jaxtribute/server/joined"
_POLL_S = 0.1

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ServerDef:
    """A task of a cluster, as plain data. Source: `tf.train.ServerDef`.

    Attributes:
      cluster: the cluster.
      job_name: the task's job.
      task_index: its index there.
      protocol: what stands before the address in `target`.
      default_session_config: kept as it was given; there are no sessions.
    """

    cluster: ClusterDef
    job_name: str
    task_index: int
    protocol: str = "grpc"
    default_session_config: Any = None


class Server:
    """This process as a task of a cluster.

    The chief and the workers of a cluster start its coordination service, or join it, as
    `MultiWorkerMirroredStrategy` does; `start` returns when all have come. Other jobs, and a task that is alone,
    need none. In a cluster with parameter servers (job `ps`), `join` offers this machine to the chief, whose
    `ParameterServerStrategy` runs the task on it, and returns when the chief has ended. No session can connect to a
    server, and it runs nothing by itself.

    Args:
      server_or_cluster_def: the cluster: a `jd.ClusterSpec`, what makes one, or a `ServerDef`.
      job_name: this process's job; it may be left out where the cluster has one job.
      task_index: its index there; it may be left out where the job has one task.
      protocol: what stands before the address in `target`; `"grpc"` by default.
      config: kept in `server_def`.
      start: whether to start at once.

    Raises:
      ArgumentTypeError: `server_or_cluster_def` describes no cluster, or another argument is of a wrong type.
      ClusterSpecError: the job or the task is left out and not clear, or the cluster does not have it.
      ConfigError: as from `start`; `DeadlineError` and `ClusterError` too.

    Examples:
      >>> server = jd.Server({"worker": ["localhost:2222"]}, task_index=0)  # alone, so it starts no service
      >>> server.target
      'grpc://localhost:2222'

    Source: `tf.distribute.Server`.
    """

    def __init__(
        self,
        server_or_cluster_def: ServerDef | ClusterSpec | ClusterDef | Mapping[str, Tasks],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        settings.text("job_name", job_name, optional=True)
        settings.whole("task_index", task_index, optional=True)
        settings.text("protocol", protocol, optional=True)
        settings.flag("start", start)
        self._def = _make_def(server_or_cluster_def, job_name, task_index, protocol, config)
        self._spec = ClusterSpec(self._def.cluster)
        self._address = self._spec.task_address(self._def.job_name, self._def.task_index)
        self._wait: Callable[[], None] | None = None
        if start:
            self.start()

    def start(self) -> None:
        """Joins the cluster; once it has, it does nothing.

        Raises:
          ConfigError: JAX has started already, or this process is in another cluster.
          DeadlineError: other workers did not come in time; it names them.
          ClusterError: the service could not be started.
        """
        if self._wait is None:
            self._wait = _start(self._spec, self._def)

    def join(self) -> None:
        """Waits until every other worker has ended, or joins too; TensorFlow waits for ever.

        Raises:
          ClusterError: the server was not started, or a worker failed.
        """
        if self._wait is None:
            raise ClusterError(f"the server {self.target!r} was not started. HINT: call start() before join().")
        self._wait()

    @property
    def target(self) -> str:
        """The task's address, as `"grpc://host:port"`."""
        return f"{self._def.protocol}://{self._address}"

    @property
    def server_def(self) -> ServerDef:
        """The task and its cluster, as plain data."""
        return self._def

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """The only task of a cluster on this machine. It listens nowhere."""
        return Server({"localhost": ["localhost:0"]}, protocol="grpc", config=config, start=start)


def _make_def(
    described: ServerDef | ClusterSpec | ClusterDef | Mapping[str, Tasks],
    job_name: str | None,
    task_index: int | None,
    protocol: str | None,
    config: Any,
) -> ServerDef:
    if isinstance(described, ServerDef):
        # What is passed beside a definition goes before what stands in it.
        given = {
            "job_name": job_name,
            "task_index": task_index,
            "protocol": protocol,
            "default_session_config": config,
        }
        return replace(described, **{name: value for name, value in given.items() if value is not None})
    spec = ClusterSpec(described)
    job = _only("job_name", spec.jobs, f"the jobs {spec.jobs}") if job_name is None else job_name
    if task_index is None:
        indices = spec.task_indices(job)
        task_index = _only("task_index", indices, f"the tasks {indices} of job {job!r}")
    return ServerDef(spec.as_cluster_def(), job, task_index, protocol or "grpc", config)


def _only(argument: str, choices: list[_T], shown: str) -> _T:
    if len(choices) != 1:
        raise ClusterSpecError(f"the cluster has {shown}, and {argument} does not say which this is. HINT: pass it.")
    return choices[0]


def _start(spec: ClusterSpec, task: ServerDef) -> Callable[[], None]:
    """Starts the task, and returns what `join` calls."""
    if "ps" in spec.jobs:
        from jaxtribute._src.addons.parameter_servers.engines.ray_node import task_of_cluster  # needs Ray and ZeroMQ

        return task_of_cluster(spec, task.job_name, task.task_index)
    members = sum(spec.num_tasks(job) for job in Roster.JOBS if job in spec.jobs)
    # Parameter servers aside, a task that trains with nobody has nothing to join.
    if task.job_name not in Roster.JOBS or members == 1:
        return lambda: None
    cluster = Cluster.join(SimpleClusterResolver(spec, task_type=task.job_name, task_id=task.task_index))
    return lambda: None if cluster is None else _join(cluster)


def _join(cluster: Cluster) -> None:
    # Told before the wait: workers that join each other would otherwise wait for ever.
    cluster.set(f"{_JOINED}/{cluster.rank}", "")
    others = set(range(cluster.workers)) - {cluster.rank}
    while True:
        cluster.check()
        if others <= cluster.by_rank(_JOINED).keys() | cluster.watch.left.keys():
            return
        time.sleep(_POLL_S)
