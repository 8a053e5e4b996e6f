"""Who reads what of a dataset."""

from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.visualize.reading import reading
from jaxtribute._src.core.input.splitting import Shard, slice_sizes
from jaxtribute.input import Explanation, WorkerReads


def explanation(examples: int, batch: int, workers: int, replicas: int) -> Explanation:
    reads: list[WorkerReads] = []
    for worker in range(workers):
        shard = Shard(workers, worker, replicas)
        ids = tuple(range(shard.first, shard.first + shard.local))
        reads.append(WorkerReads(worker, ids, (), shard.bounds(batch), None, None))
    return Explanation("arrays", "AUTO", "DATA", "why", tuple(reads), -(-examples // batch), examples, 0, 0)


@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 3), st.integers(1, 4))
def test_every_example_of_every_batch_is_in_one_part(examples: int, batch: int, workers: int, local: int) -> None:
    drawn = reading(explanation(examples, batch, workers, workers * local))
    assert 1 <= len(drawn.bars) <= 2
    for bar in drawn.bars:
        assert [part.stop - part.start for part in bar.parts] == list(slice_sizes(bar.rows, workers * local))
        assert [part.worker for part in bar.parts] == [worker for worker in range(workers) for _ in range(local)]
        assert bar.parts[-1].stop == bar.rows
    assert drawn.bars[-1].rows == (examples % batch or batch)


def test_batches_have_names() -> None:
    labels = [bar.caption() for bar in reading(explanation(29, 8, 1, 2)).bars]
    assert labels == ["batches 0 to 2: 8 examples each", "batch 3, the last: 5 examples"]
    assert reading(explanation(8, 8, 1, 2)).bars[0].caption() == "batch 0: 8 examples"


def test_workers_with_batches_of_their_own_have_no_bars() -> None:
    workers = tuple(WorkerReads(i, (i,), (f"{i}.txt",), None, 10, 10) for i in range(2))
    drawn = reading(Explanation("files", "FILE", "FILE", "there are enough", workers, 4, 20, 0, 0))
    assert drawn.bars == ()
    assert drawn.title == "files, sharded by FILE: there are enough"


def test_a_dataset_without_end_has_no_bars() -> None:
    workers = (WorkerReads(0, (0,), (), (0, 4), None, None),)
    assert reading(Explanation("iterable", "OFF", "OFF", "why", workers, None, None, None, 0)).bars == ()
