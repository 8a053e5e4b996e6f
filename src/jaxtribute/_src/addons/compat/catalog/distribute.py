"""The names of `tf.distribute` (TensorFlow 2.21) and where this library keeps them."""

from __future__ import annotations

from dataclasses import dataclass

# Members that several classes below share: TensorFlow lists them for each class by itself.
_RESOLVER = "cluster_spec environment master num_accelerators task_id task_type"
_OPS = "batch_reduce batch_reduce_implementation broadcast broadcast_implementation reduce reduce_implementation"
_STRATEGY = (
    "cluster_resolver colocate_vars_with configure distribute_datasets_from_function experimental_distribute_dataset "
    "experimental_distribute_datasets_from_function experimental_local_results experimental_run extended group "
    "make_dataset_iterator make_input_fn_iterator num_replicas_in_sync reduce run scope unwrap update_config_proto"
)
_COORDINATOR = "create_per_worker_dataset done fetch join schedule strategy"


@dataclass(frozen=True, slots=True)
class Module:
    """A module of TensorFlow.

    Attributes:
      here: what stands for it.
      names: its public names, each with its members that are documented there.
    """

    here: str
    names: dict[str, str]


# Members stand in one text, split where they are looked up: the table is read by eye, against TensorFlow's pages.
_RESOLVERS = {
    "ClusterResolver": _RESOLVER,
    "GCEClusterResolver": "rpc_layer",
    "KubernetesClusterResolver": "",
    "KubernetesExecutableLocation": "WITHIN_CLUSTER OFF_CLUSTER",
    "SimpleClusterResolver": "rpc_layer",
    "SlurmClusterResolver": "get_task_info",
    "TFConfigClusterResolver": "rpc_layer",
    "TPUClusterResolver": "connect get_coordination_service_leader get_job_name get_master "
    "get_tpu_system_metadata set_tpu_topology tpu_hardware_feature",
    "UnionResolver": "rpc_layer",
}

MODULES: dict[str, Module] = {
    "tf.distribute": Module(
        "jd",
        {
            "CrossDeviceOps": _OPS,
            "DistributedDataset": "element_spec reduce",
            "DistributedIterator": "element_spec get_next get_next_as_optional",
            "DistributedValues": "",
            "HierarchicalCopyAllReduce": "",
            "InputContext": "get_per_replica_batch_size input_pipeline_id num_input_pipelines num_replicas_in_sync",
            "InputOptions": "experimental_fetch_to_device experimental_per_replica_buffer_size "
            "experimental_place_dataset_on_device experimental_replication_mode",
            "InputReplicationMode": "PER_WORKER PER_REPLICA",
            "MirroredStrategy": "",
            "MultiWorkerMirroredStrategy": "",
            "NcclAllReduce": "",
            "OneDeviceStrategy": "",
            "ParameterServerStrategy": "",
            "ReduceOp": "SUM MEAN from_variable_aggregation",
            "ReductionToOneDevice": "",
            "ReplicaContext": "all_gather all_reduce devices merge_call num_replicas_in_sync replica_id_in_sync_group "
            "strategy",
            "RunOptions": "experimental_bucketizing_dynamic_shape experimental_enable_dynamic_batch_size "
            "experimental_xla_options",
            "Server": "create_local_server join server_def start target",
            "Strategy": _STRATEGY + " experimental_distribute_values_from_function gather",
            "StrategyExtended": "batch_reduce_to colocate_vars_with experimental_require_static_shapes "
            "parameter_devices reduce_to update value_container variable_created_in_scope worker_devices",
            "TPUStrategy": "experimental_assign_to_logical_device experimental_replicate_to_logical_devices "
            "experimental_split_to_logical_devices",
            "cluster_resolver": "",
            "coordinator": "",
            "experimental": "",
            "experimental_set_strategy": "",
            "get_replica_context": "",
            "get_strategy": "",
            "has_strategy": "",
            "in_cross_replica_context": "",
        },
    ),
    "tf.distribute.experimental": Module(
        "jd.experimental",
        {
            "CentralStorageStrategy": "",
            "CollectiveCommunication": "AUTO RING NCCL",
            "CollectiveHints": "",
            "CommunicationImplementation": "AUTO RING NCCL",
            "CommunicationOptions": "",
            "MultiWorkerMirroredStrategy": "",
            "ParameterServerStrategy": "",
            "PreemptionCheckpointHandler": "run save_checkpoint_if_preempted total_run_calls watch_preemption_scope",
            "PreemptionWatcher": "block_until_worker_exit preemption_message",
            "TPUStrategy": "",
            "TerminationConfig": "",
            "ValueContext": "num_replicas_in_sync replica_id_in_sync_group",
            "coordinator": "",
            "partitioners": "",
            "rpc": "",
        },
    ),
    "tf.distribute.experimental.coordinator": Module(
        "jd.experimental.coordinator",
        {"ClusterCoordinator": _COORDINATOR, "PerWorkerValues": "", "RemoteValue": "fetch get"},
    ),
    "tf.distribute.experimental.partitioners": Module(
        "jd.experimental.partitioners",
        {"FixedShardsPartitioner": "", "MaxSizePartitioner": "", "MinSizePartitioner": "", "Partitioner": "__call__"},
    ),
    "tf.distribute.experimental.rpc": Module(
        "jd.experimental.rpc", {"Client": "call create", "Server": "create register start"}
    ),
    "tf.distribute.cluster_resolver": Module(
        "jd.cluster_resolver",
        _RESOLVERS,
    ),
    "tf.distribute.coordinator": Module(
        "jd.coordinator",
        {
            "ClusterCoordinator": _COORDINATOR,
            "PerWorkerValue": "",
            "RemoteValue": "fetch get",
            "experimental_get_current_worker_index": "",
        },
    ),
    # Listed by itself: version 1 lacks names of version 2, and has members of its own.
    "tf.compat.v1.distribute": Module(
        "v1",
        {
            "CrossDeviceOps": _OPS,
            "HierarchicalCopyAllReduce": "",
            "InputContext": "get_per_replica_batch_size input_pipeline_id num_input_pipelines num_replicas_in_sync",
            "InputReplicationMode": "PER_WORKER PER_REPLICA",
            "MirroredStrategy": "",
            "NcclAllReduce": "",
            "OneDeviceStrategy": "",
            "ReduceOp": "SUM MEAN from_variable_aggregation",
            "ReductionToOneDevice": "",
            "ReplicaContext": "all_reduce devices merge_call num_replicas_in_sync replica_id_in_sync_group strategy",
            "RunOptions": "experimental_bucketizing_dynamic_shape experimental_enable_dynamic_batch_size "
            "experimental_xla_options",
            "Server": "create_local_server join server_def start target",
            "Strategy": _STRATEGY + " experimental_make_numpy_dataset",
            "StrategyExtended": "broadcast_to call_for_each_replica experimental_between_graph "
            "experimental_make_numpy_dataset experimental_run_steps_on_iterator experimental_should_init "
            "non_slot_devices read_var should_checkpoint should_save_summary update_non_slot",
            "cluster_resolver": "",
            "experimental": "",
            "experimental_set_strategy": "",
            "get_loss_reduction": "",
            "get_replica_context": "",
            "get_strategy": "",
            "has_strategy": "",
            "in_cross_replica_context": "",
        },
    ),
    "tf.compat.v1.distribute.experimental": Module(
        "v1.experimental",
        {
            "CentralStorageStrategy": "",
            "CollectiveCommunication": "AUTO RING NCCL",
            "CollectiveHints": "",
            "CommunicationImplementation": "AUTO RING NCCL",
            "CommunicationOptions": "",
            "MultiWorkerMirroredStrategy": "",
            "ParameterServerStrategy": "",
            "TPUStrategy": "steps_per_run",
        },
    ),
    "tf.compat.v1.distribute.cluster_resolver": Module(
        "v1.cluster_resolver",
        _RESOLVERS,
    ),
}
