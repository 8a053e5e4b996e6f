"""Counting accelerators without starting JAX."""

from pathlib import Path

import jax
import pytest

from jaxtribute._src.core import backend
from jaxtribute._src.core.cluster.accelerators import local_accelerators, visible_gpus


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        ("0,1", ["0", "1"]),
        ("4, 6", ["4", "6"]),
        ("GPU-8932f937,MIG-1/2/3", ["GPU-8932f937", "MIG-1/2/3"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,2", ["0"]),
    ],
)
def test_the_environment_names_the_gpus(visible: str, ids: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": visible}) == ids


def test_without_it_the_machine_has_those_with_a_device_file(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "2", "10"]


def test_jax_is_asked_once_it_has_started() -> None:
    jax.devices()
    found = local_accelerators({"CUDA_VISIBLE_DEVICES": "0,1"})
    assert found == {kind: count for kind, count in found.items() if kind != "CPU"}
    assert sum(found.values()) == sum(device.platform != "cpu" for device in jax.local_devices())


@pytest.mark.parametrize(("visible", "found"), [("0,1,2", {"GPU": 3}), ("", {})])
def test_jax_is_not_started(visible: str, found: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "backend_started", lambda: False)
    monkeypatch.setattr(jax, "local_devices", pytest.fail)
    assert local_accelerators({"CUDA_VISIBLE_DEVICES": visible}) == found
