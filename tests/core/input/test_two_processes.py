"""Two processes: each has its replicas' rows on its devices, as parts of arrays over all of them."""

import pytest

import input_workers
from jaxtribute._src.addons.testing.shared import SharedRunners

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", ["arrays", "list"])
def test_a_batch_over_two_processes(case: str, multi_process: SharedRunners) -> None:
    first, second = multi_process(workers=2, devices=2).run(input_workers.rows, (case,))
    assert [rows for rows, _ in first] == [[[0, 1], [2, 3]], [[8], [9]]]
    assert [rows for rows, _ in second] == [[[4, 5], [6, 7]], [[10], []]]
    # The first process sees no difference between its own replicas, and knows of the others'.
    assert [ragged for _, ragged in first] == [ragged for _, ragged in second] == [False, True]


def test_a_process_without_data_takes_part(multi_process: SharedRunners) -> None:
    first, second = multi_process(workers=2, devices=2).run(input_workers.rows, ("own",))
    assert [rows for rows, _ in first] == [[[0], [1]], [[2], [3]], [[4], []]]
    assert [rows for rows, _ in second] == [[[0], [1]], [[], []], [[], []]]
    assert [ragged for _, ragged in first] == [ragged for _, ragged in second] == [False, True, True]


@pytest.mark.parametrize("seeded", [True, False])
def test_processes_that_shuffle_differently_are_warned(seeded: bool, multi_process: SharedRunners) -> None:
    found = [
        text for texts in multi_process(workers=2, devices=2).run(input_workers.warned, (seeded,)) for text in texts
    ]
    assert (found == []) == seeded, found
    assert all(
        "no array of the first batch of this iterable of batches is the same on workers" in text for text in found
    )
