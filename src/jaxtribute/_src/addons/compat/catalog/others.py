"""The names of TensorFlow outside `tf.distribute` that programs which use it need, and what to write for them."""

from __future__ import annotations

_GRADIENT = (
    "JAX differentiates functions: put the lines of the `with` block into a function that returns the loss, and write "
    "`loss, grads = jd.value_and_grad(function, variables)()` for `tape.gradient(loss, variables)`"
)
GRADIENT_BY_ARRAY = (
    "JAX differentiates functions: put the lines of the `with` block into a function of the array, and write "
    "`jax.grad(function)(x)` for `tape.gradient(y, x)`"
)
_SAVED_MODEL = (
    "a SavedModel holds a graph of TensorFlow's, which nothing here runs or writes: save Keras models as `.keras` "
    "files, weights with `tf.train.Checkpoint`, and functions for serving with `jax.export` (docs/guide/keras.md)"
)
_WRITE_IMAGE = "use Pillow: `PIL.Image.fromarray(np.asarray(image)).save(name_or_stream, format={0!r})`"
_NEEDS_TENSORFLOW = "it needs TensorFlow, and gives TensorFlow's objects: "

_GENERATOR = (
    "write `tf.random.normal(shape)` after `tf.random.set_seed(seed)`: each replica draws numbers of its own, as from "
    "a generator that is made in a scope. Or use `jax.random`, with `ctx.fold_in(key)` of "
    "`ctx = tf.distribute.get_replica_context()`"
)

_INITIALIZERS = {
    "constant": "Constant",
    "zeros": "Zeros",
    "ones": "Ones",
    "random_normal": "RandomNormal",
    "random_uniform": "RandomUniform",
}

ABSENT: dict[str, str] = {
    "tf.GradientTape": _GRADIENT,
    "tf.gradients": _GRADIENT,
    "tf.autograph": "functions are traced as they are: write `tf.cond`, `tf.where` or `tf.while_loop` where a branch "
    "or a loop depends on an array",
    "tf.data.Dataset.counter": "write `Dataset.from_generator(itertools.count, tf.int64)`",
    "tf.data.Dataset.group_by_window": "use `bucket_by_sequence_length`, or group in Python in `from_generator`",
    "tf.data.Dataset.ignore_errors": "catch the errors in the function that `map` gets",
    "tf.data.Dataset.load": "store arrays with ArrayRecord and Grain, or NumPy",
    "tf.data.Dataset.ragged_batch": "use `padded_batch`",
    "tf.data.Dataset.random": "use `map` with `tf.random`, or NumPy",
    "tf.data.Dataset.rejection_resample": "use `filter`, or `sample_from_datasets` with weights",
    "tf.data.Dataset.save": "store arrays with ArrayRecord and Grain, or NumPy",
    "tf.data.Dataset.snapshot": "use `cache()`, which keeps the elements in memory",
    "tf.data.Dataset.sparse_batch": "use `padded_batch`",
    "tf.estimator": "TensorFlow itself has dropped it: write the training loop",
    "tf.compat.v1.Session": "there are no graphs and no sessions: call the functions",
    "tf.compat.v1.placeholder": "there are no graphs and no sessions: pass arguments to a function",
    "tf.compat.v1.global_variables_initializer": "variables are initialized where they are made: leave it out",
    "tf.compat.v1.train": "`jd.Optimizer(optax.sgd(0.1), variables)` takes the place of optimizers",
    "tf.train.SequenceExample": "store arrays with ArrayRecord and Grain, or the steps in a tf.train.Example",
    "tf.io": "read files with Python: `pathlib.Path(name).read_bytes()`",
    "tf.io.encode_png": _WRITE_IMAGE.format("PNG"),
    "tf.io.encode_jpeg": _WRITE_IMAGE.format("JPEG"),
    "tf.io.write_file": "write files with Python: `pathlib.Path(name).write_bytes(data)`",
    "tf.io.match_filenames_once": "use `tf.io.gfile.glob(pattern)`",
    "tf.io.VarLenFeature": "write `tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)`, which gives a dense "
    "array, and leave `tf.sparse.to_dense` out",
    "tf.io.RaggedFeature": "write `tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)`",
    "tf.image": "write it with `jax.image`, `dm_pix` or Pillow in the dataset's `map`, or use a layer of Keras",
    "tf.image.random_hue": "use `keras.layers.RandomHue`, or `dm_pix.random_hue`",
    "tf.image.draw_bounding_boxes": "use `PIL.ImageDraw`",
    "tf.image.ssim": "use `skimage.metrics.structural_similarity`, or `dm_pix.ssim` in compiled functions",
    "tf.summary": "write figures with `jd.summary.Writer`",
    "tf.summary.trace_on": "use `jaxtribute trace`, or `jax.profiler`",
    "tf.strings": "write it with Python's `str` in the dataset's `map`: elements are NumPy arrays of bytes",
    "tf.strings.split": "write it with Python in the dataset's `map`: `[t.split() for t in texts]`, padded",
    "tf.sparse": "JAX's programs have dense arrays: use them, or `jax.experimental.sparse`",
    "tf.RaggedTensor": "pad: `dataset.padded_batch(n)`, or `keras.utils.pad_sequences`",
    "tf.ragged": "pad: `dataset.padded_batch(n)`, or `keras.utils.pad_sequences`",
    "tf.lookup": "use a Python dictionary in the dataset's `map`, or `keras.layers.StringLookup`",
    "tf.TensorArray": "collect in a Python list and `tf.stack` it; in a loop that is compiled, use `jax.lax.scan`",
    "tf.feature_column": "TensorFlow itself has dropped it: use Keras's preprocessing layers",
    "tf.saved_model": _SAVED_MODEL,
    "tf.py_function": "datasets' functions are Python already; in compiled functions use `jax.pure_callback`",
    "tf.numpy_function": "datasets' functions are Python already; in compiled functions use `jax.pure_callback`",
    "tf.random.Generator": _GENERATOR,
    "tf.random.get_global_generator": _GENERATOR,
    "tf.random.set_global_generator": _GENERATOR,
    "tf.math.confusion_matrix": "write `jnp.zeros((n, n), jnp.int32).at[labels, predictions].add(1)`",
    **{f"tf.{name}_initializer": f"use `tf.keras.initializers.{kind}`" for name, kind in _INITIALIZERS.items()},
    "tf.debugging": "use Python's `assert`, or `jax.experimental.checkify` in compiled functions",
    "tf.tpu.XLAOptions": "JAX needs none",
    "tf.tpu.experimental.embedding": "tables lie over the replicas: `jd.nn.ShardedTable(rows, width)` in the scope, "
    "`jd.nn.embedding_lookup(table, ids, combiner=...)` in the step; in Keras models "
    "`jaxtribute.integrations.keras.DistributedEmbedding`",
    "tf.tpu.experimental.embedding.TableConfig": "`jaxtribute.integrations.keras.TableConfig(name, vocabulary_size, "
    "embedding_dim=dim, optimizer=...)`, or `jd.nn.ShardedTable(vocabulary_size, dim)`",
    "tf.tpu.experimental.embedding.FeatureConfig": "`jaxtribute.integrations.keras.FeatureConfig(name, table, "
    "input_shape, output_shape)`, or a call of `jd.nn.embedding_lookup(table, ids)`",
    "tf.tpu.experimental.embedding.TPUEmbedding": "`jaxtribute.integrations.keras.DistributedEmbedding(features)`, or "
    "`jd.nn.embedding_lookup` in the step: `apply_gradients` of `jd.Optimizer` updates the rows",
    "tf.tpu.experimental.embedding.SGD": "`jd.Optimizer(optax.sgd(0.1), [table])`",
    "tf.tpu.experimental.embedding.Adagrad": "`jd.Optimizer(optax.adagrad(0.1), [table])`",
    "tf.tpu.experimental.embedding.Adam": "`jd.Optimizer(optax.adam(1e-3), [table])`; `ShardedTable(..., "
    'updates="exact")` is `lazy_adam=False`',
    "tf.test": "use `pytest`, and `np.testing.assert_allclose` for arrays",
    **{
        f"tf.test.{name}": 'ask `tf.config.list_physical_devices("GPU")`'
        for name in ("is_gpu_available", "gpu_device_name", "is_built_with_cuda", "is_built_with_gpu_support")
    },
    "tf.config.set_visible_devices": "set CUDA_VISIBLE_DEVICES, or name the devices of the strategy",
    "tf.config.experimental.ClusterDeviceFilters": "`jd.ClusterDeviceFilters`, which filters nothing: a process of JAX "
    "computes on its own devices",
    "tf.config.experimental.get_memory_info": "use `jax.devices()[0].memory_stats()`",
}
"""Reasons why a name, or a name below it, does not exist here, and replacements."""

OTHER_PACKAGES: dict[str, str] = {
    "tensorflow_datasets": _NEEDS_TENSORFLOW + "read arrays with `tfds.data_source` or another library, and make a "
    "dataset of them with `tf.data.Dataset.from_tensor_slices`",
    "tensorflow_hub": _NEEDS_TENSORFLOW + "its models are SavedModels. Take one of Keras or of Flax, such as those of "
    "`keras.applications`",
    "tensorflow_text": _NEEDS_TENSORFLOW + "use a tokenizer that works on Python's strings",
    "tensorflow_probability": "on JAX, it is `tensorflow_probability.substrates.jax`",
    "tensorflow_io": _NEEDS_TENSORFLOW + "use a library of its own for each format",
    "tensorflow_addons": _NEEDS_TENSORFLOW + "Keras 3 and Optax have most of its layers and optimizers",
    "tf_keras": "it is Keras 2, which runs on TensorFlow alone: `tf.keras` is Keras 3 here",
}
"""Packages beside TensorFlow that an import of theirs brings in, and what to write for them."""

_LOOKUP = "it needs TensorFlow: look strings up in a dictionary, in Python or NumPy, before the dataset or in its `map`"

_SIDECAR = (
    "write `jd.experimental.SidecarEvaluator(checkpoint, evaluate, directory)`, where `evaluate` is "
    "`lambda: model.evaluate(x, y, return_dict=True)` of the `model` in `jd.Checkpoint(model=model)`"
)

NEEDS_TENSORFLOW: dict[str, str] = {
    "tf.keras.experimental.SidecarEvaluator": _SIDECAR,
    "tf.keras.utils.SidecarEvaluator": _SIDECAR,
    "tf.keras.utils.experimental.DatasetCreator": "write `jd.experimental.DatasetCreator(dataset_fn)`",
    "tf.keras.layers.HashedCrossing": _LOOKUP,
    "tf.keras.layers.Hashing": _LOOKUP,
    "tf.keras.layers.TFSMLayer": _SAVED_MODEL,
    "tf.keras.export.ExportArchive": _SAVED_MODEL,
    "tf.keras.utils.FeatureSpace": "its `adapt` needs TensorFlow: adapt keras.layers.Normalization to arrays, and "
    "lookups of `jaxtribute.integrations.keras`",
    "tf.keras.utils.split_dataset": "it needs TensorFlow: use take and skip of the dataset",
    "tf.keras.utils.audio_dataset_from_directory": _NEEDS_TENSORFLOW + "read the files with a library of their own",
    "tf.keras.losses.Reduction.AUTO": 'Keras 3 has no such reduction: write "sum_over_batch_size"',
}
"""Names of Keras that are there and call TensorFlow, and of Keras 2 for which this library has one of its own."""

MOVED: dict[str, str] = {
    "tf.keras.utils.experimental.DatasetCreator": "jd.experimental.DatasetCreator",
    **{f"tf.{name}_initializer": f"tf.keras.initializers.{kind}" for name, kind in _INITIALIZERS.items()},
}
"""Those whose name alone is another one here."""

OWN: dict[str, str] = {
    f"tf.keras.{name}": f"jaxtribute.integrations.keras.{name.rpartition('.')[2]}"
    for name in (
        "callbacks.TensorBoard",
        "layers.IntegerLookup",
        "layers.StringLookup",
        "layers.TextVectorization",
        "layers.experimental.preprocessing.TextVectorization",
    )
}
"""Names of Keras that need TensorFlow there, and what this library has for them, also below `tf.keras`."""

_ON_HOST = (
    "on the host, where values are known: in a dataset's `map`, and in a model of its own that is called and not "
    "fitted. Not for `tf_idf`, several numbers for unknown strings, or sparse results"
)

_NUMBERS = "the numbers are not TensorFlow's: pass initial values where results must be the same"

DIFFERENT: dict[str, str] = {
    "tf.keras.mixed_precision.LossScaleOptimizer": "in a loop of one's own its update cannot be compiled: use the "
    'policy "mixed_bfloat16", which needs no scale, and leave the wrapper and scale_loss out; in `fit` nothing changes',
}
"""Names that exist in `compat.tf` with another meaning."""

REMARKS: dict[str, str] = {
    **{
        f"tf.random.{name}": _NUMBERS
        for name in ("normal", "set_seed", "stateless_normal", "stateless_uniform", "truncated_normal", "uniform")
    },
    "tf.data.Dataset.list_files": "the order is that of the names unless shuffle=True",
    "tf.data.Dataset.shuffle": "the whole dataset is shuffled, whatever the buffer, but for one of 1; the order is not "
    "TensorFlow's",
    "tf.cond": "branches may write variables; in a replica's function those that have a value for each replica",
    "tf.gather": "a number out of range is an error where it is known; in a compiled function it gives zeros, as on "
    "TensorFlow's GPUs",
    "tf.image": "on `jax.image`; random ones run in a dataset's `map`, and not in compiled functions",
    "tf.strings": "on the host, in a dataset's `map`; patterns are those of Python's `re`",
    "tf.summary": "written by `jd.summary.Writer`, outside of compiled functions",
    "tf.train.Example": "made with protobuf; the same bytes as TensorFlow's",
    "tf.__version__": "the TensorFlow whose names compat.tf has",
    "tf.function": "no AutoGraph: Python's `if`, `for` and `while` run while the function is traced",
    "tf.data.Dataset.map": "the function runs as Python on NumPy arrays for each element; its order is kept",
    "tf.data.Dataset.from_generator": "an iterator's position is restored by reading from the start",
    "tf.data.Dataset.element_spec": "shapes are those of the first elements that functions give; without a signature "
    "or shapes, axes of what a generator gives are of any length, and those that padded_batch pads unless all rows are "
    "known to be as long. Distributed datasets leave open what it leaves open",
    "tf.data.Dataset.sample_from_datasets": "the draws are not TensorFlow's; weights are a list",
    "tf.data.Dataset.unbatch": "its cardinality is known after sources and batches without a remainder",
    "tf.data.Dataset.with_options": "only the auto-shard policy has a meaning",
    "tf.data.Dataset.cache": "in memory only",
    "tf.config.get_visible_devices": "the devices that JAX finds, which only the environment makes fewer",
    "tf.config.run_functions_eagerly": "of all `tf.function`s and what they call, not of `jd.function` and "
    "Keras's `fit`",
    "tf.config.experimental.set_memory_growth": "does nothing: write XLA_PYTHON_CLIENT_PREALLOCATE=false into the "
    "environment",
    "tf.config.experimental_connect_to_cluster": "does nothing: strategies join their cluster by themselves",
    "tf.io": "TFRecords of `tf.train.Example`, GZIP and ZLIB too, images and serialized tensors, on the host",
    "tf.io.gfile": "files of this machine",
    "tf.tpu.experimental.initialize_tpu_system": "does nothing: JAX initializes TPUs by itself",
    "tf.train.Checkpoint": "saved by Orbax, in a format of this library's; TensorFlow's checkpoints cannot be read. "
    "Variables that are made after restore() keep their initial values. All workers write one checkpoint, where the "
    "first one says",
    "tf.train.CheckpointManager": "in the background, with jd.CheckpointManager; this one waits for each save",
    "tf.train.ClusterSpec": "two tasks at one address are an error",
    "tf.train.ClusterDef": "a dataclass, as are JobDef and ServerDef; there are no protocol buffers",
    "tf.keras.callbacks.TensorBoard": "written by `jd.summary.Writer`, with `pip install -e '.[tensorboard]'`; "
    "there is no graph",
    "tf.keras.layers.IntegerLookup": _ON_HOST,
    "tf.keras.layers.StringLookup": _ON_HOST,
    "tf.keras.layers.TextVectorization": _ON_HOST,
    "tf.shape": "known while a function is traced, as a NumPy array; an axis is never unknown",
    "tf.int64": "int32 in arrays unless JAX's jax_enable_x64 is set",
    "tf.float64": "float32 in arrays unless JAX's jax_enable_x64 is set",
}
"""Remarks on names that mean the same."""

ALIASES: dict[str, str] = {
    f"tf.{part}": f"tf.keras.{part}" for part in ("initializers", "losses", "metrics", "optimizers")
}
"""Other names of Keras's modules."""

LIBRARIES: dict[str, str] = {
    "tf.keras": "Keras 3 on its JAX backend, with `pip install -e '.[keras]'`; models, optimizers and metrics "
    "work under strategies, in `fit` and in loops of one's own. There `jd.value_and_grad` needs the model's variables "
    "beforehand: begin it with a `keras.Input`, so that it is built",
}
"""Names that another library stands for; its files are read, and it is not loaded to look into it."""

_MEMORY = "nothing here reads it: memory is set by XLA_PYTHON_CLIENT_PREALLOCATE and XLA_PYTHON_CLIENT_MEM_FRACTION"

ENVIRONMENT: dict[str, str] = {
    "TF_USE_LEGACY_KERAS": "Keras 2 runs on TensorFlow alone: `tf.keras` is Keras 3 here. Leave it out",
    "TF_FORCE_GPU_ALLOW_GROWTH": _MEMORY,
    "TF_GPU_ALLOCATOR": _MEMORY,
    "TF_DETERMINISTIC_OPS": "nothing here reads it: write XLA_FLAGS=--xla_gpu_deterministic_ops=true",
    "TF_CUDNN_DETERMINISTIC": "nothing here reads it: write XLA_FLAGS=--xla_gpu_deterministic_ops=true",
    "TF_XLA_FLAGS": "nothing here reads it: all programs are compiled, and XLA reads XLA_FLAGS",
    "TF_ENABLE_ONEDNN_OPTS": "nothing here reads it: leave it out",
    "TF_ENABLE_AUTO_MIXED_PRECISION": "nothing here reads it: choose types by `jd.precision` or Keras's dtype policies",
}
"""Variables of the environment that TensorFlow reads, and what to write for them."""

METHODS: dict[str, tuple[str, str]] = {
    "experimental_run_v2": ("run", "the name of TensorFlow 2.0 and 2.1"),
    "reset_states": ("reset_state", "the name of Keras 2"),
}
"""Methods that have another name here, whatever they are called on."""
