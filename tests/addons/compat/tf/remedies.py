"""Calls of functions of TensorFlow for which `migrate` has an expression to write, and their arguments.

The arguments are evaluated over `np` with the type float32 for fractions, and given by their names in TensorFlow.
"""

_X = {"x": "np.float32([0.5, 0.25, 0.75])"}
_IMAGE = "np.arange(96, dtype=np.float32).reshape(2, 4, 4, 3) % 7"
_MATRIX = "np.float32([[4, 1, 0], [1, 3, 1], [0, 1, 2]])"
_MATRICES = "np.arange(18, dtype=np.float32).reshape(2, 3, 3) % 5"
_WINDOW = {"strides": "2", "padding": "'SAME'"}
_POOL = {"input": _IMAGE, "ksize": "2"} | _WINDOW
_SEGMENTS = {"data": "np.float32([1, 2, 3, 4])", "segment_ids": "np.int32([0, 0, 1, 2])"}
_UNSORTED = {"data": "np.float32([1, 2, 3, 4])", "segment_ids": "np.int32([2, 0, 2, 1])", "num_segments": "3"}
_PAIR = {"x": "np.float32([0, 1.5, -2])", "y": "np.float32([2, 0.5, 4])"}
_INTS = {"x": "np.int32([6, -7, 3])", "y": "np.int32([2, 3, 1])"}
_SCATTER = {"indices": "np.int32([[0, 1], [2, 0]])", "updates": "np.float32([5, 7])"}
_TENSOR = {"tensor": "np.ones((3, 2), np.float32)"} | _SCATTER
_FOLD = {"fn": "lambda a, x: a * 2 + x", "elems": "np.float32([1, 2, 3])", "initializer": "np.float32(1)"}
_LOSS = {"labels": "np.float32([0, 1, 1])", "logits": "np.float32([-1, 0.5, 2])"}
_TOP = {"targets": "np.int32([2, 0])", "predictions": "np.float32([[0.1, 0.5, 0.4], [0.2, 0.7, 0.6]])", "k": "2"}
_SERIES = "np.float32([1, 2, -1, 0.5, 3, -2, 0, 1])"
_CUBE = "(np.arange(64).reshape(4, 4, 4) % 11).astype(np.complex64)"

REMEDIES: list[tuple[str, dict[str, str]]] = [
    *((f"tf.math.{name}", _X) for name in (
        "acos asin asinh atan atanh cosh sinh tan is_inf rint bessel_i0 bessel_i0e bessel_i1 bessel_i1e digamma erfc "
        "erfinv lgamma ndtri log_sigmoid reciprocal_no_nan is_non_decreasing is_strictly_increasing"
    ).split()),
    *((f"tf.{name}", _X) for name in ("acos", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")),
    ("tf.math.softsign", {"features": "np.float32([-1, 2])"}),
    ("tf.math.acosh", {"x": "np.float32([1, 2])"}),
    ("tf.math.conj", {"x": "np.complex64([1 + 2j])"}),
    *((f"tf.math.{name}", {"input": "np.complex64([1 + 2j])"}) for name in ("real", "imag", "angle")),
    ("tf.math.accumulate_n", {"inputs": "[np.float32([1]), np.float32([2])]"}),
    ("tf.math.atan2", {"y": "np.float32([1, -2])", "x": "np.float32([3, -4])"}),
    ("tf.math.betainc", {"a": "np.float32(1)", "b": "np.float32(2)", "x": "np.float32(0.3)"}),
    ("tf.math.bincount", {"arr": "np.int32([1, 1, 3])"}),
    ("tf.math.count_nonzero", {"input": "np.float32([[0, 1], [2, 3]])", "axis": "1"}),
    ("tf.math.cumprod", {"x": _MATRIX, "axis": "1"}),
    ("tf.math.cumulative_logsumexp", {"x": _MATRIX, "axis": "1"}),
    ("tf.math.erfcinv", _X),
    ("tf.math.igamma", {"a": "np.float32(2)", "x": "np.float32(0.3)"}),
    ("tf.math.igammac", {"a": "np.float32(2)", "x": "np.float32(0.3)"}),
    ("tf.math.in_top_k", _TOP),
    ("tf.nn.in_top_k", _TOP),
    ("tf.math.invert_permutation", {"x": "np.int32([2, 0, 1])"}),
    ("tf.math.log_softmax", {"logits": _MATRIX}),
    ("tf.math.softmax", {"logits": _MATRIX}),
    ("tf.math.logical_xor", {"x": "np.bool_([True, False])", "y": "np.bool_([True, True])"}),
    ("tf.math.mod", _INTS),
    ("tf.math.multiply_no_nan", {"x": "np.float32([np.inf, 2])", "y": "np.float32([0, 3])"}),
    ("tf.math.nextafter", {"x1": "np.float32([1])", "x2": "np.float32([2])"}),
    ("tf.math.polygamma", {"a": "np.float32(1)", "x": "np.float32(0.7)"}),
    ("tf.math.polyval", {"coeffs": "[np.float32(1), np.float32(2)]", "x": "np.float32([3, 4])"}),
    ("tf.math.reduce_euclidean_norm", {"input_tensor": _MATRIX, "axis": "1"}),
    ("tf.math.scalar_mul", {"scalar": "2.0", "x": _MATRIX}),
    *((f"tf.math.segment_{name}", _SEGMENTS) for name in ("max", "mean", "min", "prod", "sum")),
    *((f"tf.math.unsorted_segment_{name}", _UNSORTED) for name in ("max", "mean", "min", "prod", "sqrt_n", "sum")),
    *((f"tf.math.{name}", _PAIR) for name in ("truediv", "xdivy")),
    *((f"tf.math.{name}", {"x": "np.float32([0, 1.5])", "y": "np.float32([0, 4])"}) for name in ("xlogy", "xlog1py")),
    ("tf.math.zero_fraction", {"value": "np.float32([0, 1, 0])"}),
    ("tf.math.zeta", {"x": "np.float32(2)", "q": "np.float32(1.5)"}),
    *((f"tf.bitwise.{name}", {"x": "np.int32([6, 3])", "y": "np.int32([3, 1])"}) for name in (
        "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")),
    ("tf.bitwise.invert", {"x": "np.int32([6, 3])"}),
    ("tf.bitcast", {"input": "np.float32([1, 2])", "type": "np.int32"}),
    ("tf.broadcast_static_shape", {"shape_x": "tf.TensorShape([2, 1])", "shape_y": "tf.TensorShape([3])"}),
    ("tf.broadcast_dynamic_shape", {"shape_x": "np.int32([2, 1])", "shape_y": "np.int32([3])"}),
    ("tf.complex", {"real": "np.float32([1])", "imag": "np.float32([2])"}),
    ("tf.dynamic_partition", {"data": _SERIES,
        "partitions": "np.int32([0, 1, 0, 1, 1, 0, 0, 1])", "num_partitions": "2"}),
    ("tf.dynamic_stitch", {
        "indices": "[np.int32([2, 0]), np.int32([1])]", "data": "[np.float32([5, 6]), np.float32([7])]"}),
    ("tf.foldl", _FOLD),
    ("tf.foldr", _FOLD),
    ("tf.scan", _FOLD),
    ("tf.histogram_fixed_width", {
        "values": "np.float32([-1, 0, 1.5, 2, 5, 15])", "value_range": "[0.0, 5.0]", "nbins": "5"}),
    ("tf.map_fn", {"fn": "lambda x: x * 2", "elems": _MATRIX}),
    ("tf.vectorized_map", {"fn": "lambda x: x * 2", "elems": _MATRIX}),
    ("tf.matrix_square_root", {"input": "np.float32([[4, 1], [1, 3]])"}),
    ("tf.realdiv", _PAIR),
    ("tf.truncatediv", _INTS),
    ("tf.truncatemod", _INTS),
    ("tf.saturate_cast", {"value": "np.float32([-1, 3, 300])", "dtype": "np.uint8"}),
    ("tf.scatter_nd", {"shape": "[3, 2]"} | _SCATTER),
    *((f"tf.tensor_scatter_nd_{name}", _TENSOR) for name in ("add", "max", "min", "sub")),
    ("tf.searchsorted", {
        "sorted_sequence": "np.float32([1, 3, 5])", "values": "np.float32([0, 3, 4])", "side": "'right'"}),
    ("tf.strided_slice", {"input_": _MATRIX, "begin": "[0, 1]", "end": "[3, 3]", "strides": "[2, 1]"}),
    ("tf.unique", {"x": "np.int32([1, 1, 4, 5, 5])"}),
    ("tf.unique_with_counts", {"x": "np.int32([1, 1, 4, 5, 5])"}),
    ("tf.unravel_index", {"indices": "np.int32([2, 5])", "dims": "[2, 3]"}),
    ("tf.nn.atrous_conv2d", {
        "value": _IMAGE, "filters": "np.ones((2, 2, 3, 2), np.float32)", "rate": "2", "padding": "'SAME'"}),
    ("tf.nn.conv1d", {"input": f"({_IMAGE})[0]", "filters": "np.ones((2, 3, 2), np.float32)", "stride": "2"} | {
        "padding": "'VALID'"}),
    ("tf.nn.conv2d", {"input": _IMAGE, "filters": "np.arange(24, dtype=np.float32).reshape(2, 2, 3, 2)"} | _WINDOW),
    ("tf.nn.convolution", {"input": _IMAGE, "filters": "np.ones((2, 2, 3, 2), np.float32)"} | _WINDOW),
    ("tf.nn.conv2d_transpose", {"input": _IMAGE, "filters": "np.arange(24, dtype=np.float32).reshape(2, 2, 2, 3)",
        "output_shape": "[2, 8, 8, 2]"} | _WINDOW),
    ("tf.nn.conv3d", {"input": f"({_IMAGE})[None]", "filters": "np.ones((1, 2, 2, 3, 2), np.float32)",
        "strides": "[1, 1, 2, 2, 1]", "padding": "'SAME'"}),
    *((f"tf.nn.{kind}_pool2d", _POOL) for kind in ("max", "avg")),
    *((f"tf.nn.{kind}_pool", _POOL) for kind in ("max", "avg")),
    *((f"tf.nn.{kind}_pool1d", _POOL | {"input": f"({_IMAGE})[0]"}) for kind in ("max", "avg")),
    ("tf.nn.batch_normalization", {"x": _IMAGE, "mean": "np.float32([1, 2, 3])", "variance": "np.float32([1, 2, 3])",
        "offset": "np.float32(0.5)", "scale": "np.float32(2)", "variance_epsilon": "1e-3"}),
    ("tf.nn.crelu", {"features": "np.float32([[-1, 2]])"}),
    ("tf.nn.depthwise_conv2d", {"input": _IMAGE, "filter": "np.arange(24, dtype=np.float32).reshape(2, 2, 3, 2)",
        "strides": "[1, 2, 2, 1]", "padding": "'SAME'"}),
    ("tf.nn.separable_conv2d", {"input": _IMAGE, "depthwise_filter": "np.ones((2, 2, 3, 2), np.float32)",
        "pointwise_filter": "np.arange(24, dtype=np.float32).reshape(1, 1, 6, 4)", "strides": "[1, 2, 2, 1]",
        "padding": "'VALID'"}),
    *((f"tf.nn.{name}", {"input": _IMAGE, "depth_radius": "1", "bias": "1.0", "alpha": "0.5", "beta": "0.75"})
        for name in ("local_response_normalization", "lrn")),
    ("tf.nn.log_poisson_loss", {"targets": "np.float32([1, 2])", "log_input": "np.float32([0.5, -1])"}),
    ("tf.nn.softsign", {"features": "np.float32([-1, 2])"}),
    ("tf.nn.weighted_cross_entropy_with_logits", _LOSS | {"pos_weight": "3.0"}),
    ("tf.nn.weighted_moments", {"x": _MATRIX, "axes": "0",
        "frequency_weights": "np.float32([[1] * 3, [2] * 3, [3] * 3])"}),
    ("tf.nn.zero_fraction", {"value": "np.float32([0, 1, 0])"}),
    ("tf.linalg.adjoint", {"matrix": "np.complex64([[1 + 2j, 3], [4j, 5]])"}),
    *((f"tf.linalg.{name}", {"input": _MATRIX}) for name in ("cholesky", "det", "expm", "inv", "slogdet")),
    ("tf.linalg.sqrtm", {"input": _MATRIX}),
    ("tf.linalg.cholesky_solve", {"chol": "np.float32([[2, 0], [1, 3]])", "rhs": "np.float32([[1], [2]])"}),
    ("tf.linalg.cross", {"a": "np.float32([1, 2, 3])", "b": "np.float32([3, 1, 2])"}),
    ("tf.linalg.diag", {"diagonal": "np.float32([[1, 2], [3, 4]])"}),
    ("tf.linalg.diag_part", {"input": _MATRICES}),
    ("tf.linalg.set_diag", {"input": _MATRICES, "diagonal": "np.float32([[7, 8, 9], [1, 2, 3]])"}),
    ("tf.linalg.eigvalsh", {"tensor": _MATRIX}),
    ("tf.linalg.eye", {"num_rows": "3"}),
    ("tf.linalg.logdet", {"matrix": _MATRIX}),
    ("tf.linalg.lstsq", {"matrix": "np.float32([[1, 2], [3, 4], [5, 7]])", "rhs": "np.float32([[1], [2], [4]])"}),
    ("tf.linalg.matrix_rank", {"a": _MATRIX}),
    ("tf.linalg.matrix_transpose", {"a": _MATRICES}),
    ("tf.linalg.normalize", {"tensor": "np.float32([3, 4])"}),
    ("tf.linalg.pinv", {"a": "np.float32([[1, 2], [3, 4], [5, 7]])"}),
    ("tf.linalg.solve", {"matrix": _MATRIX, "rhs": "np.float32([[1], [2], [3]])"}),
    ("tf.linalg.tensor_diag", {"diagonal": "np.float32([3, 4])"}),
    ("tf.linalg.tensor_diag_part", {"input": _MATRIX}),
    ("tf.linalg.trace", {"x": _MATRICES}),
    ("tf.linalg.triangular_solve", {
        "matrix": "np.float32([[2, 0], [1, 3]])", "rhs": "np.float32([[1], [2]])", "lower": "True"}),
    *((f"tf.signal.{kind}fft", {"input": f"np.complex64({_SERIES})"}) for kind in ("", "i")),
    *((f"tf.signal.{kind}fft{n}d", {"input": _CUBE}) for kind in ("", "i") for n in (2, 3)),
    ("tf.signal.rfft", {"input_tensor": _SERIES}),
    ("tf.signal.rfft2d", {"input_tensor": _MATRIX}),
    ("tf.signal.rfft3d", {"input_tensor": f"np.real({_CUBE})"}),
    ("tf.signal.irfft", {"input_tensor": f"np.fft.rfft({_SERIES}).astype(np.complex64)"}),
    *((f"tf.signal.irfft{n}d", {"input_tensor": f"np.fft.rfftn({_CUBE}.real).astype(np.complex64)"}) for n in (2, 3)),
    ("tf.signal.fftshift", {"x": _SERIES}),
    ("tf.signal.ifftshift", {"x": _SERIES}),
    ("tf.signal.dct", {"input": _SERIES}),
    ("tf.signal.frame", {"signal": _SERIES, "frame_length": "4", "frame_step": "2"}),
    ("tf.signal.hamming_window", {"window_length": "6"}),
    ("tf.signal.hann_window", {"window_length": "6"}),
    ("tf.signal.kaiser_window", {"window_length": "6", "beta": "12.0"}),
    ("tf.signal.stft", {"signals": _SERIES, "frame_length": "4", "frame_step": "2"}),
]  # fmt: skip

OURS: dict[str, dict[str, str]] = {
    "tf.nn.conv1d": {"strides": "2"},
    "tf.nn.conv3d": {"strides": "(1, 2, 2)"},
    "tf.nn.depthwise_conv2d": {"strides": "2"},
    "tf.nn.separable_conv2d": {"strides": "2"},
}
"""Arguments that the expression takes otherwise, as the advice says."""
