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
    from jaxtribute._src import points, settings
    from jaxtribute._src.allocator import tune_allocator
    from jaxtribute._src.callers import located
    from jaxtribute._src.checkpoint.committing import cluster as saving_cluster
    from jaxtribute._src.checkpoint.folder import latest_of_any_name, saves_in
    from jaxtribute._src.checkpoint.restoring import read_all
    from jaxtribute._src.checkpoint.state import StateAdapter
    from jaxtribute._src.checksums import damages as damaged_files
    from jaxtribute._src.checksums import mark as checksum_of
    from jaxtribute._src.cluster.accelerators import visible_gpus
    from jaxtribute._src.cluster.addresses import Address
    from jaxtribute._src.cluster.failures import ExitCode
    from jaxtribute._src.cluster.roster import Roster
    from jaxtribute._src.cluster.runtime import current as current_cluster
    from jaxtribute._src.cluster.server import ServerDef
    from jaxtribute._src.cluster.spec import task_number
    from jaxtribute._src.collectives.in_replica import all_reduce
    from jaxtribute._src.collectives.summation import AutoSum, OneDeviceSum, PackedSum, Packs, Summation, TreeSum
    from jaxtribute._src.context import Context
    from jaxtribute._src.devices import default_devices, described_devices, device_name, resolve_device
    from jaxtribute._src.environment import count, parse_json, shown, whole_number
    from jaxtribute._src.execution.capture import Capture
    from jaxtribute._src.execution.eager import Eager
    from jaxtribute._src.execution.executor import Executor
    from jaxtribute._src.execution.feeds import Drawn, EndOfData, Feed
    from jaxtribute._src.execution.function import Function
    from jaxtribute._src.execution.gathers import Gathers
    from jaxtribute._src.execution.inference import varying_outputs
    from jaxtribute._src.execution.nests import Nests
    from jaxtribute._src.execution.overlay import Overlay
    from jaxtribute._src.execution.program import Program
    from jaxtribute._src.execution.row_gradients import overlaid_rows
    from jaxtribute._src.execution.standpoints import InReplica
    from jaxtribute._src.execution.traced import TracedProgram, TracedReplica, check_untraced
    from jaxtribute._src.folders import Folder
    from jaxtribute._src.input.batches import Batch, as_batch, copied, examples_in
    from jaxtribute._src.input.grain_tree import exact
    from jaxtribute._src.input.placement import BatchPlacer
    from jaxtribute._src.input.sources import register as register_source
    from jaxtribute._src.input.sources.base import Source
    from jaxtribute._src.input.sources.grain_map import MapSource
    from jaxtribute._src.input.sources.iterables import CountingStream, IterableSource
    from jaxtribute._src.input.splitting import Shard, slice_sizes
    from jaxtribute._src.jaxprs.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Tracer, Var
    from jaxtribute._src.jaxprs.flow import Flow
    from jaxtribute._src.jaxprs.kinds import ELEMENTWISE
    from jaxtribute._src.jaxprs.programs import Programs
    from jaxtribute._src.jaxprs.rows import Rows
    from jaxtribute._src.libraries import Library
    from jaxtribute._src.observers import Kinds, subscribe
    from jaxtribute._src.optimizer.parameters import Parameters
    from jaxtribute._src.optimizer.slots import Slots, optax_rules
    from jaxtribute._src.reading import Disk
    from jaxtribute._src.values.mesh import ReplicaMesh
    from jaxtribute._src.values.numbers import initial_array, row_ids
    from jaxtribute._src.values.operators import ArrayOperators, operand
    from jaxtribute._src.values.placing import own
    from jaxtribute._src.values.policies.base import Policy, Update
    from jaxtribute._src.values.policies.central import CentralPolicy
    from jaxtribute._src.values.policies.mirrored import MirroredPolicy
    from jaxtribute._src.values.policies.on_read import OnReadPolicy
    from jaxtribute._src.values.policies.plain import PlainPolicy
    from jaxtribute._src.values.policies.sharded import ShardedPolicy
    from jaxtribute._src.values.scatter import Scatter
    from jaxtribute._src.values.slices import Cut
    from jaxtribute._src.values.stored import Lease, updating

_LAZY = {
    "Address": "cluster.addresses",
    "ArrayOperators": "values.operators",
    "AutoSum": "collectives.summation",
    "Batch": "input.batches",
    "BatchPlacer": "input.placement",
    "Capture": "execution.capture",
    "CentralPolicy": "values.policies.central",
    "ClosedJaxpr": "jaxprs.core",
    "Context": "context",
    "CountingStream": "input.sources.iterables",
    "Cut": "values.slices",
    "Disk": "reading",
    "Drawn": "execution.feeds",
    "ELEMENTWISE": "jaxprs.kinds",
    "Eager": "execution.eager",
    "EndOfData": "execution.feeds",
    "Executor": "execution.executor",
    "ExitCode": "cluster.failures",
    "Feed": "execution.feeds",
    "Flow": "jaxprs.flow",
    "Folder": "folders",
    "Function": "execution.function",
    "Gathers": "execution.gathers",
    "InReplica": "execution.standpoints",
    "IterableSource": "input.sources.iterables",
    "Jaxpr": "jaxprs.core",
    "JaxprEqn": "jaxprs.core",
    "Kinds": "observers",
    "Lease": "values.stored",
    "Library": "libraries",
    "Literal": "jaxprs.core",
    "MapSource": "input.sources.grain_map",
    "MirroredPolicy": "values.policies.mirrored",
    "Nests": "execution.nests",
    "OnReadPolicy": "values.policies.on_read",
    "OneDeviceSum": "collectives.summation",
    "Overlay": "execution.overlay",
    "PackedSum": "collectives.summation",
    "Packs": "collectives.summation",
    "Parameters": "optimizer.parameters",
    "PlainPolicy": "values.policies.plain",
    "Policy": "values.policies.base",
    "Program": "execution.program",
    "Programs": "jaxprs.programs",
    "ReplicaMesh": "values.mesh",
    "Roster": "cluster.roster",
    "Rows": "jaxprs.rows",
    "Scatter": "values.scatter",
    "ServerDef": "cluster.server",
    "Shard": "input.splitting",
    "ShardedPolicy": "values.policies.sharded",
    "Slots": "optimizer.slots",
    "Source": "input.sources.base",
    "StateAdapter": "checkpoint.state",
    "Summation": "collectives.summation",
    "TracedProgram": "execution.traced",
    "TracedReplica": "execution.traced",
    "Tracer": "jaxprs.core",
    "TreeSum": "collectives.summation",
    "Update": "values.policies.base",
    "Var": "jaxprs.core",
    "all_reduce": "collectives.in_replica",
    "as_batch": "input.batches",
    "check_untraced": "execution.traced",
    "checksum_of": "checksums:mark",
    "copied": "input.batches",
    "count": "environment",
    "current_cluster": "cluster.runtime:current",
    "damaged_files": "checksums:damages",
    "default_devices": "devices",
    "described_devices": "devices",
    "device_name": "devices",
    "exact": "input.grain_tree",
    "examples_in": "input.batches",
    "initial_array": "values.numbers",
    "latest_of_any_name": "checkpoint.folder",
    "located": "callers",
    "operand": "values.operators",
    "optax_rules": "optimizer.slots",
    "overlaid_rows": "execution.row_gradients",
    "own": "values.placing",
    "parse_json": "environment",
    "points": "points:",
    "read_all": "checkpoint.restoring",
    "register_source": "input.sources:register",
    "resolve_device": "devices",
    "row_ids": "values.numbers",
    "saves_in": "checkpoint.folder",
    "saving_cluster": "checkpoint.committing:cluster",
    "settings": "settings:",
    "shown": "environment",
    "slice_sizes": "input.splitting",
    "subscribe": "observers",
    "task_number": "cluster.spec",
    "tune_allocator": "allocator",
    "updating": "values.stored",
    "varying_outputs": "execution.inference",
    "visible_gpus": "cluster.accelerators",
    "whole_number": "environment",
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

__getattr__, __dir__ = _lazy_names(__name__, _LAZY)
