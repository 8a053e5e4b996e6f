"""Datasets whose elements, specs and cardinalities TensorFlow has told, for what is not obvious. Recorded beside."""

from typing import Any

_LENGTHS = "D.range(6).map(lambda x: x % 4 + 1).map(lambda x: tf.ones([x]))"
_BUCKETS = f"{_LENGTHS}.bucket_by_sequence_length(lambda x: tf.shape(x)[0]"

PROGRAMS: list[str] = [
    # Functions' results: a list is a tuple, but not within.
    "D.range(3).map(lambda x: [x, x + 1])",
    "D.range(3).map(lambda x: [x, x + 1]).batch(2)",
    "D.range(3).map(lambda x: {'a': [x, x]})",
    "D.range(3).map(lambda x: (x, [x, x]))",
    "D.range(3).map(lambda x: (x, None)).batch(2)",
    # Repetition.
    "gen().repeat()",
    "gen().repeat(0)",
    "gen().repeat(2)",
    "D.range(3).filter(lambda x: x > 1).repeat()",
    "D.range(0).repeat()",
    "D.range(3).repeat(0)",
    "D.range(3).repeat().repeat(0)",
    "D.range(3).repeat().repeat(2).take(4)",
    "D.range(3).repeat().take(4).repeat(2)",
    "D.range(3).repeat().batch(1).take(2)",
    "D.range(3).repeat().batch(2).take(3).repeat(2)",
    "D.range(3).repeat().skip(4).take(2)",
    "D.range(3).repeat().shard(2, 1).take(2)",
    "D.range(3).repeat().filter(lambda x: x > 1).take(2)",
    # Numbers of elements.
    "gen().take(0)",
    "gen().take(2)",
    "gen().skip(-1)",
    "D.range(5).batch(2).unbatch()",
    "D.range(5).batch(2, drop_remainder=True).unbatch()",
    "D.from_tensor_slices(np.zeros((2, 3), 'float32')).unbatch()",
    "D.range(3).flat_map(lambda x: D.range(2))",
    "D.range(0).flat_map(lambda x: D.range(2))",
    "D.range(3).interleave(lambda x: D.range(2), cycle_length=2)",
    "D.range(3).enumerate(start=2)",
    "D.zip((D.range(3), gen()))",
    "D.zip((D.range(3).repeat(), D.range(2)))",
    "D.range(3).concatenate(D.range(2))",
    "gen64().concatenate(D.range(3).repeat())",
    "D.range(3).cache().shuffle(3).prefetch(1).take(0)",
    # Windows.
    "D.range(7).window(3)",
    "D.range(7).window(3, shift=1)",
    "D.range(7).window(3, shift=2, stride=2)",
    "D.range(7).window(3, shift=5)",
    "D.range(7).window(3, drop_remainder=True)",
    "D.range(7).window(3, shift=1, stride=2, drop_remainder=True)",
    "D.range(2).window(3, drop_remainder=True)",
    "D.range(7).repeat().window(3).take(1)",
    "D.range(4).window(2).map(lambda w: w).cache()",
    # Specs.
    "D.range(0)",
    "D.from_tensor_slices(np.zeros((0,), 'float32')).map(lambda x: (x, tf.stack([x, x])))",
    "D.range(5).filter(lambda x: x > 9).map(lambda x: tf.cast(x, tf.float32)).batch(2)",
    "D.range(5).batch(2).map(lambda x: x * 2)",
    "D.range(5).batch(2).map(lambda x: tf.reduce_sum(x))",
    "D.range(3).map(lambda x: tf.range(tf.cast(x, tf.int32)))",
    "D.from_generator(lambda: [[1], [1, 2]], output_signature=tf.TensorSpec([None], tf.int32))",
    "D.from_generator(lambda: [[1], [1, 2]], output_signature=tf.TensorSpec([None], tf.int32)).map(lambda x: x * 2)",
    "D.from_generator(lambda: [[1], [1, 2]], output_signature=tf.TensorSpec([None], tf.int32)).padded_batch(2)",
    "D.from_generator(lambda: [[1], [1, 2]], output_signature=tf.TensorSpec([None], tf.int32)).unbatch()",
    "D.from_generator(lambda: [1], tf.int32, output_shapes=[])",
    "D.from_generator(lambda: iter([]), output_signature=tf.TensorSpec([2], tf.int32)).map(lambda x: x[0])",
    "D.from_tensor_slices(np.zeros((5, 3), 'float32')).padded_batch(2)",
    "D.from_tensor_slices(np.zeros((5, 3), 'float32')).padded_batch(2, padded_shapes=[None])",
    "D.from_tensor_slices(np.zeros((5, 3), 'float32')).padded_batch(2, padded_shapes=[4], drop_remainder=True)",
    "D.range(3).concatenate(D.from_tensor_slices(np.zeros((2, 3), 'int64')))",
    "D.from_tensor_slices(np.zeros((2, 3))).concatenate(D.from_tensor_slices(np.zeros((2, 4))))",
    # Strings.
    "D.from_tensor_slices(['ab', 'c']).batch(2)",
    "D.from_tensor_slices([b'a\\0', b'c\\0\\0']).batch(2)",
    "D.from_tensor_slices(['ab', 'q']).filter(lambda s: s == 'ab')",
    "D.from_tensor_slices(['ab', 'q']).filter(lambda s: s != 'ab')",
    "D.from_tensor_slices(['ab', 'é']).map(lambda s: tf.strings.join([s, 'x'])).filter(lambda s: s == 'éx')",
    "D.from_tensor_slices(['ab', 'q']).map(lambda s: s + 'x')",
    "D.from_tensor_slices(['ab', 'q']).map(lambda s: 'x' + s)",
    "D.from_tensor_slices(['ab', 'q']).map(lambda s: tf.equal(s, 'ab'))",
    "D.from_tensor_slices(['ab', 'q']).map(lambda s: tf.not_equal(s, 'ab'))",
    "D.from_tensor_slices(['ab', 'q']).batch(2).map(lambda s: s == 'ab')",
    "D.from_tensor_slices(['ab', 'q']).batch(2).map(lambda s: s[0] == 'ab')",
    "D.from_tensor_slices(['ab', 'q']).batch(2).map(lambda s: s + 'x')",
    "D.from_tensor_slices((['ab', 'q'], [1, 2])).filter(lambda s, n: s == 'q')",
    # Methods whose elements depend on those before, and on several datasets.
    "D.range(5).take_while(lambda x: x < 2)",
    "D.from_tensor_slices([1, 2, 1, 3, 2]).unique()",
    "D.from_tensor_slices(['a', 'b', 'a']).unique()",
    "D.range(4).scan(np.int64(0), lambda s, x: (s + x, s * 2))",
    "D.range(4).scan(np.int64(0), lambda s, x: (s + x, [s, x]))",
    "D.range(4).enumerate().scan(np.int64(1), lambda s, x: (s * 2, (x[0] + x[1], s)))",
    "D.range(7).batch(3).rebatch(2)",
    "D.range(7).batch(3).rebatch(2, drop_remainder=True)",
    "D.range(7).batch(3).rebatch([2, 1])",
    "D.range(8).batch(4, drop_remainder=True).rebatch([2, 1])",
    "D.choose_from_datasets([D.range(3), D.range(10, 13)], D.from_tensor_slices(np.array([0, 1, 1, 0, 1], 'int64')))",
    "D.choose_from_datasets([D.range(2), D.range(10, 13)], D.from_tensor_slices(np.array([0, 0, 0, 1], 'int64')))",
    "D.choose_from_datasets([D.range(1), D.range(10, 13)], D.from_tensor_slices(np.array([0, 0, 1], 'int64')), False)",
    "D.sample_from_datasets([D.range(3), D.range(10, 13)], [1.0, 0.0], stop_on_empty_dataset=True)",
    "D.sample_from_datasets([D.range(3), D.range(10, 13)], [1.0, 0.0])",
    f"{_BUCKETS}, [2, 3], [2, 2, 2])",
    f"{_BUCKETS}, [2, 3], [2, 3, 4])",
    f"{_BUCKETS}, [2, 4], [1, 3, 4])",
    f"{_BUCKETS}, [2, 3], [2, 3, 4], drop_remainder=True)",
    f"{_BUCKETS}, [3, 5], [2, 2, 2], pad_to_bucket_boundary=True)",
    f"{_BUCKETS}, [3, 5], [2, 2, 2], padded_shapes=[6], padding_values=-1.0)",
    f"{_BUCKETS}, [2, 3, 4], [1, 1, 1, 1], no_padding=True)",
]


def generated(tf: Any) -> dict[str, Any]:
    """The names that the programs use beside `tf` and `np`."""
    dataset = tf.data.Dataset
    return {
        "D": dataset,
        "gen": lambda: dataset.from_generator(lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int32)),
        "gen64": lambda: dataset.from_generator(lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)),
    }


def described(value: Any) -> Any:
    """An element as JSON."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("latin1")
    if hasattr(value, "element_spec"):
        return {"dataset": [described(element) for element in value]}
    if isinstance(value, dict):
        return {name: described(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return {"tuple": [described(part) for part in value]}
    array = value.numpy() if hasattr(value, "numpy") else value
    return _texts(array if isinstance(array, bytes) else array.tolist())


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return value.decode("latin1") if isinstance(value, bytes) else value


def described_spec(spec: Any) -> Any:
    """A spec as JSON."""
    if spec is None or type(spec).__name__ == "NoneTensorSpec":
        return None
    if isinstance(spec, dict):
        return {name: described_spec(part) for name, part in spec.items()}
    if isinstance(spec, tuple):
        return {"tuple": [described_spec(part) for part in spec]}
    if type(spec).__name__ == "DatasetSpec":
        return {"dataset": described_spec(spec.element_spec)}
    shape, kind = spec.shape, spec.dtype.name
    return [None if shape.rank is None else list(shape), "string" if kind == "object" else kind]
