"""Wrong settings are refused where they are written, with one of the library's errors and a hint.

What is wrong for a parameter follows from its annotation: a whole number is no float, no bool, no string and not
negative; a flag is True or False; and so on. The table only says how to call each function rightly.
"""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportCallIssue=false

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.testing.runner import MultiProcessRunner
from jaxtribute._src.core.execution.function import Function
from replicas import mirrored

NAN = float("nan")
WRONG: dict[str, list[Any]] = {
    "int": [-1, 1.5, 2.0, NAN, "3", True, [1], b"1", np.float32(2)],
    "float": [-1, -0.5, NAN, "5", True, [1.0]],
    "bool": ["no", 1, 0, []],
    "str": [3, b"name", ["name"], 1.5],
    "Callable": [3, "function", [1]],
    "VariableSynchronization": ["on_reed", 3, 1.0, True],
    "VariableAggregation": ["average", 1, True],
    "InputReplicationMode": ["PER_HOST", 1, True],
    "AutoShardPolicy": ["ROWS", 1.5, True],
    "CommunicationImplementation": ["GLOO", 1, True],
    "KubernetesExecutableLocation": ["INSIDE", 1, True],
    "ReduceOp": ["MAX", 1],
    "devices": ["CPU:0", 99, -1, True, 1.5, [3], ["CPU:77"], ["nonsense"], [None]],
    "resolver": [5, "worker", {}],
}
"""By its annotation, what a parameter cannot be."""


FROM_ONE = {
    *(
        "accumulate_steps",
        "bytes_per_string",
        "checkpoint_interval",
        "compute_devices",
        "devices",
        "devices_per_replica",
        "every",
        "limit",
    ),
    *("global_batch_size", "max_evaluations", "max_shard_bytes", "max_shards", "max_to_keep", "min_shard_bytes", "n"),
    *(
        "num_input_pipelines",
        "num_replicas",
        "num_replicas_in_sync",
        "num_shards",
        "period",
        "steps_per_call",
        "workers",
    ),
}
"""Whole numbers that cannot be 0."""


def given(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return function, args, kwargs


def variable() -> Any:
    return jd.Variable(jnp.ones(2))


SPEC = jd.ClusterSpec({"worker": ["host0:2222", "host1:2222"]})
TPUS = jd.experimental.Topology(jax.devices()[:2])
SLURM = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}

TABLE: dict[str, Callable[[Path], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "MirroredStrategy": lambda _: given(jd.MirroredStrategy),
    "LayoutMap": lambda _: given(jd.LayoutMap, {"w": ("model",)}),
    "with_layout": lambda _: given(jd.with_layout, jnp.ones(2), ("model",)),
    "experimental.Topology": lambda _: given(jd.experimental.Topology, devices=jax.devices()[:2]),
    "experimental.DeviceAssignment.build": lambda _: given(jd.experimental.DeviceAssignment.build, TPUS),
    "OneDeviceStrategy": lambda _: given(jd.OneDeviceStrategy, device="CPU:0"),
    "FullyShardedStrategy": lambda _: given(jd.FullyShardedStrategy),
    "CentralStorageStrategy": lambda _: given(jd.CentralStorageStrategy),
    "MultiWorkerMirroredStrategy": lambda _: given(jd.MultiWorkerMirroredStrategy),
    "TPUStrategy": lambda _: given(jd.TPUStrategy),
    "ParameterServerStrategy": lambda _: given(jd.ParameterServerStrategy, cluster_resolver={"ps": 1, "worker": 1}),
    "function": lambda _: given(jd.function, func=lambda x: x),
    "grad": lambda _: given(jd.grad, fn=lambda: 1.0, variables=[variable()]),
    "value_and_grad": lambda _: given(jd.value_and_grad, fn=lambda: 1.0, variables=[variable()]),
    "value_and_grads": lambda _: given(jd.value_and_grads, fn=lambda: (1.0,), variables=[variable()]),
    "Variable": lambda _: given(jd.Variable, initial_value=1.0),
    "Optimizer": lambda _: given(jd.Optimizer, transform=optax.sgd(1.0), variables=[variable()]),
    "Model": lambda _: given(jd.Model, model={"w": jnp.ones(2)}),
    "DynamicLossScale": lambda _: given(jd.precision.DynamicLossScale),
    "StaticLossScale": lambda _: given(jd.precision.StaticLossScale),
    "CheckpointManager": lambda folder: given(
        jd.CheckpointManager, jd.Checkpoint(v=variable()), folder, step_counter=jd.Variable(0)
    ),
    "TerminationConfig": lambda _: given(jd.experimental.TerminationConfig),
    "ReductionToOneDevice": lambda _: given(jd.ReductionToOneDevice),
    "HierarchicalCopyAllReduce": lambda _: given(jd.HierarchicalCopyAllReduce),
    "NcclAllReduce": lambda _: given(jd.NcclAllReduce),
    "CollectiveHints": lambda _: given(jd.experimental.CollectiveHints),
    "CommunicationOptions": lambda _: given(jd.experimental.CommunicationOptions),
    "experimental.MultiWorkerMirroredStrategy": lambda _: given(jd.experimental.MultiWorkerMirroredStrategy),
    "DatasetCreator": lambda _: given(jd.experimental.DatasetCreator, dataset_fn=lambda _: []),
    "SidecarEvaluator": lambda folder: given(
        jd.experimental.SidecarEvaluator, jd.Checkpoint(v=variable()), evaluate=dict, directory=folder
    ),
    "ValueContext": lambda _: given(jd.experimental.ValueContext),
    "Packs": lambda _: given(jd.extending.Packs),
    "InputContext": lambda _: given(jd.InputContext),
    "InputContext.get_per_replica_batch_size": lambda _: given(
        jd.InputContext().get_per_replica_batch_size, global_batch_size=4
    ),
    "InputOptions": lambda _: given(jd.InputOptions),
    "ClusterDeviceFilters.set_device_filters": lambda _: given(
        jd.ClusterDeviceFilters().set_device_filters, job_name="worker", task_index=0, device_filters=[]
    ),
    "Server": lambda _: given(jd.Server, {"worker": ["localhost:0"]}, start=False),
    "SimpleClusterResolver": lambda _: given(jd.cluster_resolver.SimpleClusterResolver, SPEC),
    "GCEClusterResolver": lambda _: given(
        jd.cluster_resolver.GCEClusterResolver,
        project="project",
        zone="zone",
        instance_group="group",
        port=1,
        service=object(),
    ),
    "KubernetesClusterResolver": lambda _: given(
        jd.cluster_resolver.KubernetesClusterResolver, override_client=object()
    ),
    "SlurmClusterResolver": lambda _: given(jd.cluster_resolver.SlurmClusterResolver, environ=SLURM),
    "TFConfigClusterResolver": lambda _: given(jd.cluster_resolver.TFConfigClusterResolver),
    "UnionResolver": lambda _: given(
        jd.cluster_resolver.UnionResolver, jd.cluster_resolver.SimpleClusterResolver(SPEC)
    ),
    "FixedShardsPartitioner": lambda _: given(jd.experimental.partitioners.FixedShardsPartitioner, num_shards=2),
    "MaxSizePartitioner": lambda _: given(jd.experimental.partitioners.MaxSizePartitioner, max_shard_bytes=1),
    "MinSizePartitioner": lambda _: given(jd.experimental.partitioners.MinSizePartitioner),
    "check_replicas": lambda _: given(jd.debug.check_replicas, []),
    "debug_collectives": lambda _: given(jd.config.debug_collectives, enabled=False),
    "MultiProcessRunner": lambda _: given(MultiProcessRunner),
    "run_multi_process": lambda _: given(jd.testing.run_multi_process, fn=print),
    "Fault": lambda _: given(jd.testing.Fault, "kill", print),
    "PerWorkerDataset": lambda _: given(jd.coordinator.PerWorkerDataset, dataset_fn=list),
    "strategy.run": lambda _: given(mirrored(2).run, fn=lambda: 1),
    "strategy.run_steps": lambda _: given(mirrored(2).run_steps, step=print, iterator=iter([]), n=1),
    "strategy.experimental_distribute_values_from_function": lambda _: given(
        mirrored(2).experimental_distribute_values_from_function, value_fn=lambda _: 1.0
    ),
    "strategy.distribute_datasets_from_function": lambda _: given(
        mirrored(2).distribute_datasets_from_function, dataset_fn=lambda _: []
    ),
    "strategy.reduce": lambda _: given(mirrored(2).reduce, reduce_op="MEAN", value=jnp.ones(2), axis=None),
    "progress": lambda _: given(jd.progress, dataset=[]),
    "visualize": lambda _: given(mirrored(2).visualize, [variable()]),
}
"""How to call what takes settings rightly, or nearly so: a wrong setting must be found before anything else happens."""

NO_SETTINGS = {
    *("Strategy", "RunOptions", "StrategyExtended", "ReplicaContext", "PerReplica", "Mirrored", "DistributedValues"),
    *("VariableSynchronization", "VariableAggregation", "ReduceOp", "CrossDeviceOps", "Checkpoint", "ClusterSpec"),
    *("get_strategy", "has_strategy", "in_cross_replica_context", "experimental_set_strategy", "get_replica_context"),
    *("latest_checkpoint", "ArraySpec", "is_main"),
}
"""Public names without settings of these kinds, or whose arguments the library alone gives."""

MAY_BE_ANYTHING = {
    ("TPUStrategy", "experimental_spmd_xla_partitioning"),  # accepted for compatibility, as the next ones
    ("Optimizer", "shard_update"),  # True, False or "auto": below
    ("SimpleClusterResolver", "environment"),
    ("strategy.run", "options"),
    ("Fault", "seed"),
    ("Fault", "rank"),
    ("Fault", "step"),
    ("Fault", "restart"),
    ("Fault", "kind"),
    ("Fault", "at"),
    ("Fault", "probability"),
    ("Fault", "again"),
    ("Fault", "act"),
}


def kind_of(name: str, annotation: str) -> tuple[str, bool]:
    """Which row of `WRONG` an annotation asks for, and whether None is right."""
    parts = [part.strip(" '\"") for part in re.sub(r"\[.*\]", "", annotation).split("|")]
    optional = "None" in parts or name == "rpc_layer"
    if "devices" in name or name == "experimental_device_assignment":
        return ("devices", True) if "Sequence" in annotation else ("int", optional)
    if name in ("cluster_resolver", "tpu_cluster_resolver"):
        return "resolver", optional
    kinds = [part for part in parts if part in WRONG]
    enums = [kind for kind in kinds if kind[0].isupper() and kind != "Callable"]
    if enums:
        return enums[0], optional
    return (kinds[0], optional) if len(kinds) == len(set(parts) - {"None"}) == 1 else ("", optional)


def parameters(name: str, function: Any) -> Iterator[tuple[str, str, bool]]:
    """The settings of a function: their names, rows of `WRONG`, and whether they may be None."""
    described = function.__init__ if function is jd.Variable else function
    for parameter in inspect.signature(described).parameters.values():
        kind, optional = kind_of(parameter.name, str(parameter.annotation))
        if kind and (name, parameter.name) not in MAY_BE_ANYTHING:
            yield parameter.name, kind, optional


def cases() -> Iterator[Any]:
    for name, make in TABLE.items():
        function = make(Path("unused"))[0] if name != "CheckpointManager" else jd.CheckpointManager
        for parameter, kind, optional in parameters(name, function):
            for value in WRONG[kind] if optional else [*WRONG[kind], None]:
                yield pytest.param(name, parameter, value, id=f"{name}({parameter}={value!r})")


@pytest.mark.quick_cases(284, whole=True)
@pytest.mark.parametrize(("name", "parameter", "value"), list(cases()))
def test_a_wrong_setting_is_refused_where_it_is_written(name: str, parameter: str, value: Any, tmp_path: Path) -> None:
    function, args, kwargs = TABLE[name](tmp_path)
    with pytest.raises(jd.errors.JaxtributeError) as caught:
        function(*args, **{**kwargs, parameter: value})
    assert "HINT:" in str(caught.value)
    devices = WRONG["devices"]
    assert repr(value[0] if value in devices and isinstance(value, list) else value) in str(caught.value)
    if least := re.search(r"a whole number of at least (\d+)", str(caught.value)):
        assert int(least[1]) == (parameter in FROM_ONE)


def public() -> Iterator[str]:
    """The names in the API's documentation that are classes or functions at the top."""
    for name in re.findall(r"^::: jaxtribute\.(\S+)$", (Path(__file__).parents[1] / "docs/api.md").read_text(), re.M):
        value: Any = jd
        for part in name.split("."):
            value = getattr(value, part, None) or importlib.import_module(f"{value.__name__}.{part}")
        if not isinstance(value, ModuleType) and "." not in name:
            yield name


@pytest.mark.parametrize("name", list(public()))
def test_every_public_name_is_looked_at(name: str) -> None:
    assert name in NO_SETTINGS or any(name == known.partition(".")[0] for known in TABLE)


@pytest.mark.parametrize("spelling", [str, str.lower, str.title])
def test_names_of_members_stand_for_members(spelling: Callable[[str], str]) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        v = jd.Variable(1.0, synchronization=spelling("ON_READ"), aggregation=spelling("SUM"))
    assert v.synchronization is jd.VariableSynchronization.ON_READ
    assert v.aggregation is jd.VariableAggregation.SUM
    strategy.run(lambda: v.assign(jnp.float32(3.0)))
    assert float(v) == 6.0
    assert float(strategy.reduce(spelling("MEAN"), strategy.run(lambda: jnp.float32(2.0)), None)) == 2.0
    options = jd.InputOptions(experimental_replication_mode=spelling("PER_REPLICA"), auto_shard_policy=spelling("DATA"))
    assert options.experimental_replication_mode is jd.input.InputReplicationMode.PER_REPLICA
    assert options.auto_shard_policy is jd.input.AutoShardPolicy.DATA
    ring = jd.experimental.CommunicationOptions(implementation=spelling("RING")).implementation
    assert ring is jd.experimental.CommunicationImplementation.RING
    jd.Optimizer(optax.sgd(1.0), [variable()], accumulate_steps=2, accumulate_op=cast("Any", spelling("SUM")))


@pytest.mark.parametrize(
    ("value", "options"),
    [
        *((value, {}) for value in (None, "text", [None, 1.0], object(), [[1.0], [1.0, 2.0]], 2**40, 2**70, b"x")),
        (np.array([2**40]), {}),
        (np.array([2**32 + 1], np.uint64), {}),
        (300, {"dtype": "int8"}),
        (-1, {"dtype": "uint8"}),
        (1.5, {"dtype": "int32"}),
        (float("nan"), {"dtype": "int32"}),
        (1j, {"dtype": "float32"}),
        (jnp.array([300]), {"dtype": "int8"}),
        (jnp.array([0.5]), {"dtype": "int8"}),
        (1.0, {"dtype": "flaot32"}),
        (1.0, {"dtype": object}),
        (lambda: None, {}),
    ],
)
def test_initial_values_that_a_variable_cannot_hold(value: Any, options: dict[str, Any]) -> None:
    for strategy in (jd.get_strategy(), mirrored(2)):
        with strategy.scope(), pytest.raises((jd.errors.ArgumentError, jd.errors.ArgumentTypeError), match="HINT"):
            jd.Variable(value, **options)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(3, "float32"), (2.0, "int32"), (True, "int8"), (1.5, "bfloat16"), (0, "bool"), (2, "complex64")],
)
def test_initial_values_of_other_kinds_that_fit(value: Any, dtype: str) -> None:
    v = jd.Variable(value, dtype=dtype)
    assert v.dtype == dtype
    assert complex(v.numpy().astype("complex64")) == value


@pytest.mark.parametrize("value", [np.array(2**40), 2**40, np.uint32(2**31), -(2**31) - 1])
def test_assigned_integers_that_do_not_fit(value: Any) -> None:
    for strategy in (jd.get_strategy(), mirrored(2)):
        with strategy.scope():
            v = jd.Variable(7)
        for write in (v.assign, v.assign_add, jd.function(lambda v: v.assign(value))):
            with pytest.raises(jd.errors.ArgumentError, match="HINT"):
                write(v if isinstance(write, Function) else value)
        assert int(v) == 7


@pytest.mark.parametrize("devices", [iter([]), [], None, (), (name for name in [])])
def test_no_devices_are_all_devices(devices: Any) -> None:
    assert jd.FullyShardedStrategy(devices).num_replicas_in_sync == jd.MirroredStrategy().num_replicas_in_sync > 1


def test_an_iterator_of_devices_is_a_list_of_them() -> None:
    for kind in (jd.MirroredStrategy, jd.FullyShardedStrategy, jd.CentralStorageStrategy):
        devices: Any = iter(["CPU:0", "CPU:1"])
        assert kind(devices).num_replicas_in_sync == 2


@pytest.mark.parametrize("index", ["0.9", "1.5", "true", "1.0", '"a"', '"-1"', "-1", "[]", '"1.0"'])
def test_indices_of_tasks_that_are_no_whole_numbers(index: str) -> None:
    cluster = '{"worker": ["host0:1", "host1:1"]}'
    text = f'{{"cluster": {cluster}, "task": {{"type": "worker", "index": {index}}}}}'
    with pytest.raises(jd.errors.ClusterSpecError, match="HINT"):
        jd.cluster_resolver.TFConfigClusterResolver(environ={"TF_CONFIG": text}).own_task()


@pytest.mark.parametrize("key", [0.9, 1.0, True, -1, "-1", "a", None])
def test_keys_of_tasks_that_are_no_whole_numbers(key: Any) -> None:
    with pytest.raises(jd.errors.ClusterSpecError, match="HINT"):
        jd.ClusterSpec({"worker": {key: "host0:1"}})


@pytest.mark.parametrize("count", ["10", -1, 1.5, True, None, {"a"}, b"2"])
def test_numbers_of_servers_that_are_none(count: Any) -> None:
    with pytest.raises(jd.errors.JaxtributeError, match="HINT"):
        jd.ParameterServerStrategy({"ps": count, "worker": 1})


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_PROCID": "-1"},
        {"SLURM_PROCID": "0.5"},
        {"SLURM_STEP_NUM_TASKS": "-2"},
        {"SLURM_STEP_NODELIST": "n[1-99999999]"},
        {"SLURM_STEP_NODELIST": "n[1-9999][1-9999]"},
        {"SLURM_STEP_NODELIST": "n[0-" + "9" * 5000 + "]"},
        {"SLURM_STEP_TASKS_PER_NODE": "1(x99999999999)"},
        {"SLURM_STEP_TASKS_PER_NODE": "99999999999,1"},
        {"SLURM_STEP_TASKS_PER_NODE": "1(x" + "9" * 5000 + ")"},
    ],
)
def test_steps_of_slurm_that_cannot_be(change: dict[str, str]) -> None:
    with pytest.raises(jd.errors.ClusterSpecError, match="HINT"):
        jd.cluster_resolver.SlurmClusterResolver(environ=SLURM | change)


def test_other_settings_that_are_refused() -> None:
    strategy = mirrored(2)
    context: Any = None
    with pytest.raises(jd.errors.ArgumentError, match="HINT"):
        jd.Optimizer(optax.sgd(1.0), [variable()], shard_update="yes")  # type: ignore[arg-type]

    def merges() -> None:
        nonlocal context
        context = jd.get_replica_context()
        with pytest.raises(jd.errors.ArgumentTypeError, match="HINT"):
            context.merge_call(None)

    strategy.run(merges)
    wrong: Any
    for wrong in (None, 3, "f"):
        with pytest.raises(jd.errors.ArgumentTypeError, match="HINT"):
            strategy.run(wrong)
    with pytest.raises(jd.errors.ArgumentTypeError, match="HINT"):
        jd.function(lambda x: x, donate_argnums=cast("Any", "0"))
    with pytest.raises(jd.errors.ArgumentError, match="HINT"):
        jd.function(lambda x: x, donate_argnums=-1)
