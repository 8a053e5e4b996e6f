"""Tasks that fail: workers, servers with and without mirrors; what was counted stays counted, once."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import CancelledError, ClusterError
from jaxtribute.partitioners import FixedShardsPartitioner
from parameter_servers import clusters
from parameter_servers.clusters import coordinated, engine_of


def counting(coordinator: Any) -> tuple[jd.Variable, Any]:
    """A counter, and a step that counts and trains a table beside it."""
    with coordinator.strategy.scope():
        count = jd.Variable(0, dtype=np.int32, name="count")
        table = jd.Variable(np.zeros((6, 2), np.float32), name="table")
        optimizer = jd.Optimizer(optax.sgd(1.0, momentum=0.5), [table])

    @jd.function
    def step() -> Any:
        count.assign_add(1)
        optimizer.apply_gradients([np.ones((6, 2), np.float32)])
        return count.read_value()

    return count, step


def test_a_worker_that_ends_with_closures_gives_them_to_others() -> None:
    with coordinated(workers=2) as coordinator:
        count, step = counting(coordinator)
        coordinator.schedule(step).fetch()
        for _ in range(4):
            for _ in range(10):
                coordinator.schedule(step)
            for index in range(2):
                engine_of(coordinator).crash("worker", index)
        coordinator.join()
        assert int(count) == 41


def test_a_closure_that_had_pushed_is_not_applied_again() -> None:
    with coordinated() as coordinator:
        count, step = counting(coordinator)
        gate = clusters.SHARED["gate"] = threading.Event()
        clusters.SHARED["entered"] = threading.Event()

        def push_then_wait() -> None:
            step()
            clusters.SHARED["entered"].set()
            clusters.SHARED["gate"].wait(20)
            step()

        coordinator.schedule(push_then_wait)
        assert clusters.SHARED["entered"].wait(20)
        crashing = threading.Thread(target=engine_of(coordinator).crash, args=("worker", 0))
        dispatcher = coordinator._cluster.dispatcher  # pyright: ignore[reportPrivateUsage]
        dispatcher.lost(0)  # given up while it still runs
        gate.set()
        crashing.start()
        crashing.join()
        coordinator.join()
        assert int(count) == 2


def _held() -> None:
    clusters.SHARED["begun"].set()
    clusters.SHARED["held"].wait(30)


def test_a_lost_server_is_one_clear_error_until_what_was_saved_is_restored() -> None:
    with coordinated(servers=2, partitioner=FixedShardsPartitioner(2)) as coordinator:
        count, step = counting(coordinator)
        with pytest.raises(ClusterError, match=r"nothing to restore"):
            coordinator.restore()
        for _ in range(5):
            coordinator.schedule(step)
        coordinator.join()
        coordinator.save()
        for _ in range(3):
            coordinator.schedule(step)
        coordinator.join()
        clusters.SHARED["held"] = held = threading.Event()
        clusters.SHARED["begun"] = begun = threading.Event()
        running = coordinator.schedule(_held)
        assert begun.wait(20)
        engine_of(coordinator).crash("ps", 0)
        with pytest.raises(CancelledError, match=r"parameter server 0 has ended.*HINT: coordinator.restore\(\)"):
            running.fetch()
        held.set()
        for _ in range(2):
            with pytest.raises(ClusterError, match=r"parameter server 0 has ended.*HINT: coordinator.restore\(\)"):
                coordinator.schedule(step)
        with pytest.raises(ClusterError, match="parameter server 0"):
            coordinator.join()
        with pytest.raises(ClusterError, match="parameter server 0"):
            int(count)
        coordinator.restore()
        assert int(count) == 5
        for _ in range(5):
            coordinator.schedule(step)
        coordinator.join()
        assert int(count) == 10


def test_servers_with_mirrors_lose_nothing() -> None:
    with coordinated(servers=2, workers=2, replicas=1, partitioner=FixedShardsPartitioner(2)) as coordinator:
        count, step = counting(coordinator)
        with coordinator.strategy.scope():
            plain = jd.Variable(np.zeros((5, 2), np.float32), name="plain")
        done = 0
        for victim in [("ps", 0), ("ps", 1), ("mirror", 0), ("ps", 0)]:
            for _ in range(6):
                coordinator.schedule(step)
                done += 1
            engine_of(coordinator).crash(*victim)
            plain.assign_add(np.ones((5, 2), np.float32))
        coordinator.join()
        assert int(count) == done
        np.testing.assert_array_equal(plain.numpy(), np.full((5, 2), 4))


def test_what_is_saved_can_be_named(tmp_path: Any) -> None:
    with coordinated() as coordinator:
        count, step = counting(coordinator)
        saved = [coordinator.save(str(tmp_path))]
        for _ in range(2):
            coordinator.schedule(step).fetch()
            saved.append(coordinator.save())
        assert not saved[0].exists(), "more than two are kept"
        coordinator.restore(str(saved[1]))
        assert int(count) == 1
    assert saved[1].exists()


def test_a_coordinator_that_is_started_again_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    def train(expected: int) -> tuple[list[str], Any]:
        with coordinated(servers=2, partitioner=FixedShardsPartitioner(2)) as coordinator:
            count, step = counting(coordinator)
            saved = coordinator.latest_save(tmp_path)
            if saved is not None:
                coordinator.restore(saved)
            for _ in range(10):
                coordinator.schedule(step)
            coordinator.join()
            assert int(count) == expected, "updates were taken for those of the earlier run"
            coordinator.save(tmp_path)
            return sorted(path.name for path in tmp_path.iterdir()), coordinator.latest_save(tmp_path)

    assert train(10)[0] == ["save-000001"]
    (tmp_path / "save-000002").mkdir()  # whose writer was killed
    names, latest = train(20)
    assert names == ["save-000001", "save-000003"]
    assert latest == tmp_path / "save-000003"


def test_what_another_program_saved_is_refused(tmp_path: Path) -> None:
    with coordinated() as coordinator:
        counting(coordinator)
        saved = coordinator.save(tmp_path)
        counting(coordinator)
        with pytest.raises(ClusterError, match=r"holds other variables.*only one of both has shard .* of int32\[\]"):
            coordinator.restore(saved)
    with coordinated(servers=2) as coordinator:
        counting(coordinator)
        with pytest.raises(ClusterError, match=r"was saved by 1 parameter servers, and there are 2\. HINT"):
            coordinator.restore(saved)


def test_whatever_is_asked_of_servers_after_their_end_says_so(tmp_path: Path) -> None:
    with coordinated(servers=2, timeout_s=2.0) as coordinator:
        with coordinator.strategy.scope():
            table = jd.Variable(np.zeros((4, 2), np.float32), name="table")
        saved = coordinator.save(tmp_path)

    def another() -> None:
        with coordinator.strategy.scope():
            jd.Variable(1.0)

    asked: list[Callable[[], object]] = [
        table.numpy,
        lambda: table.assign(np.ones((4, 2))),
        lambda: table.assign_add(np.ones((4, 2))),
        lambda: table + 1,
        lambda: coordinator.save(tmp_path),
        lambda: coordinator.restore(saved),
        another,
    ]
    for ask in asked:
        with pytest.raises(ClusterError, match=r"after their cluster was closed[\s\S]*HINT"):
            ask()
    assert coordinator.latest_save(tmp_path) == saved
