"""GPUs of a machine, divided over its workers."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.launcher import gpus
from jaxtribute._src.addons.launcher.gpus import gpu_settings
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute.errors import ArgumentError

VISIBLE, MEMORY = "CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def options(workers: int, **others: object) -> Options:
    return Options(command=("true",), workers=workers, **others)  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def plugin_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_has_plugin", lambda: True)


def shares(asked: Options, present: Sequence[str], **environment: str) -> list[list[str]]:
    found = {VISIBLE: ",".join(present), **environment}
    every = [gpu_settings(asked, index, found) for index in range(asked.workers)]
    return [one[VISIBLE].split(",") for one in every]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_gpus_are_shared_out_once_each(workers: int, each: int, more: int) -> None:
    present = [str(number) for number in range(workers * each + more)]
    asked = shares(options(workers, gpus=each), present)
    assert all(len(share) == each for share in asked)
    assert [gpu for share in asked for gpu in share] == present[: workers * each]
    if workers > 1 and not more % workers:
        every = shares(options(workers), present)
        assert {len(share) for share in every} == {len(present) // workers}
        assert [gpu for share in every for gpu in share] == present
    elif workers > 1:
        words = f"{workers} workers cannot divide the {len(present)} GPU(s)"
        with pytest.raises(ArgumentError, match=re.escape(words)) as told:
            shares(options(workers), present)
        assert all(way in str(told.value) for way in ("--gpus-per-worker", "--workers", "--devices-per-worker"))


@pytest.mark.parametrize(
    ("asked", "environment"),
    [
        (options(1), {}),
        (options(3, devices=2), {}),
        (options(3), {"JAX_PLATFORMS": "cpu"}),
        (options(3), {"JAX_PLATFORMS": "cpu,cuda"}),
        (options(3), {VISIBLE: ""}),
        (options(3), {VISIBLE: "-1"}),
    ],
)
def test_workers_that_see_what_they_find(asked: Options, environment: dict[str, str]) -> None:
    assert gpu_settings(asked, 0, {VISIBLE: "0,1", **environment}) == {}


def test_a_jax_without_gpus_does_not_mind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_has_plugin", lambda: False)
    assert gpu_settings(options(3), 0, {VISIBLE: "0,1"}) == {}


def test_more_gpus_than_there_are() -> None:
    assert gpu_settings(options(2, gpus=1), 1, {VISIBLE: "GPU-a,GPU-b"}) == {VISIBLE: "GPU-b"}
    with pytest.raises(ArgumentError, match=r"2 workers of 2 GPU\(s\) each need 4, and this machine shows 3"):
        gpu_settings(options(2, gpus=2), 0, {VISIBLE: "0,1,2"})


def test_islands_share_a_gpu_if_they_are_told_to() -> None:
    islands = options(3, min_islands=1)
    with pytest.raises(ArgumentError, match=r"3 workers cannot divide the 2 GPU\(s\).*--share-gpus"):
        shares(islands, ["4", "7"])
    islands = options(3, min_islands=1, shares_gpus=True)
    assert shares(islands, ["4", "7"]) == [["4"], ["7"], ["4"]]
    found = {VISIBLE: "4,7", MEMORY: "0.9", "JAX_PLATFORMS": "cuda"}
    assert gpu_settings(islands, 0, found)[MEMORY] == "0.45"
    assert gpu_settings(islands, 0, {VISIBLE: "4"})[MEMORY] == "0.25"
    with pytest.raises(ArgumentError, match="--spares 1 on a machine with 3 GPU"):
        shares(options(3, min_islands=1, spares=1), ["0", "1", "2"])
