"""`jd.is_main` before a cluster is joined; tests/core/strategies/test_multi_worker.py asks it of workers."""

from __future__ import annotations

import json

import pytest

import jaxtribute as jd
from jaxtribute.errors import ClusterSpecError

JOBS = {
    "chief": ["10.0.0.1:1"],
    "worker": ["10.0.0.2:1", "10.0.0.3:1"],
    "ps": ["10.0.0.9:1"],
    "evaluator": ["10.0.0.8:1"],
}
WORKERS = {"worker": ["10.0.0.2:1", "10.0.0.3:1"]}


@pytest.mark.parametrize(
    ("jobs", "job", "index", "main"),
    [
        (JOBS, "chief", 0, True),
        (JOBS, "worker", 0, False),
        (JOBS, "ps", 0, False),
        (JOBS, "evaluator", 0, False),
        (WORKERS, "worker", 0, True),
        (WORKERS, "worker", 1, False),
        ({}, "worker", 0, True),
    ],
)
def test_the_environment_says_it(
    monkeypatch: pytest.MonkeyPatch, jobs: dict[str, list[str]], job: str, index: int, main: bool
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": {"type": job, "index": index}}))
    assert jd.is_main() == main


def test_one_process_is_main() -> None:
    assert jd.is_main()


def test_a_task_that_the_cluster_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 2}}))
    with pytest.raises(ClusterSpecError, match="HINT"):
        jd.is_main()
