"""Specs and resolvers answer as TensorFlow 2.21 answered, but for what is listed here."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import jaxtribute as jd
from cluster.answers import answer
from cluster.cases import CASES

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "tensorflow.json").read_text())
MALFORMED = {"raises": "ValueError"}
DIFFERS = {
    # Text is text, bytes too.
    "spec/bytes/repr": "ClusterSpec({'worker': ['a:1']})",
    "spec/empty_job/job_tasks": [],
    "spec/duplicate": MALFORMED,
    # Whatever is wrong with TF_CONFIG is one kind of error.
    **{name: MALFORMED for name in CASES if name.startswith(("tf_config/number/", "tf_config/list/"))},
    **{f"tf_config/bad_cluster/{asked}": MALFORMED for asked in ("spec", "master", "master_0", "override")},
    # An override of the same cluster adds no tasks; a task 0 that was set counts.
    "union/same": {"worker": ["a:1", "b:2"]},
    "union/id_0": 0,
    "union/unknown": {"raises": "TypeError"},
    # Ranks belong to nodes as Slurm lists them; a node without GPUs is one.
    "slurm/names": {"worker": ["t02n13:8888", "t02n41:8888", "a-b:8888"]},
    "slurm/unsorted": {"worker": ["n2:8888", "n10:8888"]},
    "slurm/no_gpu": "",
    **{f"slurm/{name}": MALFORMED for name in ("too_many", "too_many_gpus", "unset", "half")},
}


def test_every_question_has_an_answer() -> None:
    assert set(RECORDED) == set(CASES)
    assert set(DIFFERS) <= set(CASES)


@pytest.mark.parametrize("group", ["spec", "tf_config", "simple", "union", "slurm"])
def test_answers_are_those_of_tensorflow(group: str) -> None:
    resolvers = jd.cluster_resolver
    names = {"ClusterSpec": jd.ClusterSpec} | {name: getattr(resolvers, name) for name in resolvers.__all__}
    for name, (environ, code) in CASES.items():
        if name.startswith(f"{group}/"):
            with mock.patch.dict(os.environ, environ):
                assert answer(code, names) == DIFFERS.get(name, RECORDED[name]), name


def test_what_is_listed_as_different_is() -> None:
    assert [name for name, ours in DIFFERS.items() if RECORDED[name] == ours] == []
