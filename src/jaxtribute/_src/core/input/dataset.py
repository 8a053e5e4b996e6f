"""`DistributedDataset`, and the two ways to make one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

from jaxtribute._src.core.input.agreement import Agreements, StepAgreement, StepRows, alone
from jaxtribute._src.core.input.batches import replica_spec
from jaxtribute._src.core.input.explanation import Explanation
from jaxtribute._src.core.input.iterator import DistributedIterator
from jaxtribute._src.core.input.options import InputContext, InputOptions, InputReplicationMode
from jaxtribute._src.core.input.placement import Placement, check_shard, to_devices, to_host
from jaxtribute._src.core.input.policy import Sharding, resolve
from jaxtribute._src.core.input.sources import Source, adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute._src.core.input.worker_steps import FunctionSteps, GlobalSteps, LocalSteps, WorkerSteps
from jaxtribute._src.core.points import FIRST_BATCHES, PICTURES
from jaxtribute._src.core.types import E, Foreign, Nest
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import InputError, UnsupportedError

S = TypeVar("S")


class DistributedDataset(Generic[E]):
    """A dataset whose elements are spread over the replicas of a strategy.

    Iterate over it with `for`, or with `iter` and `next`. Elements are trees with `PerReplica` leaves, or with plain
    arrays for a strategy of one replica.

    Examples:
      >>> strategy = jd.MirroredStrategy(2)
      >>> rows = strategy.experimental_make_numpy_dataset(np.arange(6))
      >>> for batch in strategy.experimental_distribute_dataset(rows.batch(4)):
      ...     print([part.tolist() for part in batch.values])
      [[0, 1], [2, 3]]
      [[4], [5]]

    Source: `tf.distribute.DistributedDataset`.
    """

    def __init__(self, mesh: ReplicaMesh, shard: Shard, options: InputOptions, agree: Agreements | None) -> None:
        if shard.workers > 1 and agree is None:
            # It raises at the first step and not here: an explanation and the shapes of elements need no agreement.
            agree = _nobody
        self._mesh = mesh
        self._shard = shard
        self._options = options
        self._agree = agree or alone
        self._passes = 0
        self._reshuffles = True

    def __iter__(self) -> DistributedIterator[E]:
        return DistributedIterator(
            self._pass,
            self._passes if self._reshuffles else 0,
            self._placement,
            lambda: self.element_spec,
            self._shard,
            buffer=self._options.experimental_per_replica_buffer_size,
        )

    def __len__(self) -> int:
        """The number of batches in a pass.

        Raises:
          TypeError: it is not known before one.
        """
        batches = self._batches()
        if batches is None:
            raise TypeError(
                f"how many batches a pass over this {self.source.name} has is not known before its end. HINT: ask the "
                "dataset before it is distributed, or count in the loop."
            )
        return batches

    def __bool__(self) -> bool:
        return True  # whatever its length, as `tf.data.Dataset`

    def _batches(self) -> int | None:
        return None

    @cached_property
    def _placement(self) -> Placement:
        # One for all passes, as it warns once of numbers that do not fit.
        return (to_devices if self._options.experimental_fetch_to_device else to_host)(self._mesh)

    def _pass(self, epoch: int) -> WorkerSteps:
        """The steps of a pass, from its number, which is another one than counted if a position is restored."""
        self._passes = epoch + 1
        return self._steps(epoch)

    def _steps(self, epoch: int) -> WorkerSteps:
        raise NotImplementedError

    def in_one_order(self) -> Self:
        """Gives every pass the order of the first; for libraries that know datasets so."""
        self._reshuffles = False
        return self

    @property
    def source(self) -> Source:
        """The dataset that this worker reads, before it is cut for the replicas."""
        raise NotImplementedError

    @cached_property
    def element_spec(self) -> Nest:
        """Shapes and dtypes of an element, usable in `jd.function(input_signature=[...])`.

        The tree has the structure of an element, with a `PerReplicaSpec` for each `PerReplica` value, or a
        `jd.ArraySpec` for each array if there is one replica. A dimension that varies is None: the rows,
        unless the dataset drops its remainder and the replicas divide its batch. It may read one element.

        Raises:
          InputError: if the dataset is empty, so that nothing is known of its elements.

        Source: `tf.distribute.DistributedDataset.element_spec`.
        """
        return self._element_spec()

    def _element_spec(self) -> Nest:
        raise NotImplementedError

    def reduce(self, initial_state: S, reduce_func: Callable[[S, E], S]) -> S:
        """Combines all elements: `state = reduce_func(state, element)`, from `initial_state` on.

        Source: `tf.distribute.DistributedDataset.reduce`.
        """
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state

    def explanation(self) -> Explanation:
        """Report of each worker's files or rows, of overlaps and leftovers, made without reading a batch."""
        raise NotImplementedError

    def explain(self) -> Explanation:
        """Tells what each worker reads: prints `explanation()` as a table, and returns it."""
        result = self.explanation()
        result.print()
        return result


def _nobody() -> StepAgreement:
    def agree(step: int, rows: StepRows, /) -> Sequence[StepRows]:
        raise InputError(
            f"step {step} ({rows} rows here): several workers with data of their own must agree on the end of the "
            "data. HINT: the strategy passes agree= to distribute_dataset; see jaxtribute._src.core.input.agreement."
        )

    return agree


class _Rebatched(DistributedDataset[Any]):
    """A dataset batched by the global batch size, cut for the replicas."""

    def __init__(
        self, source: Source, mesh: ReplicaMesh, shard: Shard, options: InputOptions, agree: Agreements | None
    ) -> None:
        super().__init__(mesh, shard, options, agree)
        self._original = source
        self._sharding: Sharding = resolve(source, options, shard)

    def _steps(self, epoch: int) -> WorkerSteps:
        source, shard = self._sharding.source.at_epoch(epoch), self._shard
        if self._sharding.kind == "global":
            # An exchange of all workers before each step costs time, and is left out if nobody can end early.
            certain, stream = shard.workers == 1 or source.knows_end(), source.open(shard)
            for compared in FIRST_BATCHES.entries():
                stream = compared(stream, source, self._agree)
            return GlobalSteps(stream, shard, None if certain else self._agree())
        # Opened whole: the source is this worker's own part already.
        size = self._original.batch_size() or 0
        return LocalSteps(source.open(Shard()), shard, self._agree(), lambda: self._known_spec, size)

    def _batches(self) -> int | None:
        length = self._sharding.source.length() if self._sharding.kind == "global" else None
        return length and length[0]

    @property
    def source(self) -> Source:
        """The dataset that this worker reads, before it is cut for the replicas."""
        return self._original

    @cached_property
    def _known_spec(self) -> Nest | None:
        return self._original.spec()

    @property
    def _spec_of_source(self) -> Nest:
        spec = self._known_spec
        if spec is None:
            raise InputError(
                f"this {self._original.name} is empty, so nothing is known of its elements. "
                "HINT: give it at least one batch."
            )
        return spec

    def _element_spec(self) -> Nest:
        return replica_spec(self.source.general(self._spec_of_source), self._shard, split=True)

    def explanation(self) -> Explanation:
        how = self._sharding
        return PICTURES.last().shares(self._original, self._shard, (how.requested, how.policy), how.reason)


class _FromFunction(DistributedDataset[Any]):
    """Datasets that a function makes, one for this worker or one for each of its replicas."""

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Any],
        mesh: ReplicaMesh,
        shard: Shard,
        options: InputOptions,
        agree: Agreements | None,
    ) -> None:
        super().__init__(mesh, shard, options, agree)
        # Called once: each pass opens the same datasets again.
        self._sources = [adapt(dataset_fn(context)) for context in self._contexts()]

    def _contexts(self) -> list[InputContext]:
        shard = self._shard
        if self._options.experimental_replication_mode is InputReplicationMode.PER_WORKER:
            return [InputContext(shard.workers, shard.worker, shard.replicas)]
        ids = range(shard.first, shard.first + shard.local)
        return [InputContext(shard.replicas, replica, shard.replicas) for replica in ids]

    def _steps(self, epoch: int) -> WorkerSteps:
        streams = [source.at_epoch(epoch).open(Shard()) for source in self._sources]
        # As TensorFlow: over several workers a step is kept for those who have data, whatever its shape.
        static = self._shard.workers == 1 and all(source.static_rows() for source in self._sources)
        return FunctionSteps(streams, self._shard, self._agree(), lambda: self._known_spec, static=static)

    @property
    def source(self) -> Source:
        """The dataset that the function gave, or the first replica's of several."""
        return self._sources[0]

    @cached_property
    def _known_spec(self) -> Nest | None:
        return next((spec for source in self._sources if (spec := source.spec()) is not None), None)

    @property
    def _spec_of_source(self) -> Nest:
        if self._known_spec is not None:
            return self._known_spec
        raise InputError(
            f"the dataset function gave {len(self._sources)} empty dataset(s) to worker {self._shard.worker}, so "
            "nothing is known of the elements. HINT: give each worker at least one batch."
        )

    def _element_spec(self) -> Nest:
        return replica_spec(self.source.general(self._spec_of_source), self._shard, split=False)

    def explanation(self) -> Explanation:
        """Raises an error: what a function makes is known to it alone."""
        raise InputError(
            f"worker {self._shard.worker} reads what its dataset function gave it ("
            + ", ".join(source.name for source in self._sources)
            + "), and nothing is known of the others. HINT: explain() is for experimental_distribute_dataset."
        )


def _shard_of(mesh: ReplicaMesh, context: InputContext) -> Shard:
    shard = Shard(context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync)
    check_shard(mesh, shard)
    return shard


def distribute_dataset(
    dataset: Foreign,
    mesh: ReplicaMesh,
    options: InputOptions | None,
    context: InputContext,
    agree: Agreements | None = None,
) -> DistributedDataset[Any]:
    """Spreads a dataset that is batched by the global batch size over the replicas.

    Args:
      dataset: a Grain dataset or loader, a `tf.data.Dataset`, a PyTorch loader, arrays, or an iterable of batches.
      mesh: the replicas' devices.
      options: None for the defaults.
      context: this worker's place among the workers.
      agree: how the workers tell each other who has data left; needed for more than one worker. All workers must make
        their iterators in the same order.

    Raises:
      InputError: if the options do not fit, or the dataset cannot be sharded as asked.
      ArgumentTypeError: if it is nothing that can be distributed.

    Source: `tf.distribute.Strategy.experimental_distribute_dataset`.
    """
    options = options or InputOptions()
    if options.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
        raise UnsupportedError(
            "InputReplicationMode.PER_REPLICA is for datasets made by a function, and this is a "
            f"{type(dataset).__name__}. HINT: use strategy.distribute_datasets_from_function."
        )
    _check_placement(options)
    return _Rebatched(adapt(dataset), mesh, _shard_of(mesh, context), options, agree)


def distribute_from_function(
    dataset_fn: Callable[[InputContext], Any],
    mesh: ReplicaMesh,
    options: InputOptions | None,
    context: InputContext,
    agree: Agreements | None = None,
) -> DistributedDataset[Any]:
    """Spreads datasets that are batched by the replicas' batch size, and sharded, by the function that makes them.

    Args:
      dataset_fn: takes an `InputContext`, returns a dataset; called once, or once for each local replica under
        `InputReplicationMode.PER_REPLICA`.
      mesh: the replicas' devices.
      options: None for the defaults.
      context: this worker's place among the workers.
      agree: how the workers tell each other who has data left; needed for more than one worker. All workers must make
        their iterators in the same order.

    Raises:
      InputError: if the options do not fit.

    Source: `tf.distribute.Strategy.distribute_datasets_from_function`.
    """
    options = options or InputOptions()
    _check_placement(options)
    return _FromFunction(dataset_fn, mesh, _shard_of(mesh, context), options, agree)


def _check_placement(options: InputOptions) -> None:
    if not options.experimental_place_dataset_on_device:
        return
    mode = InputReplicationMode(options.experimental_replication_mode)
    if mode is not InputReplicationMode.PER_REPLICA:
        raise InputError(
            "When `experimental_place_dataset_on_device` is set for dataset placement, you must also specify "
            f"`PER_REPLICA` for the replication mode, which is {mode.name}. "
            "HINT: leave it at False."
        )
    if options.experimental_fetch_to_device:
        raise InputError(
            "`experimental_place_dataset_on_device` can not be set to True when experimental_fetch_to_device is "
            f"{options.experimental_fetch_to_device} and replication mode is set to `PER_REPLICA`. "
            "HINT: leave it at False."
        )
