"""A resolver that is told everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtribute._src.core.cluster.resolvers.base import ClusterResolver, counts_of
from jaxtribute._src.core.cluster.spec import ClusterSpec
from jaxtribute.errors import ArgumentTypeError


class SimpleClusterResolver(ClusterResolver):
    """A resolver that is told everything.

    Args:
      cluster_spec: the cluster.
      master: what `master()` returns when it is asked for no task.
      task_type: this process's job.
      task_id: its index in the job.
      environment: what `environment` is to say.
      num_accelerators: accelerators by type, such as `{"GPU": 8}`.
      rpc_layer: the protocol before the address that `master` returns.

    Raises:
      ArgumentTypeError: `cluster_spec` is no `jd.ClusterSpec`, or `master` no string.

    Source: `tf.distribute.cluster_resolver.SimpleClusterResolver`.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        super().__init__(task_type, task_id, rpc_layer)
        if not isinstance(cluster_spec, ClusterSpec):
            raise ArgumentTypeError(
                f"cluster_spec is {cluster_spec!r} of type {type(cluster_spec).__name__}. "
                "HINT: pass jd.ClusterSpec(...) of it."
            )
        if not isinstance(master, str):
            raise ArgumentTypeError(f"master is {master!r}. HINT: pass an address, such as 'grpc://host:2222'.")
        self._cluster_spec = cluster_spec
        self._master = master
        self._environment = environment
        self._num_accelerators = counts_of("num_accelerators", num_accelerators)

    def cluster_spec(self) -> ClusterSpec:
        """The cluster that the constructor was given."""
        return self._cluster_spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task, or without one the `master` that the constructor was given.

        Raises:
          ClusterSpecError: there is no such task.
        """
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._cluster_spec.task_address(task_type, task_id)
        return self._with_protocol(address, rpc_layer or self.rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """The accelerators that the constructor was given, whatever the task; none by default."""
        return dict(self._num_accelerators)

    @property
    def environment(self) -> str:
        """The constructor's argument."""
        return self._environment
