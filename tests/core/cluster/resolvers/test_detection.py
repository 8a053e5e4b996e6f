"""Which resolver an environment asks for."""

import json
import os
from collections.abc import Mapping
from unittest import mock

import pytest

import jaxtribute as jd
from jaxtribute._src.core.points import RESOLVERS
from jaxtribute.cluster_resolver import ClusterResolver, Detection, detect, known, register

TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})}
TPU = {"TPU_WORKER_HOSTNAMES": "h0,h1", "TPU_WORKER_ID": "1"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": " "},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # a batch script that has not called srun
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "notebook-0"},  # a pod that is no task of a Job
        {"JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_an_environment_that_only_looks_like_a_cluster_is_none(environ: Mapping[str, str]) -> None:
    assert detect(environ) is None


def test_this_process_is_looked_at_by_default() -> None:
    with mock.patch.dict(os.environ, TF_CONFIG):
        found = detect()
    assert found is not None
    assert isinstance(found.resolver, jd.cluster_resolver.TFConfigClusterResolver)


def test_a_resolver_of_ones_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RESOLVERS, "_entries", list(RESOLVERS.entries()))  # those of its own go with the test

    @register(rank=5)
    class Mine(ClusterResolver):
        @classmethod
        def detect(cls, environ: Mapping[str, str]) -> Detection | None:
            return Detection(cls("worker", 0), "MINE is set") if "MINE" in environ else None

        def cluster_spec(self) -> jd.ClusterSpec:
            return jd.ClusterSpec({"worker": ["a:1"]})

    assert known()[1] is Mine
    found = detect({"MINE": "1"} | TPU)
    assert found is not None
    assert isinstance(found.resolver, Mine)
