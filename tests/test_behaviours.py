"""The table of behaviours under every strategy of this process, and in clusters of two workers.

The table itself, `behaviours.ROWS`, says what each operation must give.
"""

from collections.abc import Callable
from functools import cache

import pytest

import jaxtribute as jd
from arrangements import WORKERS, table_failures
from behaviours import EXECUTORS, ROWS, bundles, error_of, is_uneven
from jaxtribute._src.addons.testing.shared import SharedRunners
from replicas import mirrored, one_device
from samples import ALL_CASES

STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "one device": lambda: one_device(1),
    "two": lambda: mirrored(2),
    "mirrored": lambda: mirrored(4),
    "mirrored, tree": lambda: jd.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], jd.HierarchicalCopyAllReduce()),
    "mirrored, one device": lambda: jd.MirroredStrategy(["CPU:0", "CPU:1"], jd.ReductionToOneDevice("CPU:1")),
    "groups": lambda: jd.MirroredStrategy([f"CPU:{i}" for i in range(4)], devices_per_replica=2),
    "groups, sharded": lambda: jd.FullyShardedStrategy(
        [f"CPU:{i}" for i in range(6)], devices_per_replica=2, min_bytes=0
    ),
    "central": lambda: jd.CentralStorageStrategy(["CPU:0", "CPU:1", "CPU:2"], "CPU:4"),
    "central, one replica": lambda: jd.CentralStorageStrategy(["CPU:2"], "CPU:4"),
}


@cache
def strategy_of(name: str) -> jd.Strategy:
    return STRATEGIES[name]()


def applies(executor: str, name: str, row: str) -> bool:
    """Whether a row says anything new about a strategy and an executor."""
    if not ROWS[row].takes(executor) or (is_uneven(executor) and name in ("one device", "central, one replica")):
        return False
    if ROWS[row].kept_apart and name.startswith("central"):
        return False
    if name.startswith("mirrored,"):
        return any(word in row for word in ("all_reduce", "reduce_to", "assign", "Optimizer"))
    return name != "central, one replica" or any(word in row for word in ("variable", "Optimizer", "number"))


def rows_of(executor: str, name: str) -> list[str]:
    """The rows that an executor goes through under a strategy: every third, under the next strategy others."""
    place = list(STRATEGIES).index(name) + EXECUTORS.index(executor)
    chosen = [row for number, row in enumerate(ROWS) if ALL_CASES or (number + place) % 3 == 0]
    return [row for row in chosen if applies(executor, name, row)]


CASES = [
    (executor, name, rows) for executor in EXECUTORS for name in STRATEGIES for rows in bundles(rows_of(executor, name))
]


@pytest.mark.quick_cases(6, whole=True)
@pytest.mark.parametrize(("executor", "name", "rows"), CASES, ids=[f"{e}-{n}-{rows[0]}" for e, n, rows in CASES])
def test_behaviours(executor: str, name: str, rows: tuple[str, ...]) -> None:
    strategy = strategy_of(name)
    error = error_of(strategy, executor, rows)
    if error:
        each = [f"{row}: {told}" for row in rows if (told := error_of(strategy, executor, [row]))]
        pytest.fail("\n".join(each or [f"together: {error}"]))


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "devices"), WORKERS)
def test_the_table_over_workers(multi_process: SharedRunners, workers: int, devices: int) -> None:
    # With one device each, the even executors too; the even rows of two devices are those of one process.
    lockstep, compiled, uneven, ragged = EXECUTORS
    executors = (lockstep, compiled, ragged, uneven) if devices == 1 else (uneven, ragged)
    for rank, failures in enumerate(multi_process(workers, devices).run(table_failures, (executors,), timeout_s=300)):
        assert not failures, f"worker {rank}:\n" + "\n".join(failures)


def test_every_row_meets_each_of_its_executors() -> None:
    for name, row in ROWS.items():
        met = {executor for executor, _, rows in CASES if name in rows}
        assert met == {executor for executor in EXECUTORS if row.takes(executor)}, name


def test_the_table_has_every_operation_of_the_contexts() -> None:
    rows = " ".join(ROWS)
    for name in (
        "all_reduce",
        "all_gather",
        "example_keys",
        "fold_in",
        "reduce",
        "gather",
        "reduce_to",
        "batch_reduce_to",
    ):
        assert name in rows
