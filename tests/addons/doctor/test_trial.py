"""`jaxtribute doctor --test`."""

from typing import Any

import pytest

from jaxtribute._src.addons.doctor import trial
from jaxtribute._src.addons.doctor.report import Level, look
from jaxtribute._src.addons.testing import runner
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.errors import ClusterError, ProcessFailedError


@pytest.mark.slow
def test_two_workers_reduce_and_read(multi_process: SharedRunners) -> None:
    for found in multi_process(workers=2, devices=2).run(trial.rehearse, (0.3,)):
        assert found["replicas"] == 4
        assert found["rounds"] >= 1
        assert list(found["reduce"]) == [1024, 1 << 22]
        assert all(took > 0 for took in found["reduce"].values())


def test_without_a_cluster_two_processes_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(fn: Any, **more: Any) -> list[Any]:
        asked.append((fn, more["workers"], more["args"]))
        return [{"replicas": 2, "rounds": 5, "reduce": {1024: 0.001, 4096: 0.002}, "input_s": 0.1}]

    monkeypatch.setattr(runner, "run_multi_process", run)
    note, reduced, read = trial.check(look({}), 1.0)
    assert asked == [(trial.rehearse, 2, (1.0,))]
    assert "without a cluster: 2 processes" in note.text
    assert reduced.text == "2 replicas: 1 KB in 1.00 ms, 4 KB in 2.00 ms (medians of 5)"
    assert "1000 examples" in read.text
    assert reduced.level is read.level is Level.GOOD


def test_a_failure_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ProcessFailedError("rank 1 of 2 raised. HINT: look there")

    monkeypatch.setattr(runner, "run_multi_process", fail)
    *_, found = trial.check(look({}))
    assert (found.level, found.text, found.fix) == (Level.ERROR, "rank 1 of 2 raised.", "look there")


class Wrong:
    """A strategy of one replica that computes wrongly."""

    num_replicas_in_sync = 1

    def __init__(self, result: float) -> None:
        self._result = result

    def reduce(self, *_: object, **__: object) -> float:
        return self._result

    def experimental_distribute_values_from_function(self, fn: Any) -> Any:
        return 0.0

    def experimental_make_numpy_dataset(self, arrays: Any) -> Any:
        class Dataset:
            def batch(self, size: int) -> Any:
                return [arrays]

        return Dataset()

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        return dataset


def test_a_wrong_sum_is_an_error() -> None:
    strategy: Any = Wrong(7.0)
    with pytest.raises(ClusterError, match=r"gave 7.0, not 1.0"):
        trial._Round(strategy, 3)  # pyright: ignore[reportPrivateUsage]


def test_lost_examples_are_an_error() -> None:
    strategy: Any = Wrong(7.0)
    with pytest.raises(ClusterError, match="7 of 1000 examples came"):
        trial._read_all(strategy)  # pyright: ignore[reportPrivateUsage]


def test_the_resolver_that_was_found_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    found = {"replicas": 1, "rounds": 0, "reduce": {}, "input_s": 0.0}
    monkeypatch.setattr(trial, "rehearse", lambda *args: asked.append(args) or found)
    situation = look({"TF_CONFIG": '{"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}'})
    assert situation.detection is not None
    assert len(list(trial.check(situation, 2.0))) == 2
    assert asked == [(2.0, situation.detection.resolver)]
