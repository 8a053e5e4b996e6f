"""`tf.data.Dataset`: what its methods give, one after the other and distributed."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute import AutoShardPolicy, InputOptions
from jaxtribute._src.core.input.policy import resolve
from jaxtribute._src.core.input.sources import adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import ArgumentError, ArgumentTypeError, InputError
from replicas import components

Dataset = tf.data.Dataset
counts = st.integers(0, 12)
sizes = st.integers(1, 5)


def numbers(dataset: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in dataset.as_numpy_iterator()]


def streamed(count: int) -> Any:
    """The numbers as a stream, of which nothing is known beforehand."""
    return Dataset.from_generator(lambda: range(count), output_types=tf.int64)


both = pytest.mark.parametrize("make", [Dataset.range, streamed], ids=["indexed", "streamed"])


class TestSources:
    def test_range_takes_pythons_arguments(self) -> None:
        assert numbers(Dataset.range(2, 8, 3)) == [2, 5]
        assert Dataset.range(3).element_spec == tf.TensorSpec([], tf.int64)
        assert Dataset.range(3, output_type=tf.int32).element_spec.dtype == tf.int32

    def test_slices_of_nests(self) -> None:
        dataset = Dataset.from_tensor_slices({"x": [[1.0, 2.0], [3.0, 4.0]], "y": (np.arange(2), [5, 6])})
        elements = list(dataset.as_numpy_iterator())
        assert elements[1]["x"].tolist() == [3.0, 4.0]
        assert elements[1]["y"] == (1, 6)
        assert dataset.element_spec["x"] == tf.TensorSpec([2], tf.float32)

    def test_tensors_are_one_element(self) -> None:
        dataset = Dataset.from_tensors([[1.0]])
        assert numbers(dataset) == [[[1.0]]]
        assert dataset.element_spec == tf.TensorSpec([1, 1])

    def test_generator_is_called_for_each_pass(self) -> None:
        dataset = Dataset.from_generator(range, args=(2,), output_signature=tf.TensorSpec([], tf.int32))
        assert numbers(dataset) == numbers(dataset) == [0, 1]
        assert dataset.element_spec.dtype == tf.int32

    def test_generator_without_a_type(self) -> None:
        assert [e.dtype for e in Dataset.from_generator(lambda: [1.5]).as_numpy_iterator()] == [np.float32]

    def test_zip_ends_with_the_shortest(self) -> None:
        assert [tuple(map(int, e)) for e in Dataset.zip(Dataset.range(3), Dataset.range(10, 12))] == [(0, 10), (1, 11)]
        zipped = Dataset.zip({"a": Dataset.range(2), "b": Dataset.range(2)})
        assert [int(element["b"]) for element in zipped] == [0, 1]

    def test_files_are_listed_in_order(self, tmp_path: Path) -> None:
        for name in ("b.txt", "a.txt"):
            (tmp_path / name).touch()
        found = [name.decode()[-5:] for name in Dataset.list_files(f"{tmp_path}/*.txt").as_numpy_iterator()]
        assert found == ["a.txt", "b.txt"]
        assert len(Dataset.list_files([f"{tmp_path}/*.txt"], shuffle=True, seed=1)) == 2
        with pytest.raises(ArgumentError, match=r"no file.*HINT"):
            Dataset.list_files(f"{tmp_path}/*.nothing")


@both
class TestTransformations:
    def test_batch(self, make: Any) -> None:
        assert numbers(make(5).batch(2)) == [[0, 1], [2, 3], [4]]
        assert numbers(make(5).batch(2, drop_remainder=True)) == [[0, 1], [2, 3]]

    def test_spec_of_batches(self, make: Any) -> None:
        assert make(5).batch(2).element_spec.shape == (None,)
        assert make(5).batch(2, drop_remainder=True).element_spec.shape == (2,)
        assert make(5).batch(2).repeat().map(lambda x: x * 2).take(1).element_spec.shape == (None,)

    def test_map_and_filter(self, make: Any) -> None:
        assert numbers(make(5).map(lambda x: x * 2).filter(lambda x: x > 2)) == [4, 6, 8]

    def test_map_of_tuples_takes_them_apart(self, make: Any) -> None:
        pairs = make(3).map(lambda x: (x, x + 1)).map(lambda x, y: {"sum": x + y, "list": [x, y]})
        assert [(int(e["sum"]), e["list"].tolist()) for e in pairs.as_numpy_iterator()][-1] == (5, [2, 3])

    def test_map_may_use_arrays_of_jax(self, make: Any) -> None:
        result = list(make(2).map(lambda x: tf.cast(x, tf.float32) / 2.0).as_numpy_iterator())
        assert [type(element) for element in result] == [np.ndarray] * 2
        assert [float(element) for element in result] == [0.0, 0.5]

    def test_repeat(self, make: Any) -> None:
        assert numbers(make(2).repeat(2)) == [0, 1, 0, 1]
        assert numbers(make(2).repeat().take(5)) == [0, 1, 0, 1, 0]
        assert numbers(make(2).repeat(-1).take(3)) == [0, 1, 0]

    def test_take_and_skip(self, make: Any) -> None:
        assert numbers(make(4).skip(1).take(2)) == [1, 2]
        assert numbers(make(2).take(-1)) == [0, 1]
        assert numbers(make(2).skip(-1)) == []
        assert numbers(make(2).take(9)) == [0, 1]

    def test_shuffle_keeps_all_elements(self, make: Any) -> None:
        shuffled = numbers(make(40).shuffle(40, seed=3))
        assert shuffled != list(range(40))
        assert sorted(shuffled) == list(range(40))
        assert numbers(make(40).shuffle(40, seed=3)) == shuffled

    def test_shuffle_of_what_repeats_for_ever(self, make: Any) -> None:
        assert len(numbers(make(4).repeat().shuffle(3, seed=1).take(6))) == 6

    def test_concatenate_and_enumerate(self, make: Any) -> None:
        assert numbers(make(2).concatenate(Dataset.range(7, 8))) == [0, 1, 7]
        assert [tuple(map(int, e)) for e in make(2).enumerate(5).as_numpy_iterator()] == [(5, 0), (6, 1)]

    def test_unbatch(self, make: Any) -> None:
        assert numbers(make(5).batch(2).unbatch()) == [0, 1, 2, 3, 4]
        assert [int(y) for _, y in make(4).batch(2).map(lambda x: (x, x * 2)).unbatch()] == [0, 2, 4, 6]

    def test_flat_map(self, make: Any) -> None:
        assert numbers(make(4).flat_map(lambda x: Dataset.range(int(x)))) == [0, 0, 1, 0, 1, 2]

    def test_interleave_takes_turns(self, make: Any) -> None:
        datasets = make(3).map(lambda x: x * 10)
        taken = datasets.interleave(lambda x: Dataset.range(int(x), int(x) + 3), cycle_length=2)
        assert numbers(taken) == [0, 10, 1, 11, 2, 12, 20, 21, 22]
        blocks = datasets.interleave(lambda x: Dataset.range(int(x), int(x) + 3), cycle_length=3, block_length=2)
        assert numbers(blocks) == [0, 1, 10, 11, 20, 21, 2, 12, 22]

    def test_cache_reads_once(self, make: Any) -> None:
        read: list[int] = []
        dataset = make(3).map(lambda x: (read.append(1), x)[1]).cache()
        assert numbers(dataset) == numbers(dataset) == [0, 1, 2]
        assert len(read) == 3

    def test_prefetch_and_options_change_no_element(self, make: Any) -> None:
        assert numbers(make(2).prefetch(tf.data.AUTOTUNE).with_options(tf.data.Options())) == [0, 1]

    @pytest.mark.parametrize("call", ["batch", "take", "shuffle", "repeat"])
    def test_counts_must_make_sense(self, make: Any, call: str) -> None:
        with pytest.raises(ArgumentError, match=r"-3.*HINT"):
            getattr(make(3), call)(-3)


@both
@given(count=counts, shards=sizes)
def test_shards_are_a_partition(make: Any, count: int, shards: int) -> None:
    parts = [numbers(make(count).shard(shards, index)) for index in range(shards)]
    assert sorted(itertools.chain(*parts)) == list(range(count))
    assert parts[0] == list(range(0, count, shards))


@both
@given(count=counts, size=sizes)
def test_batches_hold_all_elements_in_order(make: Any, count: int, size: int) -> None:
    batches = numbers(make(count).batch(size))
    assert list(itertools.chain(*batches)) == list(range(count))
    assert all(len(batch) == size for batch in batches[:-1])


class TestDataset:
    def test_iterating_gives_arrays_of_jax(self) -> None:
        assert all(isinstance(element, jax.Array) for element in Dataset.range(2))

    def test_length(self) -> None:
        assert len(Dataset.range(5).batch(2)) == 3
        assert Dataset.range(5).cardinality() == 5
        assert tf.data.experimental.cardinality(Dataset.range(5)) == 5
        assert Dataset.range(5).repeat().cardinality() == tf.data.INFINITE_CARDINALITY
        assert streamed(2).cardinality() == tf.data.UNKNOWN_CARDINALITY
        with pytest.raises(TypeError, match=r"infinite.*HINT"):
            len(Dataset.range(5).repeat())
        with pytest.raises(TypeError, match="unknown"):
            len(streamed(3))

    def test_reduce(self) -> None:
        assert int(Dataset.range(4).reduce(0, lambda total, x: total + x)) == 6

    def test_an_empty_dataset_of_which_nothing_is_known_has_no_spec(self) -> None:
        with pytest.raises(InputError, match=r"empty.*HINT"):
            _ = Dataset.from_generator(lambda: iter([])).element_spec
        with pytest.raises(InputError, match=r"fails on zeros.*division.*HINT"):
            _ = Dataset.range(0).map(lambda x: 1 // int(x)).element_spec

    def test_passes_of_what_repeats_for_ever_are_shuffled_anew_if_asked(self) -> None:
        for anew in (False, True):
            dataset = Dataset.range(9).shuffle(9, seed=1, reshuffle_each_iteration=anew).repeat().take(12)
            passes = [numbers(dataset) for _ in range(4)]
            assert all(sorted(each[:9]) == list(range(9)) for each in passes)
            assert len(set(map(tuple, passes))) == (4 if anew else 1)

    def test_a_pass_of_what_repeats_for_ever_may_be_repeated_and_shuffled(self) -> None:
        some = Dataset.range(3).repeat().take(4)
        assert numbers(some.repeat(2)) == [0, 1, 2, 0] * 2
        assert sorted(numbers(some.shuffle(4).batch(4).unbatch())) == [0, 0, 1, 2]

    def test_distributed_passes_of_what_repeats_for_ever(self) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        for dataset in (Dataset.range(3).repeat().batch(2).take(2), Dataset.range(3).repeat().take(4).batch(2)):
            distributed = strategy.experimental_distribute_dataset(dataset)
            for _ in range(3):
                assert [components(element) for element in distributed] == [[[0], [1]], [[2], [0]]]
        endless = strategy.experimental_distribute_dataset(Dataset.range(3).repeat().batch(1))
        assert [components(element) for element in itertools.islice(endless, 4)] == [
            [[0], []],
            [[1], []],
            [[2], []],
            [[0], []],
        ]

    def test_strings_and_numbers_are_not_compared(self) -> None:
        with pytest.raises(ArgumentTypeError, match=r"strings and.*HINT"):
            numbers(Dataset.from_tensor_slices(["a"]).map(lambda s: tf.equal(s, 3)))
        with pytest.raises(ArgumentTypeError, match=r"tf.maximum of strings.*HINT"):
            numbers(Dataset.from_tensor_slices(["a"]).map(lambda s: tf.maximum(s, "b")))
        assert [bool(s == "é") for s in Dataset.from_tensor_slices(["é", "a"])] == [True, False]

    def test_results_that_are_no_elements(self) -> None:
        with pytest.raises(ArgumentTypeError, match=r"None.*HINT"):
            numbers(Dataset.range(2).map(lambda x: None))
        with pytest.raises(ArgumentError, match=r"batches of datasets.*HINT"):
            numbers(Dataset.range(4).window(2).batch(2))
        with pytest.raises(ArgumentError, match=r"taken apart.*HINT"):
            numbers(Dataset.range(4).rebatch(2))

    def test_datasets_are_drawn_by_their_weights(self) -> None:
        drawn = Dataset.sample_from_datasets([Dataset.range(300), Dataset.range(1000, 1300)], [0.9, 0.1], seed=1)
        seen = numbers(drawn)
        assert sorted(seen) == [*range(300), *range(1000, 1300)]
        assert sum(number >= 1000 for number in seen[:200]) < 60
        assert numbers(drawn) == seen
        with pytest.raises(ArgumentError, match=r"weights.*HINT"):
            Dataset.sample_from_datasets([Dataset.range(3)], [0.5, 0.5])

    def test_methods_of_tensorflow_that_are_absent_say_so(self) -> None:
        with pytest.raises(AttributeError, match=r"snapshot.*HINT.*cache"):
            Dataset.range(3).snapshot("folder")

    def test_strings_are_padded_whole(self) -> None:
        for dataset in (
            Dataset.from_tensor_slices(["a", "bcd"]),
            Dataset.from_tensor_slices(["a", "bcd"]).map(lambda s: s),
        ):
            assert numbers(dataset.padded_batch(2)) == [[b"a", b"bcd"]]

    def test_one_element(self) -> None:
        assert int(Dataset.range(3).take(1).get_single_element()) == 0
        with pytest.raises(ArgumentError, match=r"several.*HINT"):
            Dataset.range(3).get_single_element()

    def test_prints_its_length(self) -> None:
        assert repr(Dataset.range(3)) == "<tf.data.Dataset of 3 elements>"
        assert repr(streamed(3)) == "<tf.data.Dataset>"

    def test_shards_are_numbered_from_zero(self) -> None:
        with pytest.raises(ArgumentError, match="shard 2 of 2"):
            Dataset.range(3).shard(2, 2)

    def test_files_are_no_place_for_a_cache(self) -> None:
        with pytest.raises(ArgumentError, match="memory"):
            Dataset.range(3).cache("/tmp/cache")


class TestDistributed:
    @both
    def test_batches_are_cut_for_the_replicas(self, make: Any) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        distributed = strategy.experimental_distribute_dataset(make(6).batch(4))
        assert [components(element) for element in distributed] == [[[0, 1], [2, 3]], [[4], [5]]]

    @both
    def test_spec(self, make: Any) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        spec = strategy.experimental_distribute_dataset(make(6).batch(4)).element_spec
        assert spec.shape == (None,)

    def test_options_carry_the_policy(self) -> None:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = Dataset.range(4).batch(2).with_options(options)
        assert dataset.options() is options
        assert dataset.policy is tf.data.experimental.AutoShardPolicy.OFF
        assert dataset.map(lambda x: x).policy is tf.data.experimental.AutoShardPolicy.OFF
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        assert len(list(strategy.experimental_distribute_dataset(dataset))) == 2
        assert len(list(strategy.experimental_distribute_dataset(streamed(4).batch(2).with_options(options)))) == 2

    @pytest.mark.parametrize("way", ["interleave", "flat_map", "listed"])
    def test_files_that_a_function_opens_are_not_shared_out_and_it_is_said_what_to_write(
        self, way: str, tmp_path: Path
    ) -> None:
        names = [str(tmp_path / f"{number}.txt") for number in range(2)]
        for name in names:
            Path(name).write_text("a\nb\n")
        listed = Dataset.list_files(str(tmp_path / "*.txt")) if way == "listed" else Dataset.from_tensor_slices(names)
        opened = getattr(listed, "interleave" if way == "interleave" else "flat_map")(tf.data.TextLineDataset)
        source = adapt(opened.batch(2))
        with pytest.warns(UserWarning, match=r"by DATA, because it reads no files.*HINT.*TFRecordDataset\(files\)"):
            assert resolve(source, InputOptions(), Shard(2, 0, 2)).policy is AutoShardPolicy.DATA
        with pytest.raises(InputError, match=r"FILE cannot shard.*HINT.*TFRecordDataset\(files\), in place of"):
            resolve(source, InputOptions(auto_shard_policy=AutoShardPolicy.FILE), Shard(2, 0, 2))
        # What the messages say to write.
        whole = adapt(tf.data.TextLineDataset(names).batch(2))
        assert resolve(whole, InputOptions(), Shard(2, 0, 2)).policy is AutoShardPolicy.FILE

    def test_a_dataset_without_options_has_no_policy(self) -> None:
        assert Dataset.range(3).policy is None
        assert isinstance(Dataset.range(3).options(), tf.data.Options)

    def test_a_function_makes_datasets_for_workers(self) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        distributed = strategy.distribute_datasets_from_function(
            lambda context: Dataset.range(4).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)
        )
        assert [components(element) for element in distributed] == [[[0, 1], [2, 3]]]

    @pytest.mark.parametrize(
        "rows",
        [
            lambda: Dataset.from_tensor_slices([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
            lambda: Dataset.from_tensors([1.0, 2.0]).repeat(3),
            lambda: Dataset.range(3),
            lambda: Dataset.range(7).batch(2, drop_remainder=True),
        ],
    )
    def test_a_step_of_elements_of_one_shape_is_for_all_replicas(self, rows: Callable[[], Any]) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        distributed = strategy.distribute_datasets_from_function(lambda _: rows())
        assert [len(components(element)) for element in distributed] == [2]
        (spec,) = jax.tree.leaves(distributed.element_spec, is_leaf=lambda leaf: hasattr(leaf, "shape"))
        assert None not in spec.shape

    @pytest.mark.parametrize("indexed", [True, False])
    def test_elements_that_a_function_has_made_may_have_any_shape(self, indexed: bool) -> None:
        strategy, numbers = jd.MirroredStrategy(["CPU:0", "CPU:1"]), Dataset.range(3) if indexed else streamed(3)
        rows = numbers.map(lambda number: np.zeros(2 + int(number), np.float32))
        distributed = strategy.distribute_datasets_from_function(lambda _: rows)
        shapes = [[part.shape for part in strategy.experimental_local_results(element)] for element in distributed]
        assert shapes == [[(2,), (3,)], [(4,), (0,)]]

    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize(
        ("make", "wide"),
        [
            # As long as each other at first; nothing but all elements would tell.
            (lambda: Dataset.range(8).map(lambda n: np.zeros(1 + int(n) // 4, "int32")).padded_batch(4), (None, None)),
            (lambda: Dataset.range(1, 9).map(lambda n: tf.fill([int(n)], n)).padded_batch(4), (None, None)),
            (lambda: streamed(8).map(lambda n: np.zeros(1 + int(n) // 4)).padded_batch(4), (None, None)),
            (lambda: Dataset.range(10).batch(2).batch(3), (None, None)),
            (lambda: Dataset.range(9).batch(2).batch(2).map(lambda x: x * 2), (None, None)),
            (lambda: streamed(10).batch(4).batch(1), (None, None)),
            (lambda: Dataset.range(10).batch(2, drop_remainder=True).batch(3), (None, 2)),
            (lambda: Dataset.from_tensor_slices(np.zeros((5, 3), "float32")).padded_batch(2), (None, 3)),
            (lambda: Dataset.range(8).map(lambda n: np.zeros(2)).padded_batch(4, padded_shapes=[3]), (None, 3)),
        ],
    )
    def test_a_signature_of_the_element_spec_takes_all_batches(self, make: Any, wide: Any, replicas: int) -> None:
        strategy = jd.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
        distributed = strategy.experimental_distribute_dataset(make())
        (spec,) = jax.tree.leaves(distributed.element_spec, is_leaf=lambda leaf: hasattr(leaf, "shape"))
        assert spec.shape == wide == tuple(make().element_spec.shape)

        @tf.function(input_signature=[distributed.element_spec])
        def total(batch: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(lambda x: jnp.float32(jnp.sum(x)), (batch,)), axis=None)

        expected = [float(np.sum(np.asarray(batch))) for batch in make()]
        assert [float(total(batch)) for batch in distributed] == expected

    def test_the_spec_of_what_a_function_makes_takes_all_its_elements(self) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        rows = Dataset.range(8).map(lambda n: {"ids": tf.fill([1 + int(n)], n), "label": n})
        distributed = strategy.distribute_datasets_from_function(lambda _: rows.padded_batch(2))
        assert distributed.element_spec["ids"].shape == (None, None)
        assert distributed.element_spec["label"].shape == (None,)
        take = tf.function(lambda batch: batch["label"], input_signature=[distributed.element_spec])
        assert len([take(batch) for batch in distributed]) == 2

    @pytest.mark.parametrize(
        "wrapped", [lambda dataset: dataset, lambda dataset: dataset.with_options(tf.data.Options())]
    )
    @pytest.mark.parametrize("replicas", [0, 1, 2])
    @pytest.mark.parametrize(
        ("make", "count"),
        [
            (lambda: Dataset.range(5).batch(2), 3),
            (lambda: Dataset.range(5).batch(2).repeat(), tf.data.INFINITE_CARDINALITY),
            (lambda: Dataset.range(5).filter(lambda n: n > 1).batch(2), tf.data.UNKNOWN_CARDINALITY),
            (lambda: Dataset.range(1, 9).map(lambda n: tf.fill([int(n)], n)).padded_batch(4), 2),
        ],
    )
    def test_cardinality(self, make: Any, count: int, replicas: int, wrapped: Any) -> None:
        devices = [f"CPU:{number}" for number in range(replicas)]
        strategy = jd.MirroredStrategy(devices) if devices else jd.get_strategy()
        dataset = wrapped(make())
        assert dataset.cardinality() == count
        distributed: Any = strategy.experimental_distribute_dataset(dataset)
        assert distributed.cardinality == count
        distributed = strategy.distribute_datasets_from_function(lambda _: dataset)
        assert distributed.cardinality == count

    def test_cardinality_of_other_libraries_data(self) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        distributed: Any = strategy.experimental_distribute_dataset([np.ones(2)] * 3)
        assert distributed.cardinality == 3
        distributed = strategy.experimental_distribute_dataset(np.ones(2) for _ in range(3))
        assert distributed.cardinality == tf.data.UNKNOWN_CARDINALITY
