"""Rewrites of Grain pipelines give what Grain gives."""

from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src.core.input import grain_internals, grain_tree
from jaxtribute._src.core.input.batches import Batch
from jaxtribute._src.core.input.grain_batches import for_worker
from jaxtribute._src.core.input.permutation import permute
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.input import ArraySource, TextLineSource, make_numpy_dataset
from simulated import shards


@st.composite
def pipelines(draw: st.DrawFn) -> Any:
    """Chains of reordering around one batching, over arrays or a range."""
    examples = draw(st.integers(1, 40))
    dataset: grain.MapDataset[Any] = draw(
        st.sampled_from([make_numpy_dataset(np.arange(examples) * 10), grain.MapDataset.range(5, 5 + examples)])
    )
    dataset = draw(reorderings(dataset, 3))
    batched = dataset.batch(draw(st.integers(1, 9)), drop_remainder=draw(st.booleans()))
    return draw(reorderings(batched, 2)) if len(batched) else batched


@st.composite
def reorderings(draw: st.DrawFn, dataset: Any, most: int) -> Any:
    for _ in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from(["shuffle", "window", "slice", "repeat", "same", "seed"]))
        if not len(dataset):
            return dataset
        if kind == "shuffle":
            dataset = dataset.shuffle(draw(st.integers(0, 2**32 - 1)))
        elif kind == "window":
            size = draw(st.integers(1, len(dataset)))
            # A window must divide the records, or Grain's own reads beyond them.
            size = max(size for size in range(1, size + 1) if len(dataset) % size == 0)
            dataset = grain.experimental.WindowShuffleMapDataset(
                dataset, window_size=size, seed=draw(st.integers(0, 9))
            )
        elif kind == "slice":
            start = draw(st.integers(0, len(dataset) - 1))
            dataset = dataset[start :: draw(st.integers(1, 3))]
        elif kind in ("repeat", "same"):
            dataset = dataset.repeat(draw(st.integers(1, 3)), reseed_each_epoch=kind == "repeat")
        else:
            dataset = dataset.seed(draw(st.integers(0, 9)))
    return dataset


@pytest.mark.slow
@settings(max_examples=50)
@given(pipelines())
def test_batches_by_index_are_grains_batches(dataset: Any) -> None:
    rewritten, how = for_worker(dataset, Shard())
    assert how == "arrays"
    assert len(rewritten) == len(dataset)
    for index in range(len(dataset)):
        found, expected = rewritten[index], dataset[index]
        assert found.tree.tolist() == expected.tolist()
        assert found.tree.dtype == expected.dtype
        assert found.total == len(expected)


def test_a_slice_of_shuffled_records_has_another_order_each_epoch() -> None:
    dataset = make_numpy_dataset(np.arange(20)).shuffle(3)[2::3].repeat(3).batch(4)
    rewritten, _ = for_worker(dataset, Shard())
    assert [rewritten[i].tree.tolist() for i in range(len(dataset))] == [batch.tolist() for batch in dataset]


@settings(max_examples=25)
@given(pipelines(), st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_workers_shares_join_to_the_batch(dataset: Any, workers: int, local: int, records: bool) -> None:
    if records:
        identity: Any = lambda record: record  # noqa: E731
        node = grain_tree.outer_batch(dataset)
        mapped = grain_internals.with_parents(node, (grain_internals.parents(node)[0].map(identity),))
        dataset = grain_tree.rewrite(dataset, lambda n: mapped if n is node else None)
    found = [for_worker(dataset, shard) for shard in shards(workers, workers * local)]
    expected_how = {"arrays"} if not records else {"records"} if workers > 1 else {"all"}
    assert {how for _, how in found} == expected_how
    if workers == 1 and records:
        return
    for index in range(len(dataset)):
        pieces: list[Batch] = [rewritten[index] for rewritten, _ in found]
        assert np.concatenate([piece.tree for piece in pieces]).tolist() == dataset[index].tolist()
        assert [piece.start for piece in pieces] == sorted(piece.start for piece in pieces)


def test_maps_of_whole_batches_see_them_whole() -> None:
    dataset: Any = make_numpy_dataset(np.arange(10)).shuffle(1).batch(4).map(lambda batch: batch - batch.mean())
    rewritten, how = for_worker(dataset, Shard(2, 1, 2))
    assert how == "all"
    assert [rewritten[i].tolist() for i in range(3)] == [dataset[i].tolist() for i in range(3)]


def test_a_batch_function_of_the_users_is_left_alone() -> None:
    dataset = make_numpy_dataset(np.arange(10)).batch(4, batch_fn=lambda records: np.stack(records) + 1)
    rewritten, how = for_worker(dataset, Shard(2, 0, 2))
    assert (rewritten, how) == (dataset, "all")


def test_other_sources_are_left_alone() -> None:
    dataset = grain.MapDataset.source(["a", "b", "c"]).batch(2)
    assert for_worker(dataset, Shard())[1] == "all"
    assert for_worker(dataset, Shard(2, 0, 2))[1] == "records"


def test_an_array_given_to_grain_itself_is_read_by_batches() -> None:
    rewritten, how = for_worker(grain.MapDataset.source(np.arange(6)).shuffle(0).batch(3), Shard())  # pyright: ignore[reportArgumentType]
    assert how == "arrays"
    assert sorted(np.concatenate([rewritten[0].tree, rewritten[1].tree])) == list(range(6))


@pytest.mark.parametrize("length", [65_536, 65_537])
def test_no_record_is_repeated_where_grain_repeats_one(length: int) -> None:
    dataset = grain.MapDataset.range(length).shuffle(7)
    exact = grain_tree.exact(dataset.map(lambda value: value))
    seen = {exact[index] for index in range(0, length, 257)} | {exact[length - 1]}
    assert len(seen) == len(range(0, length, 257)) + (0 if (length - 1) % 257 == 0 else 1)
    assert (grain_tree.exact(dataset) is dataset) == (length == 65_536)
    assert len(exact[::2]) == -(-length // 2)


def test_sequential_pipelines_that_only_batch_have_a_random_access_form() -> None:
    numbers = make_numpy_dataset(np.arange(7))
    for dataset in (numbers.to_iter_dataset().batch(3), numbers.batch(3).to_iter_dataset()):
        mapped = grain_tree.as_map_dataset(dataset)
        assert isinstance(mapped, grain.MapDataset)
        assert [batch.tolist() for batch in mapped] == [batch.tolist() for batch in dataset]
    filtered = numbers.to_iter_dataset().filter(lambda x: x > 2).batch(3)
    assert grain_tree.as_map_dataset(filtered) is filtered


def test_pipelines_that_leave_records_out_are_known() -> None:
    numbers = grain.MapDataset.range(4)
    assert grain_tree.drops_elements(numbers.filter(lambda x: x > 1).map(lambda x: x))
    assert not grain_tree.drops_elements(numbers.shuffle(0).batch(2))


def test_rewriting_leaves_the_original_alone() -> None:
    dataset = make_numpy_dataset(np.arange(6)).batch(2).repeat(2)
    before = list(grain_tree.walk(dataset))
    for_worker(dataset, Shard(2, 0, 2))
    assert all(a is b for a, b in zip(before, grain_tree.walk(dataset), strict=True))
    assert isinstance(grain_tree.array_source(before[-1]), ArraySource)


def test_what_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n")
    lines = grain.MapDataset.source(TextLineSource(tmp_path / "lines"))
    numbers = make_numpy_dataset(np.arange(3)).map(lambda x: x)
    assert grain_tree.is_in_memory(numbers.shuffle(0).batch(2))
    assert grain_tree.is_in_memory(grain.MapDataset.concatenate([numbers, grain.MapDataset.range(2)]))
    assert grain_tree.is_in_memory(grain.MapDataset.source([1, 2]))
    assert grain_tree.is_in_memory(for_worker(numbers.batch(2), Shard(2, 0, 2))[0])
    assert not grain_tree.is_in_memory(lines)
    assert not grain_tree.is_in_memory(grain.MapDataset.concatenate([numbers, lines]))


def test_a_small_dataset_that_repeats_without_end_computes_few_places_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: list[int] = []

    def counted(positions: Any, length: int, seed: int) -> Any:
        computed.append(len(positions))
        return permute(positions, length, seed)

    monkeypatch.setattr(grain_tree, "permute", counted)
    dataset = make_numpy_dataset(np.arange(10)).shuffle(1).repeat().batch(64)
    found = for_worker(dataset, Shard())[0][0].tree
    assert sorted(found[:60]) == sorted(list(range(10)) * 6)
    assert sum(computed) == 64


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_short_dataset_is_shuffled_as_by_grain_and_not_by_its_slow_function(repeats: int) -> None:
    dataset = make_numpy_dataset(np.arange(7)).map(lambda x: x + 1).shuffle(3).repeat(repeats).batch(4)
    exact = grain_tree.exact(dataset)
    assert any(isinstance(node, grain_tree.ExactShuffle) for node in grain_tree.walk(exact))
    assert [batch.tolist() for batch in exact] == [batch.tolist() for batch in dataset]


def test_a_short_dataset_of_arrays_is_still_read_by_whole_batches() -> None:
    dataset = make_numpy_dataset(np.arange(7)).shuffle(3).repeat(2).batch(4)
    found, how = for_worker(dataset, Shard())
    assert how == "arrays"
    assert [found[index].tree.tolist() for index in range(4)] == [batch.tolist() for batch in dataset]
