"""The environment variable `TF_CONFIG`, as TensorFlow's programs and their launchers set it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtribute._src.core import settings
from jaxtribute._src.core.cluster.resolvers import register
from jaxtribute._src.core.cluster.resolvers.base import ClusterResolver, Detection
from jaxtribute._src.core.cluster.spec import ClusterSpec, task_number
from jaxtribute._src.core.environment import shown
from jaxtribute._src.json_reading import parse_json
from jaxtribute.errors import ArgumentTypeError, ClusterSpecError

_NAME = "TF_CONFIG"
_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


@register(rank=0)
class TFConfigClusterResolver(ClusterResolver):
    """Reads the cluster from the environment variable `TF_CONFIG`, again at each question.

    Its value is JSON: `{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}`.

    Args:
      task_type: in place of the task's type in `TF_CONFIG`.
      task_id: in place of the task's index in `TF_CONFIG`.
      rpc_layer: in place of `rpc_layer` in `TF_CONFIG`.
      environment: what `environment` is to say; `TF_CONFIG` does not say it.
      environ: the environment to read; this process's own by default.

    Everything that reads `TF_CONFIG` raises `ClusterSpecError` where its value is malformed.

    Source: `tf.distribute.cluster_resolver.TFConfigClusterResolver`.
    """

    looks_for = "TF_CONFIG"

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(task_type, task_id, rpc_layer, environ=environ)
        self._environment = settings.text("environment", environment, optional=True)

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> Detection | None:
        """Finds a `TF_CONFIG` that is not empty."""
        text = environ.get(_NAME, "").strip()
        return Detection(cls(environ=environ), f"TF_CONFIG is {text}") if text else None

    def cluster_spec(self) -> ClusterSpec:
        """The cluster in `TF_CONFIG`; empty if it is not set."""
        config = self._read()
        try:
            return ClusterSpec(config.get("cluster", {}))
        except (ArgumentTypeError, ClusterSpecError) as error:
            raise ClusterSpecError(f"the cluster in {_NAME}={shown(self._text())} is malformed: {error}") from error

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task, this process's by default; empty if the cluster is one task 0, or none.

        Raises:
          ClusterSpecError: there is no such task.
        """
        config = self._read()
        if config.get("session_master") is not None:
            return str(config["session_master"])
        spec = self.cluster_spec()
        if not spec.jobs or [len(spec.job_tasks(job)) for job in spec.jobs] == [1]:
            return ""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        # The base returns an empty address here; TensorFlow's programs take that for a cluster of one task.
        if task_type is None or task_id is None:
            raise self._without_task()
        # Only None stands for the resolver's own protocol: an empty string asks for none.
        return self._with_protocol(
            spec.task_address(task_type, task_id), self.rpc_layer if rpc_layer is None else rpc_layer
        )

    def own_task(self) -> tuple[str, int]:
        """This process's job and task, sure to be in the cluster.

        Raises:
          ClusterSpecError: `TF_CONFIG` says no task, or one that the cluster does not have.
        """
        if self.task_type is None or self.task_id is None:
            raise self._without_task()
        try:
            return super().own_task()
        except ClusterSpecError as error:
            raise ClusterSpecError(f"the task in {_NAME}={shown(self._text())} is wrong: {error}") from error

    @property
    def environment(self) -> str:
        """The constructor's argument, or an empty string. TensorFlow says None then."""
        return self._environment or ""

    @ClusterResolver.task_type.getter
    def task_type(self) -> str | None:
        """The task's type; None if `TF_CONFIG` does not say it."""
        kind = self._task().get("type") if self._task_type is None else self._task_type
        return None if kind is None else str(kind)

    @ClusterResolver.task_id.getter
    def task_id(self) -> int | None:
        """The task's index; None if `TF_CONFIG` does not say it."""
        index = self._task().get("index") if self._task_id is None else self._task_id
        number = task_number(index)
        if number is None and index is not None:
            raise self._malformed(f"the task's index is {shown(index)}, and not a whole number from 0 on")
        return number

    @ClusterResolver.rpc_layer.getter
    def rpc_layer(self) -> str | None:
        """The protocol; None if `TF_CONFIG` does not say it."""
        return self._read().get("rpc_layer") if self._rpc_layer is None else self._rpc_layer

    def _text(self) -> str:
        return self.environ.get(_NAME, "")

    def _read(self) -> dict[str, Any]:
        text = self._text()
        if not text.strip():
            return {}
        try:
            config = parse_json(text)
        except ValueError as error:
            raise self._malformed(f"it is no JSON: {error}") from None
        if not isinstance(config, dict):
            raise self._malformed(f"it is a {type(config).__name__}, not an object")
        return config

    def _task(self) -> dict[str, Any]:
        task = self._read().get("task", {})
        if not isinstance(task, dict):
            raise self._malformed(f"its task is {shown(task)}, not an object with a type and an index")
        return task

    def _malformed(self, why: str) -> ClusterSpecError:
        return ClusterSpecError(f"{_NAME} is {shown(self._text())}: {why}. HINT: write {_EXAMPLE}.")

    def _without_task(self) -> ClusterSpecError:
        return self._malformed("it does not say which task this process is")
