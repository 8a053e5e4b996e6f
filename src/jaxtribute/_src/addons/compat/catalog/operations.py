"""Functions of TensorFlow that `compat.tf` lacks, and the expression to write for each, over their own arguments."""

from __future__ import annotations

_AT = "tuple(jnp.moveaxis(indices, -1, 0))"
_ADDS = "jax.ops.segment_sum({0}, segment_ids, num_segments)"
_SEGMENTS = "in compiled functions with `num_segments=`; segments without rows have the sum 0, the largest -inf"
_COUNTS = _ADDS.format("jnp.ones_like(data)")
_DRAWS = "where `key` is `jax.random.key(seed)`, and another one each time: `key, draw = jax.random.split(key)`"
_HOST = "not in compiled functions, as the shape depends on the values"

# Those of which only the name differs: `acos` is `jnp.arccos(x)`.
_UNARY = {
    "jnp": "acos=arccos acosh=arccosh asin=arcsin asinh=arcsinh atan=arctan atanh=arctanh conj cosh is_inf=isinf "
    "rint=round sinh tan",
    "jax.scipy.special": "bessel_i0=i0 bessel_i0e=i0e bessel_i1=i1 bessel_i1e=i1e digamma erfc erfinv lgamma=gammaln "
    "ndtri",
    "jax.nn": "log_sigmoid",
}
_MATH: dict[str, str] = {
    **{name: f"jnp.{name}(input)" for name in ("angle", "imag", "real")},
    "accumulate_n": "sum(inputs)",
    "atan2": "jnp.arctan2(y, x)",
    "betainc": "jax.scipy.special.betainc(a, b, x)",
    "bincount": "jnp.bincount(arr); in compiled functions with `length=`",
    "count_nonzero": "jnp.count_nonzero(input, axis)",
    "cumprod": "jnp.cumprod(x, axis)",
    "cumulative_logsumexp": "jax.lax.cumlogsumexp(x, axis)",
    "erfcinv": "jax.scipy.special.erfinv(1 - x)",
    "igamma": "jax.scipy.special.gammainc(a, x)",
    "igammac": "jax.scipy.special.gammaincc(a, x)",
    "in_top_k": "jnp.sum(predictions > jnp.take_along_axis(predictions, targets[:, None], 1), 1) < k",
    "invert_permutation": "jnp.argsort(x)",
    "is_non_decreasing": "jnp.all(jnp.diff(x) >= 0)",
    "is_strictly_increasing": "jnp.all(jnp.diff(x) > 0)",
    "log_softmax": "tf.nn.log_softmax(logits)",
    "logical_xor": "jnp.logical_xor(x, y)",
    "mod": "jnp.mod(x, y)",
    "multiply_no_nan": "jnp.where(y == 0, 0, x * y)",
    "nextafter": "jnp.nextafter(x1, x2)",
    "polygamma": "jax.scipy.special.polygamma(jnp.int32(a), x)",
    "polyval": "jnp.polyval(jnp.stack(coeffs), x)",
    "reciprocal_no_nan": "jnp.where(x == 0, 0, 1 / x)",
    "reduce_euclidean_norm": "jnp.sqrt(jnp.sum(jnp.square(input_tensor), axis))",
    "scalar_mul": "scalar * x",
    "segment_max": "jax.ops.segment_max(data, segment_ids); " + _SEGMENTS,
    "segment_mean": "jax.ops.segment_sum(data, segment_ids) / jax.ops.segment_sum(jnp.ones_like(data), segment_ids)",
    "segment_min": "jax.ops.segment_min(data, segment_ids); " + _SEGMENTS,
    "segment_prod": "jax.ops.segment_prod(data, segment_ids); " + _SEGMENTS,
    "segment_sum": "jax.ops.segment_sum(data, segment_ids); " + _SEGMENTS,
    "softsign": "jax.nn.soft_sign(features)",
    "softmax": "tf.nn.softmax(logits)",
    "truediv": "x / y",
    "unsorted_segment_max": "jax.ops.segment_max(data, segment_ids, num_segments)",
    "unsorted_segment_mean": f"{_ADDS.format('data')} / jnp.maximum({_COUNTS}, 1)",
    "unsorted_segment_min": "jax.ops.segment_min(data, segment_ids, num_segments)",
    "unsorted_segment_prod": "jax.ops.segment_prod(data, segment_ids, num_segments)",
    "unsorted_segment_sqrt_n": f"{_ADDS.format('data')} / jnp.sqrt(jnp.maximum({_COUNTS}, 1))",
    "unsorted_segment_sum": _ADDS.format("data"),
    "xdivy": "jnp.where(x == 0, 0, x / y)",
    "xlog1py": "jax.scipy.special.xlog1py(x, y)",
    "xlogy": "jax.scipy.special.xlogy(x, y)",
    "zero_fraction": "jnp.mean(value == 0)",
    "zeta": "jax.scipy.special.zeta(x, q)",
} | {
    name: f"{module}.{here or name}(x)"
    for module, pairs in _UNARY.items()
    for name, _, here in (pair.partition("=") for pair in pairs.split())
}
_IN_TF = "acos acosh asin asinh atan atan2 atanh cosh scalar_mul sinh tan truediv"  # also without `math`
_TOP: dict[str, str] = {
    "bitcast": "jax.lax.bitcast_convert_type(input, type)",
    "broadcast_dynamic_shape": "jnp.broadcast_shapes(tuple(shape_x), tuple(shape_y))",
    "broadcast_static_shape": "jnp.broadcast_shapes(tuple(shape_x), tuple(shape_y))",
    "complex": "jax.lax.complex(real, imag)",
    "dynamic_partition": f"[data[partitions == n] for n in range(num_partitions)]; {_HOST}",
    "dynamic_stitch": "jnp.concatenate(data)[jnp.argsort(jnp.concatenate(indices))]; each place once",
    "foldl": "jax.lax.scan(lambda a, x: (fn(a, x), None), initializer, elems)[0]",
    "foldr": "jax.lax.scan(lambda a, x: (fn(a, x), None), initializer, elems, reverse=True)[0]",
    "grad_pass_through": "lambda x: x + jax.lax.stop_gradient(f(x) - x)",
    "hessians": "jax.hessian(function)(x); of a function that returns `ys`",
    "histogram_fixed_width": "jnp.histogram(jnp.clip(values, *value_range), nbins, value_range)[0]",
    "is_symbolic_tensor": "isinstance(tensor, jax.core.Tracer)",
    "map_fn": "jax.lax.map(fn, elems)",
    "matrix_square_root": "jax.scipy.linalg.sqrtm(input)",
    "realdiv": "x / y",
    "recompute_grad": "jax.checkpoint(f)",
    "saturate_cast": "jnp.clip(value, jnp.iinfo(dtype).min, jnp.iinfo(dtype).max).astype(dtype)",
    "scan": "jax.lax.scan(lambda a, x: (fn(a, x),) * 2, initializer, elems)[1]",
    "scatter_nd": f"jnp.zeros(shape, updates.dtype).at[{_AT}].add(updates)",
    "searchsorted": "jnp.searchsorted(sorted_sequence, values, side); of one row",
    "strided_slice": "input_[tuple(map(slice, begin, end, strides))]",
    "tensor_scatter_nd_add": f"tensor.at[{_AT}].add(updates)",
    "tensor_scatter_nd_max": f"tensor.at[{_AT}].max(updates)",
    "tensor_scatter_nd_min": f"tensor.at[{_AT}].min(updates)",
    "tensor_scatter_nd_sub": f"tensor.at[{_AT}].add(-updates)",
    "timestamp": "time.time(); outside of compiled functions",
    "truncatediv": "jax.lax.div(x, y)",
    "truncatemod": "jax.lax.rem(x, y)",
    "unique": f"jnp.unique(x, return_inverse=True); in the order of the values, and {_HOST}",
    "unique_with_counts": "jnp.unique(x, return_inverse=True, return_counts=True); in the order of the values, and "
    + _HOST,
    "unravel_index": "jnp.stack(jnp.unravel_index(indices, dims))",
    "vectorized_map": "jax.vmap(fn)(elems)",
}
_STRIDES = "where `strides` and sizes of windows are those of the axes between, as in `(2, 2)`"
_NN: dict[str, str] = {
    "atrous_conv2d": "keras.ops.conv(value, filters, 1, padding.lower(), dilation_rate=rate)",
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"), f"keras.ops.conv(input, filters, strides, padding.lower()); {_STRIDES}"
    ),
    "convolution": "keras.ops.conv(input, filters, strides, padding.lower())",
    **{
        f"conv{n}transpose": f"keras.ops.conv_transpose(input, filters, strides, padding.lower()); {_STRIDES}"
        for n in ("_", "1d_", "2d_", "3d_")
    },
    **{
        f"{kind}_pool{n}": f"keras.ops.{call}_pool(input, ksize, strides, padding.lower()); {_STRIDES}"
        for kind, call in (("max", "max"), ("avg", "average"))
        for n in ("", "1d", "2d", "3d")
    },
    "batch_normalization": "(x - mean) * scale * jax.lax.rsqrt(variance + variance_epsilon) + offset",
    "crelu": "jax.nn.relu(jnp.concatenate([features, -features], -1))",
    "ctc_loss": "keras.ops.ctc_loss(labels, jnp.swapaxes(logits, 0, 1), label_length, logit_length, blank_index)",
    "depthwise_conv2d": f"keras.ops.depthwise_conv(input, filter, strides, padding.lower()); {_STRIDES}",
    "dropout": "keras.layers.Dropout(rate)(x, training=True); make the layer once, in the model",
    "in_top_k": _MATH["in_top_k"],
    **dict.fromkeys(
        ("local_response_normalization", "lrn"),
        "input / (bias + alpha * jax.lax.reduce_window(input**2, 0.0, jax.lax.add, (1, 1, 1, 2 * depth_radius + 1), "
        "(1, 1, 1, 1), 'SAME')) ** beta",
    ),
    "log_poisson_loss": "jnp.exp(log_input) - log_input * targets",
    "nce_loss": "jnp.sum(tf.nn.sigmoid_cross_entropy_with_logits(jax.nn.one_hot(labels[:, 0], num_classes), "
    "inputs @ weights.T + biases), 1); over all classes, not a sample of them",
    "sampled_softmax_loss": "tf.nn.sparse_softmax_cross_entropy_with_logits(labels[:, 0], inputs @ weights.T + "
    "biases); over all classes, not a sample of them",
    "separable_conv2d": "keras.ops.separable_conv(input, depthwise_filter, pointwise_filter, strides, "
    "padding.lower()); " + _STRIDES,
    "softsign": "jax.nn.soft_sign(features)",
    "weighted_cross_entropy_with_logits": "(1 - labels) * logits + (1 + (pos_weight - 1) * labels) * "
    "jax.nn.softplus(-logits)",
    "weighted_moments": "(mean := jnp.average(x, axes, frequency_weights), jnp.average((x - mean) ** 2, axes, "
    "frequency_weights)); with as many weights as numbers, over the first axis",
    "zero_fraction": "jnp.mean(value == 0)",
}
_LINALG: dict[str, str] = {
    "adjoint": "jnp.conj(jnp.matrix_transpose(matrix))",
    "cholesky": "jnp.linalg.cholesky(input)",
    "cholesky_solve": "jax.scipy.linalg.cho_solve((chol, True), rhs)",
    "cross": "jnp.cross(a, b)",
    "det": "jnp.linalg.det(input)",
    "diag": "diagonal[..., None] * jnp.eye(diagonal.shape[-1], dtype=diagonal.dtype)",
    "diag_part": "jnp.diagonal(input, axis1=-2, axis2=-1)",
    "eig": "jnp.linalg.eig(tensor); on CPUs",
    "eigh": "jnp.linalg.eigh(tensor)",
    "eigvals": "jnp.linalg.eigvals(tensor); on CPUs",
    "eigvalsh": "jnp.linalg.eigvalsh(tensor)",
    "expm": "jax.scipy.linalg.expm(input)",
    "eye": "tf.eye(num_rows)",
    "inv": "jnp.linalg.inv(input)",
    "logdet": "jnp.linalg.slogdet(matrix)[1]",
    "lstsq": "jnp.linalg.lstsq(matrix, rhs)[0]",
    "matrix_rank": "jnp.linalg.matrix_rank(a)",
    "matrix_transpose": "jnp.matrix_transpose(a)",
    "normalize": "tensor / (norm := jnp.linalg.norm(tensor)), norm",
    "pinv": "jnp.linalg.pinv(a)",
    "qr": "jnp.linalg.qr(input)",
    "set_diag": "jnp.where(jnp.eye(*input.shape[-2:], dtype=bool), diagonal[..., None], input); of square matrices",
    "slogdet": "jnp.linalg.slogdet(input)",
    "solve": "jnp.linalg.solve(matrix, rhs)",
    "sqrtm": "jax.scipy.linalg.sqrtm(input)",
    "svd": "jnp.linalg.svd(tensor, full_matrices=False); as u, s, v with v transposed, where TensorFlow gives s, u, v",
    "tensor_diag": "jnp.diag(diagonal)",
    "tensor_diag_part": "jnp.diag(input)",
    "trace": "jnp.trace(x, axis1=-2, axis2=-1)",
    "triangular_solve": "jax.scipy.linalg.solve_triangular(matrix, rhs, lower=lower)",
}
_SIGNAL: dict[str, str] = {
    **{
        f"{kind}fft{axes}": f"jnp.fft.{kind}fft{call})".replace("(_", "(input_tensor" if "r" in kind else "(input")
        for kind in ("", "i", "r", "ir")
        for axes, call in {"": "(_", "2d": "2(_", "3d": "n(_, axes=(-3, -2, -1)"}.items()
    },
    "fftshift": "jnp.fft.fftshift(x)",
    "ifftshift": "jnp.fft.ifftshift(x)",
    "dct": "jax.scipy.fft.dct(input)",
    "frame": "signal[..., jnp.arange(0, signal.shape[-1] - frame_length + 1, frame_step)[:, None] + "
    "jnp.arange(frame_length)]",
    "hamming_window": "jnp.hamming(window_length + 1)[:-1]",
    "hann_window": "jnp.hanning(window_length + 1)[:-1]",
    "kaiser_window": "jnp.kaiser(window_length, beta)",
    "stft": "jax.lax.complex(*keras.ops.stft(signals, frame_length, frame_step, frame_length, center=False)); where "
    "frame_length is a power of two",
    "linear_to_mel_weight_matrix": "librosa.filters.mel(sr=rate, n_fft=length).T; of another scale of mel",
}
_RANDOM: dict[str, str] = {
    "categorical": "jax.random.categorical(key, logits[:, None], shape=(len(logits), num_samples)); " + _DRAWS,
    "gamma": "jax.random.gamma(key, alpha, shape) / beta; " + _DRAWS,
    "poisson": "jax.random.poisson(key, lam, shape); " + _DRAWS,
    "shuffle": "jax.random.permutation(key, value); " + _DRAWS,
    "fold_in": "jax.random.fold_in(key, data)",
    "split": "jax.random.split(key, num)",
}
_BITWISE = {
    **{
        f"{name}": f"jnp.{name}(x, y)"
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
    },
    "invert": "jnp.invert(x)",
}
_IN_WORDS: dict[str, str] = {
    "tf.Assert": "use Python's `assert`, or `jax.experimental.checkify` in compiled functions",
    "tf.Graph": "there are no graphs: call the functions",
    "tf.Operation": "there are no graphs and no operations: call the functions",
    "tf.RaggedTensorSpec": "pad: `dataset.padded_batch(n)`, and write `tf.TensorSpec([None, None], dtype)`",
    "tf.SparseTensor": "JAX's programs have dense arrays: use them, or `jax.experimental.sparse`",
    "tf.UnconnectedGradients": 'write `unconnected_gradients="zero"`, or "none"',
    **{
        f"tf.assert_{name}": "use Python's `assert`, or `jax.experimental.checkify` in compiled functions"
        for name in ("equal", "greater", "less", "rank")
    },
    "tf.as_string": "write it with Python's `str` in the dataset's `map`",
    "tf.autodiff.ForwardAccumulator": "write `jax.jvp(function, (x,), (tangent,))`",
    "tf.edit_distance": "use a library of its own, such as `jiwer`, outside of compiled functions",
    "tf.fingerprint": "use `hashlib`",
    "tf.get_static_value": "write `np.asarray(x)`, outside of compiled functions",
    "tf.identity_n": "there are no operations: take the list itself",
    "tf.init_scope": "leave it out, and make constants and variables outside of the function",
    "tf.inside_function": "write `not tf.executing_eagerly()`",
    "tf.load_op_library": "call libraries by `jax.ffi`",
    **{
        f"tf.nn.{name}": "write `jd.nn.embedding_lookup(table, ids, combiner=...)`, with ids filled up by -1"
        for name in ("embedding_lookup_sparse", "safe_embedding_lookup_sparse")
    },
    **{
        f"tf.nn.ctc_{name}_decoder": "write `keras.ops.ctc_decode(inputs, sequence_lengths)`, of inputs by rows"
        for name in ("greedy", "beam_search")
    },
    **{
        f"tf.{module}.{name}_candidate_sampler": "write `jax.random.choice(key, range_max, (num_sampled,), p=...)`"
        for module in ("nn", "random")
        for name in ("all", "fixed_unigram", "learned_unigram", "log_uniform", "uniform")
    },
    **{
        f"tf.nn.RNNCell{name}Wrapper": "use the layers of Keras: `keras.layers.RNN` and its cells"
        for name in ("Device", "Dropout", "Residual")
    },
    "tf.shape_n": "write `[tf.shape(one) for one in input]`",
    "tf.no_gradient": "write `jax.lax.stop_gradient(x)`",
    "tf.reverse_sequence": "write `jax.vmap(lambda row, n: jnp.where(jnp.arange(len(row)) < n, jnp.roll(row[::-1], n), "
    "row))(input, seq_lengths)`, of rows of numbers",
    "tf.tuple": "there are no operations: take the list itself",
    "tf.audio": "read sound with `scipy.io.wavfile` or `soundfile`, in the dataset's `map`",
    "tf.compat.as_bytes": "write `text.encode()`",
    "tf.compat.as_str": "write `data.decode()`",
    "tf.compat.as_str_any": "write `str(value)`",
    "tf.compat.as_text": "write `data.decode()`",
    "tf.compat.path_to_str": "write `os.fspath(path)`",
    "tf.compat.v1.nn": "write the name of `tf.nn`, without `compat.v1`",
    "tf.config.experimental_run_functions_eagerly": "write `tf.config.run_functions_eagerly`",
    "tf.config.experimental_functions_run_eagerly": "write `tf.config.functions_run_eagerly`",
    "tf.config.set_soft_device_placement": "there is no soft placement: leave it out, and devices to the strategy",
    "tf.data.FixedLengthRecordDataset": "write `Dataset.from_tensor_slices(np.fromfile(name, np.uint8)"
    ".reshape(-1, record_bytes))`",
    "tf.data.experimental.Counter": "write `Dataset.from_generator(itertools.count, tf.int64)`",
    "tf.data.experimental.assert_cardinality": "leave it out: write `dataset.take(n)` if it may have more",
    "tf.data.experimental.group_by_window": "group in Python in `from_generator`, or use `bucket_by_sequence_length`",
    "tf.data.experimental.ignore_errors": "catch the errors in the function that `map` gets",
    **{
        f"tf.data.experimental.{name}": f"write `dataset.{name}(...)`, a method"
        for name in ("bucket_by_sequence_length", "choose_from_datasets", "get_single_element", "sample_from_datasets",
                     "scan", "take_while", "unbatch", "unique")
    },
    "tf.data.experimental.enumerate_dataset": "write `dataset.enumerate(start)`",
    "tf.data.experimental.map_and_batch": "write `dataset.map(f).batch(n)`",
    "tf.data.experimental.parallel_interleave": "write `dataset.interleave(f, cycle_length)`",
    "tf.data.experimental.shuffle_and_repeat": "write `dataset.shuffle(buffer_size).repeat(count)`",
    **{
        f"tf.data.experimental.{name}": "leave it out: the strategy brings batches to the devices"
        for name in ("copy_to_device", "prefetch_to_device")
    },
    **{
        f"tf.data.experimental.{name}": "read the file with pandas or the `csv` module, and write "
        "`Dataset.from_tensor_slices(dict(frame))`"
        for name in ("make_csv_dataset", "CsvDataset", "SqlDataset")
    },
    "tf.experimental.numpy": "write `jnp` for it: `jax.numpy` has the same names",
    "tf.experimental.Optional": "return the value, or None",
    "tf.linalg": "look in `jax.numpy.linalg` and `jax.scipy.linalg`",
    "tf.quantization": "round in jax.numpy: `y = jnp.round(x / scale) * scale`, and `x + jax.lax.stop_gradient(y - x)`",
    "tf.queue": "use `queue.Queue` of Python, outside of compiled functions, or a dataset",
    "tf.random": "use `jax.random` with keys",
    "tf.sets": "use `np.union1d`, `np.intersect1d` and `np.setdiff1d`, outside of compiled functions",
    "tf.signal": "look in `jax.numpy.fft`, `jax.scipy.signal` and `keras.ops`",
    **{
        f"tf.train.{name}": "store arrays with ArrayRecord and Grain, or the steps in a tf.train.Example"
        for name in ("FeatureList", "FeatureLists")
    },
    "tf.train.checkpoints_iterator": "write a loop that asks `tf.train.latest_checkpoint(folder)`",
    "tf.train.Coordinator": "use `threading.Event` of Python",
    "tf.train.get_checkpoint_state": "write `tf.train.latest_checkpoint(folder)`",
    **{
        f"tf.train.{name}": "TensorFlow's checkpoints cannot be read: save the arrays with TensorFlow, by `np.savez`"
        for name in ("list_variables", "load_checkpoint", "load_variable")
    },
}  # fmt: skip


def _told(expression: str) -> str:
    code, _, remark = expression.partition("; ")
    return f"write `{code}`" + (f", {remark}" if remark else "")


ABSENT: dict[str, str] = {
    f"{module}.{name}": _told(expression)
    for module, table in {
        "tf": _TOP | {name: _MATH[name] for name in _IN_TF.split()},
        "tf.math": _MATH,
        "tf.nn": _NN,
        "tf.linalg": _LINALG,
        "tf.signal": _SIGNAL,
        "tf.random": _RANDOM,
        "tf.bitwise": _BITWISE,
    }.items()
    for name, expression in table.items()
} | _IN_WORDS
"""The advice for each, by full name: an expression over the arguments' names in TensorFlow, or words."""
