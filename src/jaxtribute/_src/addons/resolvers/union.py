"""Several resolvers as one."""

from __future__ import annotations

import itertools
from typing import Any

from jaxtribute import ClusterSpec
from jaxtribute.cluster_resolver import ClusterResolver
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ClusterSpecError


class TaskConflictError(ClusterSpecError, KeyError):
    """Two resolvers put one task at two addresses; TensorFlow raises a `KeyError`."""

    def __str__(self) -> str:
        # A KeyError shows its message as a key, in quotes.
        return str(self.args[0])


class UnionResolver(ClusterResolver):
    """Several resolvers as one: the tasks of all, everything else from the first.

    The addresses of a job that several resolvers describe are put one after the other; if one of them gives indices,
    all are taken by index, lists from 0 on. A job that two describe with the very same tasks is there once, so that a
    `SimpleClusterResolver` of the same cluster in front may change what the other says; TensorFlow repeats its tasks.

    Args:
      *resolvers: at least one.
      rpc_layer: as in `ClusterResolver`, in place of the first resolver's.
      task_type: as in `ClusterResolver`, in place of the first resolver's.
      task_id: as in `ClusterResolver`, in place of the first resolver's.

    Raises:
      ArgumentError: no resolver is given.
      ArgumentTypeError: one is no `ClusterResolver`.

    Source: `tf.distribute.cluster_resolver.UnionResolver`.
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        super().__init__(task_type, task_id, rpc_layer)
        if not resolvers:
            raise ArgumentError("UnionResolver() has nothing to unite. HINT: pass at least one cluster resolver.")
        for each in resolvers:
            if not isinstance(each, ClusterResolver):
                raise ArgumentTypeError(
                    f"{each!r} is no cluster resolver. HINT: pass SimpleClusterResolver(jd.ClusterSpec(...))."
                )
        self._resolvers = resolvers

    def cluster_spec(self) -> ClusterSpec:
        """The tasks of all resolvers.

        Raises:
          ClusterSpecError: two resolvers give one index different addresses, or two tasks the same address.
        """
        described: dict[str, list[list[str] | dict[int, str]]] = {}
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                others = described.setdefault(job, [])
                # Once: else the same cluster, described twice, would have every address twice.
                if tasks not in others:
                    others.append(tasks)
        return ClusterSpec({job: _merge(job, parts) for job, parts in described.items()})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task, or without one what the first resolver says.

        Raises:
          ClusterSpecError: there is no such task.
        """
        if task_type is not None and task_id is not None:
            address = self.cluster_spec().task_address(task_type, task_id)
            return self._with_protocol(address, rpc_layer or self._rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """The first resolver's answer."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    @property
    def environment(self) -> str:
        """The first resolver's answer."""
        return self._resolvers[0].environment

    @ClusterResolver.task_type.getter
    def task_type(self) -> str | None:
        """This process's job: the one that was set here, or the first resolver's."""
        return self._task_type if self._task_type is not None else self._resolvers[0].task_type

    @ClusterResolver.task_id.getter
    def task_id(self) -> int | None:
        """This process's index in its job: the one that was set here, 0 too, or the first resolver's."""
        return self._task_id if self._task_id is not None else self._resolvers[0].task_id

    @ClusterResolver.rpc_layer.getter
    def rpc_layer(self) -> str | None:
        """The protocol that was set here, or the first resolver's."""
        return self._rpc_layer or self._resolvers[0].rpc_layer


def _merge(job: str, parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    # Lists alone are joined one behind the other: none of them says at which index it begins.
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return list(itertools.chain.from_iterable(lists))
    merged: dict[int, str] = {}
    for part in parts:
        for index, address in part.items() if isinstance(part, dict) else enumerate(part):
            if merged.setdefault(index, address) != address:
                raise TaskConflictError(
                    f"two resolvers describe {job} {index}: one at {merged[index]!r}, one at {address!r}. "
                    "HINT: give the tasks of a job different indices."
                )
    return merged
