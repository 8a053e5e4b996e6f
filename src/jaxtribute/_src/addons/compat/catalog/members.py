"""Members of TensorFlow's objects that the objects here lack, and what to write for them."""

from __future__ import annotations

from collections.abc import Mapping

_NO_GRAPH = "there are no graphs: leave it out, or look at `jax.make_jaxpr(f.python_function)(x)`"
_NO_OPS = "there are no graphs and no operations: leave it out"
_AS_KEY = (
    "variables are hashable by identity: take the variable itself as the key, and leave `deref()` out. Arrays are not: "
    "take a name or a number"
)
_SHAPES = "write `jax.eval_shape(f.python_function, x)`, which gives shapes and types of the results"
_SIGNATURE = "write `f.input_signature`, or `inspect.signature(f.python_function)`"
_PROTOCOL = "it is of TensorFlow's own machinery: leave it out, or compare `spec.shape` and `spec.dtype`"
_ROWS = "write `v.assign(v.read_value().at[tuple(np.transpose(indices))].{0}(jnp.asarray(updates)))`"
_BY_NAME = "there are no protocol buffers: `vars(options)` has what is set"
_COUNTS = "it is a plain tuple in TensorFlow: leave it out"
_DTYPE = "types are NumPy's: write {0}"
_OF_TYPE = "types are NumPy's: write `jnp.issubdtype(dtype, jnp.{0})`"

_OF: dict[str, dict[str, str]] = {
    "tf.function": {
        "experimental_get_compiler_ir": "write `jax.jit(f.python_function).lower(x).as_text()`",
        "function_spec function_type pretty_printed_signature structured_input_signature": _SIGNATURE,
        "pretty_printed_concrete_signatures": "write `f.experimental_get_tracing_count()`, a number",
        "get_initialization_function": "variables are initialized where they are made: leave it out",
        "name": "write `f.__name__`",
        "output_dtypes output_shapes outputs structured_outputs": _SHAPES,
        "inputs": _SIGNATURE,
        "graph function_def": f"{_NO_GRAPH}; `jax.jit(f.python_function).lower(x).cost_analysis()` has its FLOPs",
        "trainable_variables variables": "ask the model or the module that has them",
        "add_gradient_functions_to_graph add_to_graph captured_inputs from_func_graph inference_fn "
        "replace_capture_with_deferred_capture set_external_captures set_variables": _NO_GRAPH,
    },
    "tf.Variable": {
        "ref experimental_ref": _AS_KEY,
        "scatter_nd_update": _ROWS.format("set"),
        **{f"scatter_nd_{name}": _ROWS.format(name) for name in ("add", "max", "min")},
        "scatter_nd_sub": _ROWS.format("subtract"),
        "batch_scatter_update": "write `v.assign(v.read_value().at[np.arange(len(indices))[:, None], indices]"
        ".set(updates))`",
        "gather_nd": "write `tf.gather_nd(v, indices)`",
        "count_up_to": "write `v.assign_add(1)`",
        "eval read_value_no_copy": "write `v.read_value()`",
        "initial_value": "keep the initial value where the variable is made",
        "is_initialized": "variables are initialized where they are made: write True",
        "is_distributed_variable": "write `isinstance(v, jd.Variable)`",
        "load": "write `v.assign(value)`",
        "graph op": _NO_OPS,
        "set_shape": "a variable keeps its shape: leave it out",
        "create from_proto to_proto SaveSliceInfo": "there are no protocol buffers: save it with `tf.train.Checkpoint`",
    },
    "tf.Tensor": {
        "ref experimental_ref": _AS_KEY,
        "set_shape": "shapes are known while a function is traced: leave it out",
        "cpu": 'write `jax.device_put(x, jax.devices("cpu")[0])`',
        "gpu": 'write `jax.device_put(x, jax.devices("gpu")[0])`',
        "backing_device": "write `x.device`",
        "eval": "arrays have their values: write `np.asarray(x)`",
        "get_shape": "write `x.shape`",
        "numpy": "write `np.asarray(x)`",
        "name": "arrays have no names: leave it out",
        "consumers graph op value_index is_packed OVERLOADABLE_OPERATORS": _NO_OPS,
    },
    "tf.GradientTape": {
        "jacobian": "write `jax.jacrev(function)(x)`, where the function has the lines of the block",
        "batch_jacobian": "write `jax.vmap(jax.jacrev(function))(x)`, where the function takes one example",
        "watched_variables": "name the variables: `model.trainable_variables`, or a list",
        "reset": "write the lines behind it as a function of their own",
        "stop_recording": "write `jax.lax.stop_gradient(x)` for what is not to be differentiated",
    },
    "tf.data.Dataset": {"fingerprint": "hash what the dataset is made from"},
    "tf.data.Iterator": {
        "next": "write `next(iterator)`",
        "output_classes output_shapes output_types": "write `iterator.element_spec`",
    },
    "tf.data.NumpyIterator": {
        "next": "write `next(iterator)`",
        "save restore": "save the iterator of the dataset itself, `iter(dataset)`, in a `tf.train.Checkpoint`",
    },
    "tf.data.Options": {"merge framework_type": _BY_NAME},
    "tf.experimental.Optional": {
        "element_spec": "write the dataset's `element_spec`",
        "from_value empty": "return the value, or None",
    },
    "tf.train.Checkpoint": {"sync": "`save` and `write` return when the file is there: leave it out"},
    "tf.train.RestoreStatus": {
        "assert_nontrivial_match": "write `assert_existing_objects_matched()`",
        "initialize_or_restore run_restore_ops": "there are no sessions: `restore` has set the variables. Leave it out",
    },
    "tf.TensorSpec": {
        "experimental_as_proto experimental_from_proto experimental_type_proto cast flatten from_tensors is_subtype_of "
        "most_specific_common_supertype most_specific_compatible_type placeholder_value to_tensors "
        "value_type": _PROTOCOL,
        "from_spec": "write `tf.TensorSpec(spec.shape, spec.dtype, name)`",
    },
    "tf.TensorShape": {
        "as_proto experimental_as_proto experimental_from_proto experimental_type_proto cast flatten from_tensors "
        "is_subtype_of most_specific_common_supertype placeholder_value to_tensors": "it is of TensorFlow's own "
        "machinery: `as_list()` has the lengths",
        "most_specific_compatible_shape": "write `tf.TensorShape([a if a == b else None for a, b in zip(one, other)])`",
        "assert_is_fully_defined": "write `assert shape.is_fully_defined()`",
        "assert_same_rank": "write `assert shape.rank == other.rank`",
        "with_rank_at_least": "write `assert shape.rank >= rank`",
        "with_rank_at_most": "write `assert shape.rank <= rank`",
    },
    "tf.DType": {
        "max min limits": "types are NumPy's: write `jnp.finfo(dtype).max` of floats, and `jnp.iinfo(dtype).max` of "
        "integers",
        "as_numpy_dtype base_dtype": _DTYPE.format("the type itself"),
        "is_floating": _OF_TYPE.format("floating"),
        "is_integer": _OF_TYPE.format("integer"),
        "is_unsigned": _OF_TYPE.format("unsignedinteger"),
        "is_complex": _OF_TYPE.format("complexfloating"),
        "is_numeric": _OF_TYPE.format("number"),
        "is_bool": _DTYPE.format("`dtype == bool`"),
        "is_quantized": _DTYPE.format("False"),
        "is_numpy_compatible": _DTYPE.format("True"),
        "is_compatible_with is_subtype_of": _DTYPE.format("`dtype == other`"),
        "real_dtype": _DTYPE.format("`np.real(np.empty(0, dtype)).dtype`"),
        "size": _DTYPE.format("`dtype.itemsize`"),
        "as_datatype_enum cast experimental_as_proto experimental_from_proto experimental_type_proto flatten "
        "from_tensors most_specific_common_supertype placeholder_value to_tensors": _DTYPE.format("`dtype.name`"),
    },
    "tf.IndexedSlices": {
        "shape dtype device": "ask `slices.values`, and `slices.dense_shape`",
        "consumers graph name op": _NO_OPS,
    },
    "tf.errors.OpError": {
        "message": "write `str(error)`",
        "error_code": "write the class of the error in `except`, or `type(error)`",
        "experimental_payloads node_def op": "there are no operations: `str(error)` says what failed",
    },
    "tf.config.PhysicalDevice": {"count index": _COUNTS},
    "tf.io.gfile.GFile": {
        "next": "write `next(file, None)`, or loop over the file",
        "size": "write `os.path.getsize(name)`",
    },
    "tf.io.TFRecordOptions": {
        "compression_method compression_strategy flush_mode input_buffer_size mem_level output_buffer_size "
        "window_bits get_compression_type_string compression_type_map": "only `compression_type` has a meaning: leave "
        "it out",
    },
    "tf.summary.SummaryWriter": {"init": "the file is opened where the writer is made: leave it out"},
    "tf.distribute.DistributedDataset": {
        "auto_shard build": "the dataset is built where it is distributed: leave it out",
    },
    "tf.distribute.DistributedIterator": {"next": "write `next(iterator)`"},
    "tf.distribute.InputOptions": {"count index": _COUNTS},
}

_REMEDIES = {
    of: {name: remedy for names, remedy in table.items() for name in names.split()} for of, table in _OF.items()
}
ABSENT: dict[str, str] = {f"{of}.{name}": remedy for of, table in _REMEDIES.items() for name, remedy in table.items()}
"""The advice for each, by full name, such as `tf.Variable.scatter_nd_add`."""


def absent_from(of: str) -> Mapping[str, str]:
    """The members that objects of a class lack, with what to write for them.

    Args:
      of: TensorFlow's name of the class; `tf.function` of what that makes.
    """
    return _REMEDIES.get(of, {})
