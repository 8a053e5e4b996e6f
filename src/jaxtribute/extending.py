"""`jd.extending`: the port of the core, of which strategies of your own and whole add-ons are made.

A strategy is a `jd.Strategy` around a `jd.StrategyExtended`, which says what is placed where: on which devices the
replicas run (a `ReplicaMesh`) and how variables are stored over them (a `Policy`).

The add-ons of the library import public names of `jaxtribute` and the names here, and nothing else of the core; what
the core is to call they register at `points`. The names that only add-ons need may change with a minor version.

Names that have no documentation of their own:

- `points`: the module with the points at which add-ons register: `points.PICTURES.register(...)`.
- `settings`: the module with the checks of arguments: `settings.whole("limit", limit, 1)`.
- `Jaxpr`, `ClosedJaxpr`, `JaxprEqn`, `Var`, `Literal`, `Tracer`: JAX's classes, the same names for all its versions.
- `ELEMENTWISE`: the names of the operations that compute each element from the elements in its place.
- `updating`: the lock that is held while a step gives up variables' arrays and puts new ones in place.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.public import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from jaxtribute._src.core import points, settings
    from jaxtribute._src.core.allocator import tune_allocator
    from jaxtribute._src.core.callers import located
    from jaxtribute._src.core.checkpoint.committing import cluster as saving_cluster
    from jaxtribute._src.core.checkpoint.folder import latest_of_any_name, saves_in
    from jaxtribute._src.core.checkpoint.restoring import read_all
    from jaxtribute._src.core.checkpoint.state import StateAdapter
    from jaxtribute._src.core.checksums import damages as damaged_files
    from jaxtribute._src.core.checksums import mark as checksum_of
    from jaxtribute._src.core.cluster.accelerators import visible_gpus
    from jaxtribute._src.core.cluster.addresses import Address
    from jaxtribute._src.core.cluster.failures import ExitCode
    from jaxtribute._src.core.cluster.roster import Roster
    from jaxtribute._src.core.cluster.runtime import current as current_cluster
    from jaxtribute._src.core.cluster.server import ServerDef
    from jaxtribute._src.core.cluster.spec import task_number
    from jaxtribute._src.core.collectives.in_replica import all_reduce
    from jaxtribute._src.core.collectives.summation import AutoSum, OneDeviceSum, PackedSum, Packs, Summation, TreeSum
    from jaxtribute._src.core.context import Context
    from jaxtribute._src.core.devices import default_devices, described_devices, device_name, resolve_device
    from jaxtribute._src.core.environment import count, parse_json, shown, whole_number
    from jaxtribute._src.core.execution.capture import Capture
    from jaxtribute._src.core.execution.eager import Eager
    from jaxtribute._src.core.execution.executor import Executor
    from jaxtribute._src.core.execution.feeds import Drawn, EndOfData, Feed
    from jaxtribute._src.core.execution.function import Function
    from jaxtribute._src.core.execution.gathers import Gathers
    from jaxtribute._src.core.execution.inference import varying_outputs
    from jaxtribute._src.core.execution.nests import Nests
    from jaxtribute._src.core.execution.overlay import Overlay
    from jaxtribute._src.core.execution.program import Program
    from jaxtribute._src.core.execution.row_gradients import overlaid_rows
    from jaxtribute._src.core.execution.standpoints import InReplica
    from jaxtribute._src.core.execution.traced import TracedProgram, TracedReplica, check_untraced
    from jaxtribute._src.core.folders import Folder
    from jaxtribute._src.core.input.batches import Batch, as_batch, copied, examples_in
    from jaxtribute._src.core.input.grain_tree import exact
    from jaxtribute._src.core.input.placement import BatchPlacer
    from jaxtribute._src.core.input.sources import register as register_source
    from jaxtribute._src.core.input.sources.base import Source
    from jaxtribute._src.core.input.sources.grain_map import MapSource
    from jaxtribute._src.core.input.sources.iterables import CountingStream, IterableSource
    from jaxtribute._src.core.input.splitting import Shard, slice_sizes
    from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Tracer, Var
    from jaxtribute._src.core.jaxprs.flow import Flow
    from jaxtribute._src.core.jaxprs.kinds import ELEMENTWISE
    from jaxtribute._src.core.jaxprs.programs import Programs
    from jaxtribute._src.core.jaxprs.rows import Rows
    from jaxtribute._src.core.libraries import Library
    from jaxtribute._src.core.observers import Kinds, subscribe
    from jaxtribute._src.core.optimizer.parameters import Parameters
    from jaxtribute._src.core.optimizer.slots import Slots, optax_rules
    from jaxtribute._src.core.reading import Disk
    from jaxtribute._src.core.values.mesh import ReplicaMesh
    from jaxtribute._src.core.values.numbers import initial_array, row_ids
    from jaxtribute._src.core.values.operators import ArrayOperators, operand
    from jaxtribute._src.core.values.placing import own
    from jaxtribute._src.core.values.policies.base import Policy, Update
    from jaxtribute._src.core.values.policies.central import CentralPolicy
    from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy
    from jaxtribute._src.core.values.policies.on_read import OnReadPolicy
    from jaxtribute._src.core.values.policies.plain import PlainPolicy
    from jaxtribute._src.core.values.policies.sharded import ShardedPolicy
    from jaxtribute._src.core.values.scatter import Scatter
    from jaxtribute._src.core.values.slices import Cut
    from jaxtribute._src.core.values.stored import Lease, updating

_LAZY = {
    "Address": "core.cluster.addresses",
    "ArrayOperators": "core.values.operators",
    "AutoSum": "core.collectives.summation",
    "Batch": "core.input.batches",
    "BatchPlacer": "core.input.placement",
    "Capture": "core.execution.capture",
    "CentralPolicy": "core.values.policies.central",
    "ClosedJaxpr": "core.jaxprs.core",
    "Context": "core.context",
    "CountingStream": "core.input.sources.iterables",
    "Cut": "core.values.slices",
    "Disk": "core.reading",
    "Drawn": "core.execution.feeds",
    "ELEMENTWISE": "core.jaxprs.kinds",
    "Eager": "core.execution.eager",
    "EndOfData": "core.execution.feeds",
    "Executor": "core.execution.executor",
    "ExitCode": "core.cluster.failures",
    "Feed": "core.execution.feeds",
    "Flow": "core.jaxprs.flow",
    "Folder": "core.folders",
    "Function": "core.execution.function",
    "Gathers": "core.execution.gathers",
    "InReplica": "core.execution.standpoints",
    "IterableSource": "core.input.sources.iterables",
    "Jaxpr": "core.jaxprs.core",
    "JaxprEqn": "core.jaxprs.core",
    "Kinds": "core.observers",
    "Lease": "core.values.stored",
    "Library": "core.libraries",
    "Literal": "core.jaxprs.core",
    "MapSource": "core.input.sources.grain_map",
    "MirroredPolicy": "core.values.policies.mirrored",
    "Nests": "core.execution.nests",
    "OnReadPolicy": "core.values.policies.on_read",
    "OneDeviceSum": "core.collectives.summation",
    "Overlay": "core.execution.overlay",
    "PackedSum": "core.collectives.summation",
    "Packs": "core.collectives.summation",
    "Parameters": "core.optimizer.parameters",
    "PlainPolicy": "core.values.policies.plain",
    "Policy": "core.values.policies.base",
    "Program": "core.execution.program",
    "Programs": "core.jaxprs.programs",
    "ReplicaMesh": "core.values.mesh",
    "Roster": "core.cluster.roster",
    "Rows": "core.jaxprs.rows",
    "Scatter": "core.values.scatter",
    "ServerDef": "core.cluster.server",
    "Shard": "core.input.splitting",
    "ShardedPolicy": "core.values.policies.sharded",
    "Slots": "core.optimizer.slots",
    "Source": "core.input.sources.base",
    "StateAdapter": "core.checkpoint.state",
    "Summation": "core.collectives.summation",
    "TracedProgram": "core.execution.traced",
    "TracedReplica": "core.execution.traced",
    "Tracer": "core.jaxprs.core",
    "TreeSum": "core.collectives.summation",
    "Update": "core.values.policies.base",
    "Var": "core.jaxprs.core",
    "all_reduce": "core.collectives.in_replica",
    "as_batch": "core.input.batches",
    "check_untraced": "core.execution.traced",
    "checksum_of": "core.checksums:mark",
    "copied": "core.input.batches",
    "count": "core.environment",
    "current_cluster": "core.cluster.runtime:current",
    "damaged_files": "core.checksums:damages",
    "default_devices": "core.devices",
    "described_devices": "core.devices",
    "device_name": "core.devices",
    "exact": "core.input.grain_tree",
    "examples_in": "core.input.batches",
    "initial_array": "core.values.numbers",
    "latest_of_any_name": "core.checkpoint.folder",
    "located": "core.callers",
    "operand": "core.values.operators",
    "optax_rules": "core.optimizer.slots",
    "overlaid_rows": "core.execution.row_gradients",
    "own": "core.values.placing",
    "parse_json": "core.environment",
    "points": "core.points:",
    "read_all": "core.checkpoint.restoring",
    "register_source": "core.input.sources:register",
    "resolve_device": "core.devices",
    "row_ids": "core.values.numbers",
    "saves_in": "core.checkpoint.folder",
    "saving_cluster": "core.checkpoint.committing:cluster",
    "settings": "core.settings:",
    "shown": "core.environment",
    "slice_sizes": "core.input.splitting",
    "subscribe": "core.observers",
    "task_number": "core.cluster.spec",
    "tune_allocator": "core.allocator",
    "updating": "core.values.stored",
    "varying_outputs": "core.execution.inference",
    "visible_gpus": "core.cluster.accelerators",
    "whole_number": "core.environment",
}

__all__ = [
    "ELEMENTWISE",
    "Address",
    "ArrayOperators",
    "AutoSum",
    "Batch",
    "BatchPlacer",
    "Capture",
    "CentralPolicy",
    "ClosedJaxpr",
    "Context",
    "CountingStream",
    "Cut",
    "Disk",
    "Drawn",
    "Eager",
    "EndOfData",
    "Executor",
    "ExitCode",
    "Feed",
    "Flow",
    "Folder",
    "Function",
    "Gathers",
    "InReplica",
    "IterableSource",
    "Jaxpr",
    "JaxprEqn",
    "Kinds",
    "Lease",
    "Library",
    "Literal",
    "MapSource",
    "MirroredPolicy",
    "Nests",
    "OnReadPolicy",
    "OneDeviceSum",
    "Overlay",
    "PackedSum",
    "Packs",
    "Parameters",
    "PlainPolicy",
    "Policy",
    "Program",
    "Programs",
    "ReplicaMesh",
    "Roster",
    "Rows",
    "Scatter",
    "ServerDef",
    "Shard",
    "ShardedPolicy",
    "Slots",
    "Source",
    "StateAdapter",
    "Summation",
    "TracedProgram",
    "TracedReplica",
    "Tracer",
    "TreeSum",
    "Update",
    "Var",
    "all_reduce",
    "as_batch",
    "check_untraced",
    "checksum_of",
    "copied",
    "count",
    "current_cluster",
    "damaged_files",
    "default_devices",
    "described_devices",
    "device_name",
    "exact",
    "examples_in",
    "initial_array",
    "latest_of_any_name",
    "located",
    "operand",
    "optax_rules",
    "overlaid_rows",
    "own",
    "parse_json",
    "points",
    "read_all",
    "register_source",
    "resolve_device",
    "row_ids",
    "saves_in",
    "saving_cluster",
    "settings",
    "shown",
    "slice_sizes",
    "subscribe",
    "task_number",
    "tune_allocator",
    "updating",
    "varying_outputs",
    "visible_gpus",
    "whole_number",
]

_lazy_names(__name__, _LAZY)
