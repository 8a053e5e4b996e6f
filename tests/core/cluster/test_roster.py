"""Ranks, names and addresses of the workers."""

from __future__ import annotations

from typing import Any

import pytest

from jaxtribute._src.core.cluster.roster import Member, Roster
from jaxtribute.errors import ClusterSpecError

JOBS: dict[str, Any] = {
    "worker": {0: "10.0.0.2:1", 1: "10.0.0.3:1"},
    "chief": ["10.0.0.1:1"],
    "ps": ["10.0.0.9:1"],
    "evaluator": ["10.0.0.8:1"],
}


def test_the_chief_comes_first_and_others_do_not_train() -> None:
    roster = Roster.of(JOBS, "worker", 1)
    assert roster.names == ("chief 0 (10.0.0.1:1)", "worker 0 (10.0.0.2:1)", "worker 1 (10.0.0.3:1)")
    assert roster.rank == 2
    assert roster.own == Member("worker", 1, "10.0.0.3:1")
    assert roster.named([0, 2]) == "chief 0 (10.0.0.1:1), worker 1 (10.0.0.3:1)"
    assert not roster.is_local
    assert Roster.of({"worker": ["localhost:1", "127.0.0.1:2"]}, "worker", 0).is_local


@pytest.mark.parametrize(
    ("addresses", "one"),
    [
        (["localhost:1", "127.0.0.1:2"], True),
        (["10.0.0.1:1", "10.0.0.1:2"], True),
        (["10.0.0.1:1", "10.0.0.2:1"], False),
        (["node:1", "10.0.0.1:2"], False),
        (["localhost:1", "10.0.0.1:2"], False),
    ],
)
def test_workers_of_one_machine(addresses: list[str], one: bool) -> None:
    assert Roster.of({"worker": addresses}, "worker", 0).shares_machine == one


@pytest.mark.parametrize(("job", "index"), [("ps", 0), ("worker", 2), ("evaluator", 0), ("typo", 0)])
def test_a_task_that_does_not_train_is_told_who_does(job: str, index: int) -> None:
    with pytest.raises(ClusterSpecError, match=rf"{job}.*{index}.*worker 1 \(10\.0\.0\.3:1\).*HINT"):
        Roster.of(JOBS, job, index)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "grpc://node:0", "[::1]:0"])
@pytest.mark.parametrize("job", ["chief", "worker"])
def test_an_address_that_nobody_can_call(job: str, address: str) -> None:
    with pytest.raises(ClusterSpecError, match=rf"the address of {job} 0.*nobody can call.*:0.*HINT"):
        Roster.of({"worker": ["node:1"], job: [address]}, "worker", 0)


def test_a_malformed_address() -> None:
    with pytest.raises(ClusterSpecError, match="nowhere"):
        Roster.of({"worker": ["nowhere"]}, "worker", 0)
