"""`jd.extending`: the port of the core, of which strategies of your own and whole add-ons are made.

A strategy is a `jd.Strategy` around a `jd.StrategyExtended`, which says what is placed where: on which devices the
replicas run (a `ReplicaMesh`) and how variables are stored over them (a `Policy`).

The add-ons of the library import public names of `jaxtribute` and the names here, and nothing else of the core; what
the core is to call they register at `points`. The names that only add-ons need may change with a minor version.

Names that have no documentation of their own:

- `points`: the module with the points at which add-ons register: `points.PICTURES.register(...)`.
- `settings`: the module with the checks of arguments: `settings.whole("limit", limit, 1)`.
- `Jaxpr`, `JaxprEqn`, `Var`, `Literal`, `Tracer`: JAX's classes, the same names for all its versions.
- `updating`: the lock that is held while a step gives up variables' arrays and puts new ones in place.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.public import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from jaxtribute._src.core import points as points
    from jaxtribute._src.core import settings as settings
    from jaxtribute._src.core.allocator import tune_allocator as tune_allocator
    from jaxtribute._src.core.callers import Callers as Callers
    from jaxtribute._src.core.checkpoint.committing import saving_cluster as saving_cluster
    from jaxtribute._src.core.checkpoint.folder import latest_of_any_name as latest_of_any_name
    from jaxtribute._src.core.checkpoint.folder import saves_in as saves_in
    from jaxtribute._src.core.checkpoint.owner import Owner as Owner
    from jaxtribute._src.core.checkpoint.restoring import read_all as read_all
    from jaxtribute._src.core.checkpoint.state import StateAdapter as StateAdapter
    from jaxtribute._src.core.checksums import Disk as Disk
    from jaxtribute._src.core.cluster.accelerators import visible_gpus as visible_gpus
    from jaxtribute._src.core.cluster.addresses import Address as Address
    from jaxtribute._src.core.cluster.failures import ExitCode as ExitCode
    from jaxtribute._src.core.cluster.roster import Roster as Roster
    from jaxtribute._src.core.cluster.runtime import Cluster as Cluster
    from jaxtribute._src.core.cluster.spec import task_number as task_number
    from jaxtribute._src.core.collectives.in_replica import all_reduce as all_reduce
    from jaxtribute._src.core.collectives.summation import AutoSum as AutoSum
    from jaxtribute._src.core.collectives.summation import OneDeviceSum as OneDeviceSum
    from jaxtribute._src.core.collectives.summation import PackedSum as PackedSum
    from jaxtribute._src.core.collectives.summation import Packs as Packs
    from jaxtribute._src.core.collectives.summation import Summation as Summation
    from jaxtribute._src.core.collectives.summation import TreeSum as TreeSum
    from jaxtribute._src.core.context import Context as Context
    from jaxtribute._src.core.devices import default_devices as default_devices
    from jaxtribute._src.core.devices import described_devices as described_devices
    from jaxtribute._src.core.devices import device_name as device_name
    from jaxtribute._src.core.devices import resolve_device as resolve_device
    from jaxtribute._src.core.environment import count as count
    from jaxtribute._src.core.environment import shown as shown
    from jaxtribute._src.core.environment import whole_number as whole_number
    from jaxtribute._src.core.execution.budgets import within_budget as within_budget
    from jaxtribute._src.core.execution.capture import Capture as Capture
    from jaxtribute._src.core.execution.capture import varying_outputs as varying_outputs
    from jaxtribute._src.core.execution.eager import Eager as Eager
    from jaxtribute._src.core.execution.eager import EagerStep as EagerStep
    from jaxtribute._src.core.execution.executor import Executor as Executor
    from jaxtribute._src.core.execution.feeds import Drawn as Drawn
    from jaxtribute._src.core.execution.feeds import EndOfData as EndOfData
    from jaxtribute._src.core.execution.feeds import Feed as Feed
    from jaxtribute._src.core.execution.function import Function as Function
    from jaxtribute._src.core.execution.gathers import Gathers as Gathers
    from jaxtribute._src.core.execution.nests import Nests as Nests
    from jaxtribute._src.core.execution.overlay import Overlay as Overlay
    from jaxtribute._src.core.execution.program import Program as Program
    from jaxtribute._src.core.execution.row_gradients import overlaid_rows as overlaid_rows
    from jaxtribute._src.core.execution.standpoints import InReplica as InReplica
    from jaxtribute._src.core.execution.standpoints import seen_from as seen_from
    from jaxtribute._src.core.execution.traced import TracedProgram as TracedProgram
    from jaxtribute._src.core.execution.traced import TracedReplica as TracedReplica
    from jaxtribute._src.core.execution.traced import check_untraced as check_untraced
    from jaxtribute._src.core.folders import Folder as Folder
    from jaxtribute._src.core.input.batches import Batch as Batch
    from jaxtribute._src.core.input.batches import as_batch as as_batch
    from jaxtribute._src.core.input.batches import copied as copied
    from jaxtribute._src.core.input.grain_tree import exact as exact
    from jaxtribute._src.core.input.placement import BatchPlacer as BatchPlacer
    from jaxtribute._src.core.input.sources import register_source as register_source
    from jaxtribute._src.core.input.sources.base import Source as Source
    from jaxtribute._src.core.input.sources.grain_map import MapSource as MapSource
    from jaxtribute._src.core.input.sources.iterables import CountingStream as CountingStream
    from jaxtribute._src.core.input.sources.iterables import IterableSource as IterableSource
    from jaxtribute._src.core.input.splitting import Shard as Shard
    from jaxtribute._src.core.input.splitting import slice_sizes as slice_sizes
    from jaxtribute._src.core.jaxprs.core import Jaxpr as Jaxpr
    from jaxtribute._src.core.jaxprs.core import JaxprEqn as JaxprEqn
    from jaxtribute._src.core.jaxprs.core import Literal as Literal
    from jaxtribute._src.core.jaxprs.core import Tracer as Tracer
    from jaxtribute._src.core.jaxprs.core import Var as Var
    from jaxtribute._src.core.jaxprs.flow import Flow as Flow
    from jaxtribute._src.core.jaxprs.programs import Programs as Programs
    from jaxtribute._src.core.libraries import Library as Library
    from jaxtribute._src.core.observers import Kinds as Kinds
    from jaxtribute._src.core.observers import subscribe as subscribe
    from jaxtribute._src.core.optimizer.parameters import Parameters as Parameters
    from jaxtribute._src.core.optimizer.slots import Slots as Slots
    from jaxtribute._src.core.optimizer.slots import optax_rules as optax_rules
    from jaxtribute._src.core.optimizer.updates import Slicing as Slicing
    from jaxtribute._src.core.strategies.groups import Groups as Groups
    from jaxtribute._src.core.strategies.groups import ProgramLayout as ProgramLayout
    from jaxtribute._src.core.strategies.multi_worker import MultiWorkerExtended as MultiWorkerExtended
    from jaxtribute._src.core.values.mesh import ReplicaMesh as ReplicaMesh
    from jaxtribute._src.core.values.numbers import initial_array as initial_array
    from jaxtribute._src.core.values.numbers import row_ids as row_ids
    from jaxtribute._src.core.values.operators import ArrayOperators as ArrayOperators
    from jaxtribute._src.core.values.operators import operand as operand
    from jaxtribute._src.core.values.placing import own as own
    from jaxtribute._src.core.values.policies.base import Policy as Policy
    from jaxtribute._src.core.values.policies.base import Update as Update
    from jaxtribute._src.core.values.policies.central import CentralPolicy as CentralPolicy
    from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy as MirroredPolicy
    from jaxtribute._src.core.values.policies.on_read import OnReadPolicy as OnReadPolicy
    from jaxtribute._src.core.values.policies.plain import PlainPolicy as PlainPolicy
    from jaxtribute._src.core.values.policies.sharded import ShardedPolicy as ShardedPolicy
    from jaxtribute._src.core.values.scatter import Scatter as Scatter
    from jaxtribute._src.core.values.slices import Cut as Cut
    from jaxtribute._src.core.values.stored import Lease as Lease
    from jaxtribute._src.core.values.stored import updating as updating
    from jaxtribute._src.json_reading import parse_json as parse_json

_lazy_names(__name__)
