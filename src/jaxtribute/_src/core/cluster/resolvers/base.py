"""Base of all cluster resolvers: they list the tasks of a cluster, and tell which of them this process is."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtribute._src.core import settings
from jaxtribute._src.core.cluster.accelerators import local_accelerators
from jaxtribute._src.core.cluster.spec import ClusterSpec
from jaxtribute._src.core.environment import shown, whole_number
from jaxtribute.errors import ClusterSpecError


@dataclass(frozen=True, slots=True)
class Detection:
    """A resolver that fits an environment.

    Attributes:
      resolver: it, ready to use.
      why: what was seen in the environment.
    """

    resolver: ClusterResolver
    why: str


def counts_of(name: str, given: Mapping[str, int] | None) -> dict[str, int]:
    """Checks an argument that counts something for each of some names; empty if there is none.

    Raises:
      ArgumentTypeError: a count is no whole number.
      ArgumentError: a count is below 0.
    """
    counts: dict[str, int] = {}
    for key, count in (given or {}).items():
        counts[key] = settings.whole(f"{name}[{key!r}]", count)
    return counts


def integer(environ: Mapping[str, str], name: str) -> int:
    """The whole number that an environment variable holds.

    Raises:
      ClusterSpecError: it holds something else.
    """
    number = whole_number(environ[name])
    if number is None:
        raise ClusterSpecError(
            f"{name} is {shown(environ[name])}: expected a whole number from 0 on. HINT: leave it to the scheduler, or "
            "correct it."
        )
    return number


class ClusterResolver(ABC):
    """Says which tasks a cluster has, and which of them this process is.

    A subclass defines `cluster_spec`, and sets `task_type` and `task_id` where it knows them. With `register` and
    `detect` it is found by `jd.cluster_resolver.detect`.

    Args:
      task_type: this process's job, such as `"worker"`; None if it is not known.
      task_id: its index in the job.
      rpc_layer: the protocol before the address that `master` returns; None for none.
      environ: the environment to read; this process's own by default.

    Source: `tf.distribute.cluster_resolver.ClusterResolver`.
    """

    # For subclasses, which read much of the environment.
    _counts_of = staticmethod(counts_of)
    _integer = staticmethod(integer)
    looks_for: ClassVar[str] = ""
    """Description of the settings that `detect` looks for in an environment; empty if it finds nothing."""

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._task_type = settings.text("task_type", task_type, optional=True)
        self._task_id = settings.whole("task_id", task_id, optional=True)
        self._rpc_layer = settings.text("rpc_layer", rpc_layer, optional=True)
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        """The environment that is read."""

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> Detection | None:
        """Makes a resolver from an environment that is this class's; None if it is not.

        Raises:
          ClusterSpecError: it is, and what it says is incomplete or malformed.
        """
        return None

    @abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """The cluster as it is now; each call asks again.

        Raises:
          ClusterSpecError: the cluster is described wrongly.
          ClusterError: the system that runs the cluster does not say.
        """

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task, this process's by default, as `"grpc://host:port"`; empty if no task is known.

        Raises:
          ClusterSpecError: there is no such task.
        """
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            return ""
        return self._with_protocol(self.cluster_spec().task_address(task_type, task_id), rpc_layer or self.rpc_layer)

    @staticmethod
    def _with_protocol(address: str, rpc_layer: str | None) -> str:
        """The address with its protocol, as `"grpc://host:port"`."""
        return f"{rpc_layer}://{address}" if rpc_layer else address

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """The number of this process's accelerators by type, such as `{"GPU": 8}`; empty for another task.

        JAX is asked if it has started. Otherwise GPUs are counted without starting it.

        Args:
          task_type: a job; this process's by default.
          task_id: a task of it; this process's by default.
          config_proto: means nothing here.
        """
        # Nobody but a process itself can count its devices.
        if (task_type, task_id) not in ((None, None), (self.task_type, self.task_id)):
            return {}
        return local_accelerators(self.environ)

    def own_task(self) -> tuple[str, int]:
        """This process's job and task, sure to be in the cluster; an evaluator may be outside it.

        Raises:
          ClusterSpecError: they are not known, or the cluster has no such task.
        """
        task_type, task_id = self.task_type, self.task_id
        if task_type is None or task_id is None:
            raise ClusterSpecError(
                f"{type(self).__name__} does not know which task of the cluster this process is: task_type is "
                f"{task_type!r}, task_id is {task_id!r}. HINT: set both, in the constructor or as attributes."
            )
        spec = self.cluster_spec()
        if task_type != "evaluator" or task_type in spec.jobs:
            # Called for its error, where the cluster has no such task.
            spec.task_address(task_type, task_id)
        return task_type, task_id

    def get_job_name(self) -> str | None:
        """This process's job."""
        return self.task_type

    def get_tasks(self) -> list[str | None]:
        """The addresses of this process's job by task index.

        Raises:
          ClusterSpecError: the cluster has no such job, or this process's is not known.
        """
        return self.cluster_spec().job_tasks(self.own_task()[0])

    @property
    def environment(self) -> str:
        """The environment that programs run in: empty, or what the constructor was told."""
        return ""

    @property
    def task_type(self) -> str | None:
        """This process's job: `chief`, `worker`, `ps` or `evaluator`; None if it is not known."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        """Says that this process is of another job."""
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """This process's index in its job; None if it is not known."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        """Says that this process is another task of its job."""
        self._task_id = settings.whole("task_id", task_id, optional=True)

    @property
    def rpc_layer(self) -> str | None:
        """The protocol before the address that `master` returns. JAX speaks its own whatever it says."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        """Changes the protocol in front of addresses."""
        self._rpc_layer = rpc_layer
