"""Which of all resolvers an environment asks for."""

import json
from collections.abc import Mapping

import pytest

import jaxtribute as jd
from jaxtribute._src.core.cluster.resolvers import from_environment
from jaxtribute.cluster_resolver import detect, known
from jaxtribute.errors import ClusterSpecError

TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})}
TPU = {"TPU_WORKER_HOSTNAMES": "h0,h1", "TPU_WORKER_ID": "1"}
SLURM = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
STEP = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize(
    ("environ", "name", "why"),
    [
        (TF_CONFIG, "TFConfigClusterResolver", "TF_CONFIG is {"),
        (TPU, "TPUClusterResolver", "TPU_WORKER_HOSTNAMES is h0,h1"),
        (SLURM, "SlurmClusterResolver", "SLURM_STEP_NUM_TASKS is 1"),
        (SLURM | TPU | TF_CONFIG, "TFConfigClusterResolver", "TF_CONFIG is {"),
        (SLURM | TPU, "TPUClusterResolver", "TPU_WORKER_HOSTNAMES"),
    ],
)
def test_what_is_set_most_on_purpose_is_found(environ: Mapping[str, str], name: str, why: str) -> None:
    found = detect(environ)
    assert found is not None
    assert type(found.resolver).__name__ == name
    assert found.why.startswith(why)
    assert found.resolver.own_task()[0] == "worker"


def test_half_a_cluster_is_an_error_and_not_overlooked() -> None:
    with pytest.raises(ClusterSpecError, match="SLURM_STEP_NODELIST"):
        detect({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"})


def test_each_that_can_be_found_says_what_it_looks_for() -> None:
    assert [cls.__name__ for cls in known()] == [
        "TFConfigClusterResolver",
        "TPUClusterResolver",
        "SlurmClusterResolver",
        "KubernetesClusterResolver",
    ]
    assert all(cls.looks_for for cls in known())


@pytest.mark.parametrize(
    ("environ", "name", "workers"),
    [
        ({}, "TFConfigClusterResolver", 0),
        (TF_CONFIG, "TFConfigClusterResolver", 1),
        (TPU, "TPUClusterResolver", 2),
        (STEP, "SlurmClusterResolver", 2),
        (STEP | TF_CONFIG, "TFConfigClusterResolver", 1),
        # A shell of one task, and an allocation without a step.
        (SLURM, "TFConfigClusterResolver", 0),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[1-2]"}, "TFConfigClusterResolver", 0),
    ],
)
def test_a_strategy_without_a_resolver_takes_the_cluster_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], name: str, workers: int
) -> None:
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    resolver = from_environment()
    spec = resolver.cluster_spec()
    assert (type(resolver).__name__, sum(map(spec.num_tasks, spec.jobs))) == (name, workers)


def test_a_strategy_is_not_alone_where_the_environment_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in STEP.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("SLURM_STEP_NODELIST")
    with pytest.raises(ClusterSpecError, match="HINT"):
        jd.MultiWorkerMirroredStrategy()
