"""`ClusterSpec`: which tasks a cluster has, and at which addresses."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, SupportsIndex

from jaxtribute._src.core import settings
from jaxtribute._src.core.environment import shown, whole_number
from jaxtribute.errors import ArgumentTypeError, ClusterSpecError

if TYPE_CHECKING:
    from jaxtribute._src.core.types import Foreign

Tasks = Sequence[str] | Mapping[int, str]
_FORMS = "{'worker': ['host0:2222', 'host1:2222'], 'ps': {3: 'host2:2222'}}"


@dataclass(frozen=True, slots=True)
class JobDef:
    """The tasks of a job by their index. Source: `tf.train.JobDef`."""

    name: str
    tasks: Mapping[int, str] = field(default_factory=dict[int, str])


@dataclass(frozen=True, slots=True)
class ClusterDef:
    """A cluster as plain data, its jobs in order of their names. Source: `tf.train.ClusterDef`."""

    job: tuple[JobDef, ...] = ()


class _LikeClusterDef(Protocol):
    """A `ClusterDef`, ours or TensorFlow's protocol buffer."""

    @property
    def job(self) -> Iterable[Any]: ...


class ClusterSpec:
    """The tasks of a cluster: for each job, such as `worker` or `ps`, addresses by task index.

    Args:
      cluster: for each job a list of addresses (`"host:port"`), or a mapping of task indices to addresses where only
        some tasks are known; or another `ClusterSpec`, or what `as_cluster_def` returned.

    Raises:
      ArgumentTypeError: `cluster` is nothing of that, or a name or an address is no string.
      ClusterSpecError: two tasks have one address, or an index is negative or no integer. TensorFlow accepts both.

    Examples:
      >>> cluster = jd.ClusterSpec({"worker": ["a:2222", "b:2222"], "ps": ["c:2222"]})
      >>> cluster.num_tasks("worker"), cluster.task_address("ps", 0)
      (2, 'c:2222')

    Source: `tf.train.ClusterSpec`.
    """

    def __init__(self, cluster: ClusterSpec | _LikeClusterDef | Mapping[str, Tasks]) -> None:
        self._jobs: dict[str, dict[int, str]] = {}
        for name, tasks in _jobs_of(cluster):
            job = _text(name, "the name of a job")
            self._jobs[job] = dict(sorted(_tasks_of(job, tasks).items()))
        self._check_unique()

    def _check_unique(self) -> None:
        owners: dict[str, str] = {}
        for job, tasks in self._jobs.items():
            for index, address in tasks.items():
                owner = f"{job} {index}"
                # The system chooses the port of an address that ends in ":0".
                if address in owners and not address.endswith(":0"):
                    raise ClusterSpecError(
                        f"{owners[address]} and {owner} have the same address {address!r}, and each task needs its "
                        "own. HINT: give tasks of one machine different ports."
                    )
                owners[address] = owner

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """The number of tasks of a job.

        Raises:
          ClusterSpecError: there is no such job.
        """
        return len(self._tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The indices of a job's tasks, in order.

        Raises:
          ClusterSpecError: there is no such job.
        """
        return list(self._tasks(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of a task.

        Raises:
          ClusterSpecError: there is no such job, or no such task in it.
        """
        tasks = self._tasks(job_name)
        if task_index not in tasks:
            raise ClusterSpecError(
                f"there is no task {task_index!r} in job {job_name!r}, whose tasks are {list(tasks)}. "
                "HINT: tasks are counted from 0, and every process has the same cluster in its settings."
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job by task index; None at indices that are not known.

        Raises:
          ClusterSpecError: there is no such job.
        """
        tasks = self._tasks(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """The addresses of each job: a list where all indices from 0 on are there, otherwise a dict by index."""
        jobs: dict[str, list[str] | dict[int, str]] = {}
        for job, tasks in self._jobs.items():
            # Only without gaps do the places in a list tell the indices.
            all_known = bool(tasks) and max(tasks) + 1 == len(tasks)
            jobs[job] = list(tasks.values()) if all_known else dict(tasks)
        return jobs

    def as_cluster_def(self) -> ClusterDef:
        """The cluster as plain data, the jobs in order of their names. TensorFlow returns a protocol buffer."""
        return ClusterDef(tuple(JobDef(job, dict(tasks)) for job, tasks in sorted(self._jobs.items())))

    def _tasks(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            raise ClusterSpecError(
                f"there is no job {job_name!r} in the cluster, whose jobs are {self.jobs}. "
                "HINT: the name of the job stands in the cluster's description and in the task's."
            )
        return self._jobs[job_name]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            try:
                other = ClusterSpec(other)
            except (ArgumentTypeError, ClusterSpecError):
                return False
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # it equals dicts, which have none

    def __repr__(self) -> str:
        jobs = ", ".join(f"{job!r}: {tasks!r}" for job, tasks in sorted(self.as_dict().items()))
        return f"ClusterSpec({{{jobs}}})"


def _jobs_of(cluster: Foreign) -> Iterable[tuple[Any, Any]]:
    if isinstance(cluster, ClusterSpec):
        return cluster.as_dict().items()
    if isinstance(cluster, Mapping):
        return cluster.items()
    if hasattr(cluster, "job"):
        return [(job.name, dict(job.tasks)) for job in cluster.job]
    raise ArgumentTypeError(
        f"a cluster is described by a dict of jobs, not by {shown(cluster)} of type {type(cluster).__name__}. "
        f"HINT: write jd.ClusterSpec({_FORMS})."
    )


def _tasks_of(job: str, tasks: object) -> dict[int, str]:
    if isinstance(tasks, (list, tuple)):
        tasks = dict(enumerate(tasks))
    if not isinstance(tasks, Mapping):
        raise ArgumentTypeError(
            f"the tasks of job {job!r} are a list of addresses or a dict of them by index, not {shown(tasks)} of type "
            f"{type(tasks).__name__}. HINT: write jd.ClusterSpec({_FORMS})."
        )
    addresses: dict[int, str] = {}
    for key, address in tasks.items():
        index = _index(job, key)
        if index in addresses:
            raise ClusterSpecError(
                f"job {job!r} has two tasks {index}: {addresses[index]!r} and {address!r}. HINT: keep one."
            )
        addresses[index] = _text(address, f"the address of {job} {index}")
    return addresses


def task_number(value: object) -> int | None:
    """The number of a task: a whole number from 0 on, or one in digits, as JSON has keys; None for anything else.

    Args:
      value: what a cluster spec says.
    """
    if isinstance(value, str):
        return whole_number(value)
    # True and False are ints of Python's, and no numbers of tasks.
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    number = operator.index(value)
    return number if number >= 0 else None


def _index(job: str, key: object) -> int:
    index = task_number(key)
    if index is None:
        raise ClusterSpecError(
            f"{shown(key)} is no index of a task of job {job!r}: expected a whole number from 0 on. HINT: write "
            f"{_FORMS}."
        )
    return index


def _text(value: object, what: str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"{what} is a string, not {shown(value)} of type {type(value).__name__}. HINT: write "
            f"jd.ClusterSpec({_FORMS})."
        )
    return value


class ClusterDeviceFilters:
    """Filter of the devices of other tasks that each task of a cluster may see.

    It is kept for programs that set it: a process of JAX never places anything on another process's devices by itself,
    so there is nothing to filter.

    Examples:
      >>> filters = jd.ClusterDeviceFilters()
      >>> filters.set_device_filters("worker", 0, ["/job:ps"])
      >>> filters.as_dict()
      {'worker': {0: ['/job:ps']}}

    Source: `tf.config.experimental.ClusterDeviceFilters`.
    """

    def __init__(self) -> None:
        self._filters: dict[str, dict[int, list[str]]] = {}

    def set_device_filters(self, job_name: str, task_index: int, device_filters: Sequence[str]) -> None:
        """Sets the filters of a task, such as `["/job:ps"]`; those set before are dropped.

        Raises:
          ArgumentTypeError: a filter or the job's name is no string, or a string was given for the list.
          ArgumentError: the index is negative.
        """
        if isinstance(device_filters, str) or not all(isinstance(each, str) for each in device_filters):
            raise ArgumentTypeError(
                f"device filters are a list of strings, not {device_filters!r}. HINT: write ['/job:ps']."
            )
        tasks = self._filters.setdefault(settings.text("job_name", job_name), {})
        tasks[settings.whole("task_index", task_index)] = list(device_filters)

    def as_dict(self) -> dict[str, dict[int, list[str]]]:
        """The filters by job and task index."""
        return copy.deepcopy(self._filters)
