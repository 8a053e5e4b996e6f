"""Methods, attributes and arguments of Keras 2 that Keras 3 has not or takes otherwise, with what to write."""

from __future__ import annotations

METHODS: dict[str, str] = {
    "predict_classes": "write np.argmax(model.predict(x), axis=-1)",
    "predict_proba": "write predict",
    "to_yaml": "write to_json",
    "add_update": "assign to the layer's variable in `call`",
    "get_input_at": "write layer.input",
    "get_output_at": "write layer.output",
    "get_input_shape_at": "write layer.input.shape",
    "get_output_shape_at": "write layer.output.shape",
    "make_one_shot_iterator": "write iter(dataset)",
    "make_initializable_iterator": "write iter(dataset), which begins anew each time",
    "set_shape": "shapes are known while a function is traced: leave it out",
}
"""Methods that nothing here has, whatever they are called on."""

SHORT: dict[str, str] = {
    "kl_divergence": "kld",
    "log_cosh": "logcosh",
    "mean_absolute_error": "mae",
    "mean_absolute_percentage_error": "mape",
    "mean_squared_error": "mse",
    "mean_squared_logarithmic_error": "msle",
}
"""Functions of `tf.keras.losses` and `tf.keras.metrics` that Keras 3 has there by their short names alone."""

ATTRIBUTES: dict[str, str] = {
    "state_updates": "layers assign to their variables: leave it out",
    "distribute_strategy": "write jd.get_strategy() where the model is made",
    "_distribution_strategy": "write jd.get_strategy() where the model is made",
}
"""Attributes of models that nothing here has."""

OPTIMIZERS: dict[str, str] = {
    "weights": "write variables",
    "get_weights": "write [v.numpy() for v in optimizer.variables]",
    "get_slot": "find it among optimizer.variables",
    "minimize": "write apply_gradients, with gradients of jd.value_and_grad",
    "get_gradients": "write jd.value_and_grad",
    "get_updates": "write apply_gradients",
    "compute_gradients": "write jd.value_and_grad",
    "_compute_gradients": "write jd.value_and_grad",
    "_decayed_lr": "write learning_rate",
    "get_scaled_loss": "write scale_loss",
    "get_unscaled_gradients": "`apply` takes scaled gradients: leave it out",
}
"""Attributes of optimizers that Keras 3 has not."""

_QUEUE = "Keras 3 has it in keras.utils.PyDataset, which takes workers=, use_multiprocessing= and max_queue_size="
_QUEUES: dict[str, str] = {"workers": _QUEUE, "use_multiprocessing": _QUEUE, "max_queue_size": _QUEUE}
_COMPILE = "Keras 3's compile has no such argument: leave it out"
_H5 = "the end of the file's name says its format: leave it out"

ARGUMENTS: dict[str, dict[str, str]] = {
    "fit": _QUEUES,
    "evaluate": _QUEUES,
    "predict": _QUEUES,
    "compile": dict.fromkeys(
        ("sample_weight_mode", "target_tensors", "distribute", "experimental_run_tf_function", "options"), _COMPILE
    )
    | {"experimental_steps_per_execution": "write steps_per_execution"},
    "save": {"save_format": _H5, "signatures": "export functions for serving with jax.export"},
    "save_weights": {"save_format": _H5},
    "add_weight": dict.fromkeys(
        ("partitioner", "use_resource", "collections", "getter", "experimental_autocast"),
        "Keras 3's add_weight has no such argument: leave it out",
    ),
    "train_on_batch": {"reset_metrics": "call model.reset_metrics() before"},
    "test_on_batch": {"reset_metrics": "call model.reset_metrics() before"},
    "assign": {"read_value": "an assignment returns the variable: leave it out"},
}
"""Arguments of methods that are refused here, by method."""

IGNORED: dict[str, dict[str, str]] = {
    "tf.keras.optimizers.": {
        "decay": "Keras 3 ignores it: write learning_rate=tf.keras.optimizers.schedules.InverseTimeDecay(...)",
        "lr": "write learning_rate=",
    },
    "tf.keras.Input": {"ragged": "JAX has no ragged arrays: pad rows to one length"},
    "tf.keras.layers.Input": {"ragged": "JAX has no ragged arrays: pad rows to one length"},
    "tf.keras.layers.": {
        "batch_input_shape": "begin the model with keras.Input(batch_shape=...)",
        "weights": "call set_weights when the layer is built",
        "renorm": "this Keras does not have it: install a newer one",
    },
    "tf.keras.callbacks.ModelCheckpoint": {"period": 'write save_freq="epoch", or a number of batches'},
}
"""Arguments of classes with what to write for them, by the class's full name or how it begins."""

SOME_TAKE = "weights", "renorm"
"""Arguments of `IGNORED` that some of the classes have all the same."""

DATASETS = ("image_dataset_from_directory", "text_dataset_from_directory", "timeseries_dataset_from_array")
"""Functions of Keras that make TensorFlow's datasets unless `format="grain"` is said."""

BACKEND: dict[str, str] = {
    "bias_add": "x + bias",
    "cast_to_floatx": "tf.keras.ops.cast(x, tf.keras.config.floatx())",
    "batch_flatten": "tf.keras.ops.reshape(x, (len(x), -1))",
    "flatten": "tf.keras.ops.reshape(x, (-1,))",
    "permute_dimensions": "tf.keras.ops.transpose",
    "placeholder": "tf.keras.Input",
    "random_uniform": "tf.keras.random.uniform",
    "random_normal": "tf.keras.random.normal",
    "random_bernoulli": "tf.keras.random.binomial",
    "truncated_normal": "tf.keras.random.truncated_normal",
    "dropout": "tf.keras.random.dropout",
    "get_value": "np.asarray(x)",
    "batch_get_value": "[np.asarray(x) for x in variables]",
    "eval": "np.asarray(x)",
    "set_value": "x.assign(value)",
    "batch_set_value": "x.assign(value) for each",
    "update": "x.assign(value)",
    "update_add": "x.assign_add(value)",
    "update_sub": "x.assign_sub(value)",
    "moving_average_update": "x.assign(x * momentum + value * (1 - momentum))",
    "variable": "tf.keras.Variable",
    "constant": "tf.keras.ops.convert_to_tensor",
    "gather": "tf.keras.ops.take(x, indices, axis=0)",
    "map_fn": "tf.keras.ops.map",
    "ndim": "x.ndim",
    "count_params": "x.size",
    "learning_phase": "the argument `training` of `call`",
    "set_learning_phase": "the argument `training` of a call",
    "function": "jd.function",
    "gradients": "jd.value_and_grad",
    "l2_normalize": "tf.keras.ops.normalize",
    "pool2d": "tf.keras.ops.max_pool or average_pool",
    "pool3d": "tf.keras.ops.max_pool or average_pool",
    "conv1d": "tf.keras.ops.conv",
    "conv2d": "tf.keras.ops.conv",
    "conv3d": "tf.keras.ops.conv",
    "conv2d_transpose": "tf.keras.ops.conv_transpose",
    "depthwise_conv2d": "tf.keras.ops.depthwise_conv",
    "separable_conv2d": "tf.keras.ops.separable_conv",
    "pow": "tf.keras.ops.power",
    "resize_images": "tf.keras.ops.image.resize",
    "repeat_elements": "tf.keras.ops.repeat",
    "reverse": "tf.keras.ops.flip",
    "switch": "tf.keras.ops.cond or where",
    "foldl": "tf.keras.ops.scan",
    "foldr": "tf.keras.ops.scan with reverse=True",
    "rnn": "tf.keras.layers.RNN",
    "print_tensor": "jax.debug.print",
    "ctc_batch_cost": "tf.keras.ops.ctc_loss",
    "name_scope": "tf.name_scope",
    "random_normal_variable": "tf.keras.Variable(tf.keras.random.normal(...))",
    "random_uniform_variable": "tf.keras.Variable(tf.keras.random.uniform(...))",
}
"""Functions of Keras 2's `backend` under other names."""
