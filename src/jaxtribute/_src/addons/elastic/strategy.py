"""`ElasticStrategy`: islands of a device or several, any of which may die at any moment, while the others go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtribute import (
    Optimizer,
    PerReplica,
    ReduceOp,
    ReplicaContext,
    Strategy,
    StrategyExtended,
    Variable,
    VariableSynchronization,
)
from jaxtribute._src.addons.elastic.arguments import (
    LocalSettings,
    check_first,
    checked_virtual,
    devices_of,
    incarnation_told,
    note_island,
    places,
)
from jaxtribute._src.addons.elastic.exchange import Islands
from jaxtribute._src.addons.elastic.executor import IslandReplica, check_operation, keeping, reduced
from jaxtribute._src.addons.elastic.lengths import Lengths, lengths_for
from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute._src.addons.elastic.runtime import IslandMesh
from jaxtribute._src.addons.elastic.saving import Saves, begin, end
from jaxtribute._src.addons.elastic.spare import await_place
from jaxtribute._src.addons.elastic.steps import Step
from jaxtribute._src.addons.elastic.values import GlobalBatch, IslandValue, is_value, stamped
from jaxtribute._src.addons.elastic.variables import IslandPolicy, IslandVariable
from jaxtribute._src.addons.elastic.virtual import Replicas
from jaxtribute.cluster_resolver import TFConfigClusterResolver
from jaxtribute.config import prepare_cpu_backend
from jaxtribute.errors import ArgumentError, ClusterError, ContextError, VariableError
from jaxtribute.extending import (
    Context,
    EagerStep,
    Function,
    Overlay,
    Policy,
    ReplicaMesh,
    Slicing,
    settings,
    slice_sizes,
)
from jaxtribute.typing import Device, Foreign, Leaf, Nest, ReduceOpLike

if TYPE_CHECKING:
    from jaxtribute._src.addons.elastic.dataset import ElasticDataset
    from jaxtribute.cluster_resolver import ClusterResolver
    from jaxtribute.experimental import CommunicationOptions


class ElasticExtended(StrategyExtended):
    """The plug of `ElasticStrategy`."""

    variable_kind = IslandVariable
    means_by_rows = True
    """Means over islands weigh each by its rows of the batch."""

    def __init__(self, mesh: IslandMesh) -> None:
        super().__init__(mesh)
        self.islands_mesh = mesh

    def variable_policy(self, synchronization: VariableSynchronization) -> tuple[Policy, VariableSynchronization]:
        """A copy on each island, kept equal.

        Raises:
          ArgumentError: ON_READ or NONE, which would leave each island with values that die with it.
        """
        refuse_on_read(synchronization)
        return IslandPolicy(self.home, self.islands_mesh.register), VariableSynchronization.ON_WRITE

    def call_for_each_replica(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Nest = None) -> Any:
        """Calls `fn` on this island's replica: as a part of the program that is traced, or as a step of its own."""
        executor = Context.current().executor
        if executor.traced or isinstance(executor, (EagerStep, Overlay)):
            return self._as_replica(fn, args, kwargs)
        if isinstance(fn, Function):
            return fn.run_on(self.strategy)(*args, **dict(kwargs or {}))
        self.islands_mesh.check_compiled("run")

        def body(_: object) -> tuple[EagerStep, Any]:
            # Of its own for each try: what a failed one has written is forgotten with it.
            step = EagerStep()
            with Context(self.strategy, None, step).entered():
                return step, self._as_replica(fn, args, kwargs)

        return self.islands_mesh.step(_Run(fn, args, kwargs), body)

    def _as_replica(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Nest) -> Any:
        mesh, strategy, outer = self.islands_mesh, self.strategy, Context.current().executor
        leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, PerReplica))
        batches = [leaf.data for leaf in leaves if isinstance(leaf, GlobalBatch)]
        count = mesh.count_in(mesh.view)
        totals = dict.fromkeys(array.shape[0] for array in batches if array.ndim)
        sizes = [slice_sizes(total, count) for total in totals if total]
        known = [leaf.rows for leaf in leaves if isinstance(leaf, IslandValue)]
        for leaf in leaves:
            if isinstance(leaf, IslandValue):
                self.check_view(leaf)

        def called(lengths: Lengths, at: int) -> Any:
            # Who has rows of one batch has some, though another is too short for it.
            own = [each[at] for each in sizes] or known
            rows = next((each for each in own if each), own[0] if own else None)

            def replica(*args: Any, **kwargs: Any) -> Any:
                executor = IslandReplica(Context.current().executor, mesh, rows, lengths)
                with Context(strategy, ReplicaContext(strategy, mesh.place), executor).entered():
                    result = fn(*args, **kwargs)
                return jax.tree.map(lambda leaf: _own(leaf, mesh, rows), result, is_leaf=is_value)

            return super(ElasticExtended, self).call_for_each_replica(replica, args, kwargs)

        def shapes(at: int, lengths: Lengths) -> None:
            def call() -> tuple[()]:
                with Context(strategy, None, Overlay(outer, {})).entered(), mesh.posing(at):
                    called(lengths, at)
                return ()

            jax.eval_shape(call)

        place = mesh.place_in(mesh.view)
        return called(lengths_for(mesh, sizes, place, shapes if outer.traced else None), place)

    def check_view(self, value: IslandValue) -> None:
        """Checks that the islands that have the parts of a value are those that are there.

        Raises:
          ClusterError: they are not.
        """
        arguments: dict[int, Any] = getattr(self.islands_mesh.executor(), "arguments", {})
        if id(value.data) in arguments:
            raise ClusterError(
                "a value that differs between islands was passed to a jd.function: what an island that dies has of it "
                "is lost, and the step could not be done again. HINT: compute it in the same jd.function, or reduce it "
                "there before."
            )
        now = self.islands_mesh.view
        # Islands that have joined since add nothing to it.
        if value.view is not None and not set(value.view.members) <= set(now.members):
            raise ClusterError(
                f"a value was computed in view {value.view.number}, and the islands have changed: this is view "
                f"{now.number}, and what an island that has died had of the value is lost. HINT: reduce or gather it "
                "in the jd.function that computes it; a step in a jd.function is done again as a whole."
            )

    def update(self, var: Variable, fn: Any, args: Sequence[Any] = (), kwargs: Nest = None, group: bool = True) -> Any:
        """Calls `fn(var, ...)`; see `StrategyExtended.update`.

        Raises:
          VariableError: an argument differs from island to island.
        """
        leaves = jax.tree.leaves((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, PerReplica))
        now = Context.current()
        merged = now.replica is None or now.strategy is not self.strategy
        if merged and any(isinstance(leaf, PerReplica) for leaf in leaves):
            raise VariableError(
                f"update({var.name}) got an argument that differs between islands, for a variable that has one value. "
                "HINT: reduce it first: strategy.reduce('SUM', value, axis=None)."
            )
        return super().update(var, fn, args, kwargs, group)

    def batch_reduce_to(self, reduce_op: ReduceOpLike, value_destination_pairs: Any, options: Any = None) -> list[Any]:
        """Reduces values over the islands; each island has the results."""
        strategy = self.strategy
        return [strategy.reduce(reduce_op, value, axis=None) for value, _ in value_destination_pairs]


def refuse_on_read(synchronization: VariableSynchronization) -> None:
    """Refuses variables of which each replica has a value of its own.

    Raises:
      ArgumentError: a variable is to be one.
    """
    if synchronization not in (VariableSynchronization.AUTO, VariableSynchronization.ON_WRITE):
        raise ArgumentError(
            f"ElasticStrategy has no variables of {synchronization}: what an island had in one would be lost when "
            "it dies. HINT: use AUTO or ON_WRITE, and aggregation=SUM for what islands count."
        )


def _own(leaf: Leaf, mesh: IslandMesh, rows: int | None) -> Any:
    """A result of this island's replica as the value of which each island has its own."""
    known = isinstance(leaf, (jax.Array, np.ndarray, np.generic))
    return IslandValue(leaf, mesh, rows=rows) if known else leaf


class _Run(Step[Any]):
    """A `run` that is a step of its own. What it writes, a newcomer does not know."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Nest) -> None:
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_value)
        arrays = [leaf.data if isinstance(leaf, GlobalBatch) else leaf for leaf in leaves]
        kinds = " ".join(str(list(array.shape)) for array in arrays if isinstance(array, (jax.Array, np.ndarray)))
        super().__init__(f"run {getattr(fn, '__name__', type(fn).__name__)}({kinds})")

    def kept(self, result: tuple[EagerStep, Any]) -> Any:
        return result[1]

    def finished(self, result: tuple[EagerStep, Any], view: View) -> Any:
        step, value = result
        step.commit()
        return stamped(value, view)

    def written(self) -> None:
        return None


class ElasticStrategy(Strategy):
    """Trains on islands, of which any may die at any moment: the others go on within about a second, and lose nothing.

    An island is a process with one device or several. Each runs the same program, reads all batches, and takes its rows
    of each. Sums between islands lie outside of the compiled program; a step is committed by all of them or by none. If
    an island dies, the step is done again by the others, who share its examples. No island is special.

    A step is a `jd.function` that calls `run`, or a `run` outside of one. Its Python code may be run again.

    With `sync_every=H` islands train alone: a step is what it is under `inner`, which may be a `jd.MirroredStrategy`,
    and sums go over the island's own replicas. After each H steps that update parameters the islands meet: the outer
    optimizer updates the parameters by the islands' mean change, weighed by true numbers of examples, and all go on
    from there. What else variables hold is brought together as their aggregation says; slots of optimizers stay the
    island's own. This is DiLoCo, and with `optax.sgd(1.0)` the averaging of local SGD.

    Args:
      inner: the devices of this island: None for its first device, a `jd.OneDeviceStrategy`, or a `jd.MirroredStrategy`
        of as many devices on each island. Of several devices each runs a replica, or its part of virtual ones.
      min_islands: the fewest islands that go on.
      cluster_resolver: says where the islands are, and which this one is; by default `TF_CONFIG`, as
        `jaxtribute launch` sets it. Without a cluster this process is the only island.
      silent_s: seconds after which an island that says nothing is left out: it must stop then.
      timeout_s: seconds that a wait for islands that are alive may take, such as for one that compiles.
      incarnation: how often this island's process had been started before: above 0 it joins the others where they are.
        By default as `jaxtribute launch --elastic` says, in the environment variable `JAXTRIBUTE_INCARNATION`.
      virtual_replicas: the number of replicas that the program sees, however many islands there are: these share them,
        and a step has the same bits on any number of islands. Where islands have several replicas, steps are
        `jd.function`s, and what they return and write is the same for all replicas.
      sync_every: steps between two meetings; None for islands that take each step together.
      overlap_steps: with `sync_every`, how many of the steps before a meeting the changes of parameters have to travel.
        They are those until then; what an island learns while they travel stays its own until the next meeting.
      fragments: with `sync_every`, the number of parts of about the same size that the parameters are divided into.
        The islands meet as many times in `sync_every` steps, and exchange the changes of one part after the other.
      outer_optimizer: with `sync_every`, the Optax transformation that updates the parameters at a meeting, by the mean
        change (before - after) as their gradient. By default `optax.sgd(0.7, momentum=0.9, nesterov=True)`.
      communication_options: with `sync_every`, `wire` names the type in which changes of parameters travel, and with
        `error_feedback` what rounding has lost of a change is added to the island's next one.

    Raises:
      ArgumentError: more islands than virtual replicas; `overlap_steps` not below `sync_every`; addresses that other
        machines can reach, without certificates.
      ArgumentTypeError: an inner strategy of another kind.
      DeadlineError: islands did not come in time; it names them.

    Examples:
      >>> strategy = jd.experimental.ElasticStrategy()
      >>> strategy.reduce("SUM", strategy.run(lambda: jnp.ones(2)), axis=None)
      Array([1., 1.], dtype=float32)
    """

    def __new__(cls, *_args: Any, sync_every: int | None = None, **_settings: Any) -> ElasticStrategy:
        """Makes a strategy of another kind with `sync_every`."""
        if sync_every is None or cls is not ElasticStrategy:
            return super().__new__(cls)
        from jaxtribute._src.addons.elastic.local_strategy import LocalElasticStrategy

        return object.__new__(LocalElasticStrategy)

    def __init__(
        self,
        inner: Strategy | None = None,
        *,
        min_islands: int = 1,
        cluster_resolver: ClusterResolver | None = None,
        silent_s: float = 5.0,
        timeout_s: float = 300.0,
        incarnation: int | None = None,
        virtual_replicas: int | None = None,
        sync_every: int | None = None,
        overlap_steps: int = 0,
        fragments: int = 1,
        outer_optimizer: optax.GradientTransformation | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        await_place()
        settings.whole("min_islands", min_islands, 1)
        for name, seconds in (("silent_s", silent_s), ("timeout_s", timeout_s)):
            if not (math.isfinite(seconds) and seconds > 0):
                raise ArgumentError(f"{name} is {seconds!r}. HINT: pass a number of seconds above 0.")
        local = LocalSettings.checked(sync_every, overlap_steps, fragments, outer_optimizer, communication_options)
        resolver = cluster_resolver if cluster_resolver is not None else TFConfigClusterResolver()
        addresses, rank = places(resolver)
        self._virtual = checked_virtual(virtual_replicas, len(addresses), sync_every)
        prepare_cpu_backend()
        devices = devices_of(inner)
        if ReplicaMesh(devices[:1]).described:
            raise ArgumentError(
                "ElasticStrategy over described devices: a step is several programs, between which islands "
                "exchange values, and cannot be compiled without running. HINT: compile under MirroredStrategy."
            )
        self._resolver = resolver
        incarnation = settings.whole("incarnation", incarnation_told() if incarnation is None else incarnation, 0)
        me = Island(rank, incarnation)
        check_first(addresses, me)
        self._islands = Islands(me, addresses, silent_s, timeout_s, min_islands)
        note_island(self._islands, addresses)
        super().__init__(self._plug(inner, devices, local))
        self._saves = Saves(self._mesh)
        if self._islands.others:
            begin(self._saves)

    def _plug(self, inner: Strategy | None, devices: list[Device], local: LocalSettings | None) -> StrategyExtended:
        self._mesh = IslandMesh(devices[:1], self._islands, Replicas(self._virtual, devices))
        return ElasticExtended(self._mesh)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of islands in the view, or of virtual replicas.

        The former changes when an island dies: a compiled step is traced again for another number.
        """
        return self._mesh.count_in(self._mesh.view)

    @property
    def cluster_resolver(self) -> Any:
        """Resolver that names the islands."""
        return self._resolver

    @property
    def island(self) -> int:
        """This island's rank, which stays its own."""
        return self._islands.me.rank

    @property
    def islands(self) -> tuple[int, ...]:
        """The ranks of the islands that train together now."""
        return tuple(member.rank for member in self._islands.seen_view.members)

    @property
    def view(self) -> int:
        """Number of changes among the islands so far."""
        return self._islands.seen_view.number

    @property
    def committed_steps(self) -> int:
        """Number of steps, reductions and initial values that the islands have committed."""
        return self._islands.committed

    @property
    def outer_optimizer(self) -> Optimizer:
        """The outer optimizer, of islands that train alone: its slots belong into checkpoints.

        It updates copies of the parameters, all of which must be there.

        Raises:
          ArgumentError: islands that take each step together have none.
          VariableError: there is no parameter yet.
        """
        raise ArgumentError("an ElasticStrategy without sync_every has no outer optimizer. HINT: pass sync_every=.")

    def synchronize(self) -> None:
        """Lets islands that train alone meet now, as at the end of training; all call it after the same step.

        Others are together after each step as it is.
        """

    def close(self) -> None:
        """Leaves the other islands, who go on without this one."""
        end(self._saves)
        self._islands.close()

    def reduce(self, reduce_op: ReduceOpLike, value: Any, axis: int | tuple[int, ...] | None) -> Any:
        """Reduces values over the islands, and along `axis` within each; see `Strategy.reduce`.

        Means weigh the islands by their numbers of examples.

        Raises:
          ArgumentError: an operation that is neither SUM nor MEAN.
          ClusterError: the islands have changed since the value was computed.
          ContextError: called inside a replica function.
        """
        op = ReduceOp.parse(reduce_op)
        check_operation(op)
        now = Context.current()
        if now.replica is not None and now.strategy is self:
            raise ContextError("reduce was called in a replica function. HINT: use ReplicaContext.all_reduce.")
        leaves, tree = jax.tree.flatten(value, is_leaf=is_value)
        extended = self._elastic

        def body(_: object) -> list[Any]:
            for leaf in leaves:
                if isinstance(leaf, IslandValue):
                    extended.check_view(leaf)
            return [self._reduced(leaf, op, axis) for leaf in leaves]

        if now.executor.traced:
            return tree.unflatten(body(None))
        return tree.unflatten(self._mesh.step(Step(f"reduce {op.name} of {len(leaves)} along {axis}"), body))

    @property
    def _elastic(self) -> ElasticExtended:
        extended = self.extended
        assert isinstance(extended, ElasticExtended)
        return extended

    def _reduced(self, leaf: Any, op: ReduceOp, axis: int | tuple[int, ...] | None) -> Any:
        if not isinstance(leaf, PerReplica):
            if op is ReduceOp.SUM:
                raise ArgumentError(
                    f"reduce SUM of {leaf!r}, which is one value for all islands. HINT: reduce what strategy.run has "
                    "returned."
                )
            array = jnp.asarray(leaf.read_value() if isinstance(leaf, Variable) else leaf)
            return array if axis is None else jnp.mean(array, axis)
        (array,) = leaf.values
        array, rows = jnp.asarray(array), leaf.rows if isinstance(leaf, IslandValue) else None
        if axis is None:
            return reduced(self._mesh, [array], op, rows)[0]
        axes = (axis,) if isinstance(axis, int) else axis
        total = jnp.sum(array, axes)
        if op is ReduceOp.SUM:
            return reduced(self._mesh, [total], op, rows)[0]
        reduction, kept = Slicing.reduction_of(op), keeping(op, rows)
        count = jnp.float32(math.prod(array.shape[each] for each in axes))
        sums, weight = self._mesh.total(kept([reduction.prepared(total), count]), "a mean along axes", kept)
        return reduction.finish(sums, weight, array.dtype)

    def gather(self, value: Any, axis: int) -> Any:
        """Refuses: islands' arrays of a step that is over may differ in length, and their islands be gone.

        Raises:
          NotImplementedError: always.
        """
        _refuse("gather outside of replica functions", "call jd.get_replica_context().all_gather in the step")

    def run_steps(self, step: Callable[[Any], Any], iterator: Any, n: int, *, steps_per_call: int = 16) -> Any:
        """Refuses: a program is one step.

        Raises:
          NotImplementedError: always.
        """
        _refuse("run_steps", "call the step in a Python loop")

    def experimental_distribute_dataset(self, dataset: Foreign, options: Any = None) -> ElasticDataset:  # type: ignore[override]
        """Lets every island read all batches, each batched by the global batch size, and take its rows.

        All islands must read the same batches in the same order: seed what shuffles.
        """
        from jaxtribute._src.addons.elastic.dataset import ElasticDataset

        return ElasticDataset(super().experimental_distribute_dataset(dataset, options), self._mesh)

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        """Refuses: what an island that dies has read alone would be lost.

        Raises:
          NotImplementedError: always.
        """
        _refuse("distribute_datasets_from_function", "use experimental_distribute_dataset")

    experimental_distribute_datasets_from_function = distribute_datasets_from_function


def _refuse(what: str, remedy: str) -> NoReturn:
    raise NotImplementedError(f"ElasticStrategy has no {what} yet. HINT: {remedy}.")
