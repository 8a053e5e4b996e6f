"""Differences from `tf.distribute`, and remarks on what is the same: the words of the guide."""

from __future__ import annotations

DIFFERENT: dict[str, str] = {
    "CrossDeviceOps": "A strategy hands it whole distributed arrays; a subclass writes the `*_implementation` "
    "methods. `summation` says how `all_reduce` adds up in compiled programs.",
}
"""Names with another meaning here, by their last parts; valid for version 1 as well."""

REMARKS: dict[str, str] = {
    "tf.distribute.experimental.rpc.Server": "Over ZeroMQ; any function can be registered. An address that other "
    "machines can reach takes keys (`rpc.make_keys`), which TensorFlow has not.",
    "ClusterResolver.num_accelerators": "This process's, counted without starting JAX; other tasks have none.",
    "Client": "Over ZeroMQ. Without a limit a call has a minute. The result has the function's own structure; "
    "`output_specs` is not needed.",
    "DistributedDataset": "It has a `len`. In `compat.tf` its `cardinality` is a number under the default strategy, "
    "too: TensorFlow gives the dataset itself there, of which it is a method.",
    "DistributedIterator": "It can be checkpointed: `get_state`, `set_state`, and Orbax's protocol.",
    "DistributedValues": "One JAX array over all replicas, of one of two kinds: `jd.PerReplica`, or `jd.Mirrored` "
    "where the value is known to be the same on every replica. TensorFlow prints `PerReplica` for both.",
    "HierarchicalCopyAllReduce": "A hint: XLA chooses the route. Sums are right for odd numbers of devices too.",
    "InputOptions": "It has `auto_shard_policy`, which TensorFlow keeps in the dataset's options.",
    "KubernetesClusterResolver": "A task is at its pod's address, as TensorFlow's documents say; its code takes the "
    "node's. `namespace`, `num_tasks` and `timeout_s` are new.",
    "MultiWorkerMirroredStrategy": "One process is one worker, and joins the others when it makes the strategy; all "
    "workers have the same number of devices. A worker that fails ends the others, with its error. Without a resolver "
    "and without `TF_CONFIG` it takes the cluster of a Slurm step, a TPU slice or an indexed Job.",
    "NcclAllReduce": "A hint: XLA uses NCCL on GPUs by itself. It works on CPUs as well.",
    "RunOptions": "Accepted; JAX needs none of them.",
    "Server": "Chief and workers start or join the coordination service. There are no sessions. `join` returns once "
    "all others have ended or join too: `migrate --write` puts `raise SystemExit` before what follows it.",
    "SlurmClusterResolver": "Ranks belong to nodes in Slurm's own order, and GPUs are shared out of those that Slurm "
    "allows. Half-set variables are an error.",
    "TFConfigClusterResolver": "What is wrong with `TF_CONFIG` is a `ClusterSpecError` that quotes it.",
    "TPUStrategy": "A replica has one device. It has been tested with CPU devices standing in, not on a TPU.",
    "TPUStrategy.steps_per_run": "Kept for the program to read.",
    "TPUClusterResolver": "JAX runs the program on every host of the TPU: each is its own task.",
    "TPUClusterResolver.connect": "Makes a resolver; `TPUStrategy` connects.",
    "TPUClusterResolver.set_tpu_topology": "Kept; JAX's devices know their places.",
    "TPUClusterResolver.tpu_hardware_feature": "Always None.",
    "UnionResolver": "A job that two resolvers describe alike is there once; TensorFlow repeats its tasks.",
    "PreemptionCheckpointHandler": "`cluster_resolver` is not asked: the strategy has joined its cluster. The "
    "program ends with exit code 75, on which `jaxtribute launch --max-restarts` starts it again.",
    "PreemptionCheckpointHandler.run": "Checks after the function, not before, so that a batch among its arguments "
    "is not lost.",
    "PreemptionCheckpointHandler.watch_preemption_scope": "Checks once more at its end.",
    "PreemptionWatcher": "Hears what `PreemptionCheckpointHandler`s of the cluster announce.",
    "PreemptionWatcher.block_until_worker_exit": "Takes a timeout.",
    "TerminationConfig": "SIGTERM always counts, beside `termination_watcher_fn`.",
    "ClusterCoordinator.create_per_worker_dataset": "A dataset itself will do as well; it is copied to each worker.",
    "ClusterCoordinator.schedule": "What a worker that died had sent to servers is not applied twice. A function that "
    "is no `jd.function` runs as Python on the worker.",
    "ParameterServerStrategy": "Ray starts the processes; `{'ps': 1, 'worker': 2}` will do for a resolver. A variable "
    "cannot be read after `apply_gradients` in the same step.",
    "RemoteValue.get": "JAX arrays.",
    "Strategy.configure": "There are no sessions to configure; a cluster is an error. One `DeprecationWarning`.",
    "Strategy.experimental_local_results": "Components are JAX arrays: `.devices()` tells where they are.",
    "Strategy.experimental_run": "One `DeprecationWarning`.",
    "Strategy.make_dataset_iterator": "One `DeprecationWarning`.",
    "Strategy.make_input_fn_iterator": "One `DeprecationWarning`. PER_REPLICA works too.",
    "Strategy.reduce": "The result stays on the replicas' devices, so that nothing waits for it; `numpy.asarray` or "
    "`float` brings it to the host. A replica without rows weighs nothing in a mean.",
    "Strategy.run": "A result that is the same on all replicas by construction is `Mirrored` in a compiled function. "
    "A function is traced once for all replicas, not once for each.",
    "Strategy.update_config_proto": "Returns an unchanged copy: nothing in it reaches JAX. One `DeprecationWarning`.",
    "StrategyExtended.update": "In a replica function all replicas wait for each other first.",
    "StrategyExtended.experimental_run_steps_on_iterator": "A Python loop. One `DeprecationWarning`.",
}
"""Remarks on names that mean the same, by their last parts or, where those are not enough, in full."""
