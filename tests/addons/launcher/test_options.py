"""Options of a launch, and what Slurm and Kubernetes say of the machines."""

import pytest

from jaxtribute._src.addons.launcher.options import Options, complete
from jaxtribute.errors import ArgumentError, ClusterSpecError

OPTIONS = Options(command=("true",))
STEP = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "20007",
}


def found(options: Options) -> tuple[int, int, str | None]:
    return options.nodes, options.node_rank, options.coordinator


def test_alone_by_default() -> None:
    assert found(complete(OPTIONS, None, None, {})) == (1, 0, None)


def test_machines_as_asked_for() -> None:
    options = Options(command=("true",), coordinator="10.0.0.1:29400")
    assert found(complete(options, 3, 2, {})) == (3, 2, "10.0.0.1:29400")
    assert found(complete(options, 3, None, {"JOB_COMPLETION_INDEX": "1"})) == (3, 1, "10.0.0.1:29400")
    # What is asked for counts more than Slurm.
    assert found(complete(options, 1, None, STEP)) == (1, 0, "10.0.0.1:29400")


@pytest.mark.parametrize(
    ("nodes", "rank", "changes", "words"),
    [
        (2, 2, {}, "--node-rank 2 of --nodes 2"),
        (None, -1, {}, "--node-rank -1 of --nodes 1"),
        (2, None, {}, "JOB_COMPLETION_INDEX=''"),
        (2, 0, {"coordinator": None}, "without --coordinator"),
        (2, 0, {"coordinator": "host"}, "'host' is no address"),
    ],
)
def test_machines_that_do_not_fit(
    nodes: int | None, rank: int | None, changes: dict[str, str | None], words: str
) -> None:
    options = Options(command=("true",), coordinator=changes.get("coordinator", "h:1"))
    with pytest.raises((ArgumentError, ClusterSpecError), match=words):
        complete(options, nodes, rank, {})


def test_a_step_of_slurm_with_one_task_a_machine() -> None:
    assert found(complete(OPTIONS, None, None, STEP)) == (2, 1, "n1:20007")
    one = {**STEP, "SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "0"}
    assert found(complete(OPTIONS, None, None, one)) == (1, 0, None)
    assert complete(OPTIONS, None, None, {**STEP, "SLURM_JOB_ID": "123456"}).coordinator == "n1:23456"
    with pytest.raises(ClusterSpecError, match="SLURM_PROCID is missing"):
        complete(OPTIONS, None, None, {**STEP, "SLURM_PROCID": ""})
