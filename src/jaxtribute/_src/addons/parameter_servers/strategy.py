"""`ParameterServerStrategy`: variables on servers, steps on workers that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute import RunOptions, Strategy, StrategyExtended, Variable, VariableSynchronization
from jaxtribute._src.addons.messaging.errors import name_of
from jaxtribute._src.addons.parameter_servers.partitioners import Partitioner
from jaxtribute._src.addons.parameter_servers.variables.access import Access
from jaxtribute._src.addons.parameter_servers.variables.variable import ServerPolicy, ServerVariable
from jaxtribute.config import prepare_cpu_backend
from jaxtribute.errors import ArgumentError, VariableError
from jaxtribute.extending import Callers, Policy, ReplicaMesh, default_devices, settings
from jaxtribute.typing import DType, Function, Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute._src.addons.parameter_servers.scheduling.cluster import Cluster
    from jaxtribute._src.addons.parameter_servers.server.layout import Layout
    from jaxtribute._src.addons.parameter_servers.variables.optimizer import RemoteOptimizer


_beside: ContextVar[ServerVariable | None] = ContextVar("_beside", default=None)
"""The variable beside which new ones are made."""


class ParameterServerExtended(StrategyExtended):
    """One replica in this process, variables on servers.

    Args:
      access: how this process reaches the servers.
      cluster: the cluster, on its coordinator; None on a worker.
    """

    variable_kind: type[Variable] = ServerVariable

    def __init__(self, access: Access, cluster: Cluster | None) -> None:
        mesh = ReplicaMesh((jax.local_devices()[0],))
        super().__init__(mesh)
        self.cluster = cluster
        self.server_policy: ServerPolicy = ServerPolicy(mesh, access)
        self.known_optimizer: RemoteOptimizer | None = None
        """On a worker, what the optimizer that is being made updates its variables by."""

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        servers = self.cluster.servers if self.cluster is not None else 1
        return tuple(f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(servers))

    def variable_policy(self, synchronization: VariableSynchronization) -> tuple[Policy, VariableSynchronization]:
        return self.server_policy, synchronization

    def create_on_servers(
        self, initial: Leaf, dtype: DType, check: Callable[[np.dtype[Any]], None]
    ) -> tuple[int, Layout]:
        """Makes a variable there; returns its number and where it is.

        Args:
          initial: its first value, or what computes it.
          dtype: its element type; None for that of the value.
          check: is told the element type before anything is made.

        Raises:
          VariableError: on a worker.
        """
        if self.cluster is None:
            raise VariableError(
                "a variable is created in a function that runs on a worker. HINT: create it on the coordinator, in "
                "strategy.scope(), before the function is scheduled."
            )
        beside = _beside.get()
        if beside is None or beside.distribute_strategy is not self.strategy:
            return self.cluster.create(initial, dtype, check)
        return self.cluster.create(initial, dtype, check, beside.layout)

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Variable) -> Generator[None]:
        """Makes the variables created in the block lie where another variable of this strategy lies.

        One with as many rows as a variable that is split is split like it, each row beside its row. Any other is not
        split, whatever the partitioner says, and lies on the server of the other's first row.

        Raises:
          ArgumentError: it was not made in this strategy's scope.
          ContextError: entered outside the strategy's scope.

        Source: `tf.distribute.StrategyExtended.colocate_vars_with`.
        """
        with super().colocate_vars_with(colocate_with_variable):
            assert isinstance(colocate_with_variable, ServerVariable)
            token = _beside.set(colocate_with_variable)
            try:
                yield
            finally:
                _beside.reset(token)

    def remote_optimizer(self, transform: Any, variables: Nest) -> RemoteOptimizer | None:
        if self.cluster is None:
            # For one optimizer: the next that is made is another.
            found, self.known_optimizer = self.known_optimizer, None
            return found
        return self.cluster.create_optimizer(transform, variables, self.strategy)


class ParameterServerStrategy(Strategy):
    """Keeps variables on parameter servers; a `jd.coordinator.ClusterCoordinator` runs steps on workers.

    Each worker fetches the variables that a step reads, computes, and sends its updates; servers apply them in the
    order in which they come. Workers do not wait for each other, and may come and go.

    The servers and workers are processes that Ray starts, on this machine unless a Ray cluster is given.

    Args:
      cluster_resolver: says how many servers (job `ps`) and workers (job `worker`) there are: a resolver, a
        `jd.ClusterSpec`, or a map such as `{"ps": 1, "worker": 2}`.
      variable_partitioner: how variables are split along their first axis, such as
        `jd.experimental.partitioners.MinSizePartitioner`; by default each is on one server, in turn.
      address: of a Ray cluster to run on, as `ray.init` takes it; by default `RAY_ADDRESS` of the environment, if set.
      replicas: 1 keeps a mirror of each server, from which one that dies is restored with nothing lost.
      staleness: how many of its own updates a worker may compute with values that lack them; 0 fetches for each step.
      timeout_s: how long a process may take to start or to answer, in seconds.

    Raises:
      ArgumentError: the cluster has no servers or no workers.
      ClusterSpecError: the cluster has other jobs, or several chiefs, or this process is not its chief.
      DeadlineError: a process has not started in time.

    Examples:
      >>> strategy = jd.ParameterServerStrategy({"worker": 2, "ps": 1})  # starts three processes
      >>> coordinator = jd.coordinator.ClusterCoordinator(strategy)
      >>> with strategy.scope():
      ...     w = jd.Variable(1.0)
      >>> step = jd.function(lambda: w.assign_add(1.0))
      >>> for _ in range(3):
      ...     result = coordinator.schedule(step)
      >>> coordinator.join()
      >>> w.numpy()
      array(4., dtype=float32)
      >>> strategy.close()

    Source: `tf.distribute.ParameterServerStrategy`.
    """

    def __init__(
        self,
        cluster_resolver: Any,
        variable_partitioner: Partitioner | None = None,
        *,
        address: str | None = None,
        replicas: int = 0,
        staleness: int = 0,
        timeout_s: float = 120.0,
    ) -> None:
        from jaxtribute._src.addons.parameter_servers.scheduling.starting import start_cluster

        prepare_cpu_backend()
        if settings.whole("replicas", replicas) > 1:
            raise ArgumentError(f"replicas is {replicas}. HINT: 0, or 1 for a mirror of each server.")
        staleness, timeout_s = (
            settings.whole("staleness", staleness),
            settings.amount("timeout_s", timeout_s, above=True),
        )
        settings.function("variable_partitioner", variable_partitioner, optional=True)
        settings.text("address", address, optional=True)
        if ReplicaMesh(default_devices()[:1]).described:
            raise ArgumentError(
                "ParameterServerStrategy over described devices: a step is several programs, on workers and servers, "
                "which cannot be compiled without running. HINT: compile under MirroredStrategy."
            )
        self._resolver = cluster_resolver
        options = {"replicas": replicas, "staleness": staleness, "timeout_s": timeout_s}
        cluster = start_cluster(cluster_resolver, address, partitioner=variable_partitioner, **options)
        super().__init__(ParameterServerExtended(cluster.access, cluster))

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> ParameterServerStrategy:
        """The strategy of a cluster that runs already."""
        # Not by `__init__`, which starts the processes of a cluster.
        strategy = cls.__new__(cls)
        strategy._resolver = None
        Strategy.__init__(strategy, ParameterServerExtended(cluster.access, cluster))
        return strategy

    @classmethod
    def of_worker(cls, access: Access) -> ParameterServerStrategy:
        """The strategy as a worker has it."""
        strategy = cls.__new__(cls)
        strategy._resolver = None
        Strategy.__init__(strategy, ParameterServerExtended(access, None))
        return strategy

    def run(self, fn: Function, args: Nest = (), kwargs: Nest = None, options: RunOptions | None = None) -> Any:
        """Calls `fn` as every strategy does, in a scheduled function; elsewhere with a warning that workers wait.

        Args:
          fn: the replica function.
          args: its positional arguments.
          kwargs: its keyword arguments.
          options: accepted for compatibility.

        Source: `tf.distribute.ParameterServerStrategy.run`.
        """
        if self.cluster is not None:
            Callers.warn(
                f"strategy.run({name_of(fn)}) runs on the coordinator, while the workers wait. HINT: call it in a "
                "function that is passed to coordinator.schedule."
            )
        return super().run(fn, args, kwargs, options)

    @property
    def cluster_resolver(self) -> Any:
        return self._resolver

    @property
    def parameter_servers(self) -> ParameterServerExtended:
        """The placement of the strategy's variables."""
        extended = self.extended
        assert isinstance(extended, ParameterServerExtended)
        return extended

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, on its coordinator."""
        return self.parameter_servers.cluster

    def process_of(self, job: str, index: int) -> int:
        """Returns the process id of a task on its machine, for looking at it, or for killing it in a test.

        Args:
          job: `"ps"`, `"worker"`, or `"mirror"`.
          index: its number.
        """
        assert self.cluster is not None
        return self.cluster.engine.pid(job, index)

    def close(self) -> None:
        """Ends the cluster's processes; without it they end with this one."""
        if self.cluster is not None:
            self.cluster.close()

    def __enter__(self) -> ParameterServerStrategy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        from jaxtribute._src.addons.parameter_servers.scheduling.pickling import find_strategy

        return find_strategy, ()
