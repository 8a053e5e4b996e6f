"""What a process of a job finds in its environment."""

import json

import pytest

from jaxtribute._src.addons.launcher.environment import rank_environment, rank_of_this_process


def test_a_rank_is_described() -> None:
    found = rank_environment(["a:1", "b:2"], 1, 4, {"HOME": "/home/x", "TF_CONFIG": "old"})
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    assert json.loads(found.pop("TF_CONFIG")) == config
    expected = {"HOME": "/home/x", "JAXTRIBUTE_CPU_DEVICES": "4", "JAXTRIBUTE_LAUNCHER": "1", "JAX_PLATFORMS": "cpu"}
    assert found == expected


def test_devices_stay_as_they_are_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXTRIBUTE_CPU_DEVICES", "7")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    found = rank_environment(["a:1"], 0)
    assert found["JAXTRIBUTE_CPU_DEVICES"] == "7"
    assert "JAX_PLATFORMS" not in found
    assert rank_environment(["a:1"], 0, 2, {"JAX_PLATFORMS": "cuda"})["JAX_PLATFORMS"] == "cuda"


@pytest.mark.parametrize(
    ("config", "rank"),
    [
        ({"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 1}}, 1),
        ({"cluster": {"chief": ["c"], "worker": ["a", "b"]}, "task": {"type": "worker", "index": "1"}}, 2),
        ({"cluster": {"chief": ["c"], "worker": ["a"]}, "task": {"type": "chief", "index": 0}}, 0),
        ({"cluster": {}}, 0),
        ([], 0),
    ],
)
def test_the_rank_is_read_back(config: object, rank: int) -> None:
    assert rank_of_this_process({"TF_CONFIG": json.dumps(config)}) == rank


def test_without_a_description_it_is_rank_0() -> None:
    assert rank_of_this_process({}) == rank_of_this_process({"TF_CONFIG": "{"}) == 0
