"""Names of accelerators that can be compiled for; no compiler is needed to read them."""

import os
import re
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies as jax_topologies
from jax.sharding import SingleDeviceSharding

from jaxtribute._src.addons.compiling import gpus, topologies, tpus
from jaxtribute._src.addons.compiling.topologies import Topology, check_topology, ladder, topology_named
from jaxtribute._src.addons.planning.kinds import DEVICES, link_named
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.errors import ArgumentError, MissingLibraryError


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compilers seem to be installed."""
    for family in (gpus, tpus):
        monkeypatch.setattr(family, "find_spec", lambda _: object())


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(("name", "kind"), [("v5e:2x4", "tpu-v5e"), (" V5P:4x4x8", "tpu-v5p"), ("H100:2x8", "h100")])
def test_names_tell_the_kind_of_device(name: str, kind: str) -> None:
    assert check_topology(name) is DEVICES[kind]


@pytest.mark.parametrize(
    "name", ["", "v5e", "v9:2x2", "h100", "h100:8", "h100:0x8", "h100:2x4x4", "mi300:1x8", "v5e:ax2"]
)
def test_other_names_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ArgumentError, match=r"no topology is called .* v5p:4x4x8; or a GPU \(a100, h100, h200, b200\)"):
        check_topology(name)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in (gpus, tpus):
        monkeypatch.setattr(family, "find_spec", lambda _: None)
    with pytest.raises(MissingLibraryError, match=r"v5e:2x4 needs the TPU compiler.*pip install libtpu"):
        check_topology("v5e:2x4")
    advice = "--device-kind h100 --hosts 2 --devices 8 predicts"
    with pytest.raises(MissingLibraryError, match=rf"h100:2x8 needs JAX's plugin for CUDA.*gpu-compiler.*{advice}"):
        check_topology("h100:2x8")


def described(name: str, kind: str, hosts: int, each: int, link: str | None = None) -> Topology:
    class Stand:
        def __init__(self, host: int) -> None:
            self.process_index = host

    devices: Any = tuple(Stand(host) for host in range(hosts) for _ in range(each))
    chip = DEVICES[kind]
    return Topology(name, chip, devices, chip.link if link is None else link_named(link), {})


def test_the_table_grows_fourfold_and_has_what_was_asked_for() -> None:
    assert ladder(described("h100:3x8", "h100", 3, 8), 300) == [
        "h100:1x8",
        "h100:2x8",
        "h100:3x8",
        "h100:8x8",
        "h100:32x8",
    ]
    assert ladder(described("v5e:4x8", "tpu-v5e", 4, 8), 64) == ["v5e:1x1", "v5e:2x2", "v5e:4x4", "v5e:4x8", "v5e:8x8"]


@pytest.mark.parametrize(
    ("groups", "hosts", "each"),
    [
        ((), 2, 8),
        ((tuple(range(8)),), 1, 8),
        ((tuple(range(0, 16, 4)),), 2, 2),
        (((0, 1), (7, 8)), 2, 1),
        (((0, 1), (1, 0)), 1, 2),
    ],
)
def test_between_hosts_of_gpus_there_is_another_link(groups: Any, hosts: int, each: int) -> None:
    gpu, tpu = described("h100:2x8", "h100", 2, 8, "infiniband-ndr"), described("v5e:4x4", "tpu-v5e", 2, 8)
    found = gpu.among(Collective("all-reduce", (4,), groups=groups), gpu.devices)
    assert (found.hosts, found.devices, found.link.name) == (hosts, each, "infiniband-ndr")
    # A slice's links reach all its chips.
    assert tpu.among(Collective("all-reduce", (4,), groups=groups), tpu.devices).hosts == 1


@pytest.mark.usefixtures("compilers")
def test_the_compilers_environment_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str | None] = {}

    def describe(name: str) -> Any:
        seen.update({key: os.environ.get(key) for key in gpus.ENVIRONMENT})
        raise ArgumentError(f"no {name}")

    monkeypatch.delenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(gpus, "described", describe)
    with pytest.raises(ArgumentError, match="no h100:1x8"):
        topology_named("H100:1x8")
    assert seen["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] == "1"
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"  # as the user has it
    assert "JAX_SKIP_CUDA_CONSTRAINTS_CHECK" not in os.environ


def test_jax_without_the_plugin_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(**_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("no such platform")

    monkeypatch.setattr(jax_topologies, "get_topology_desc", refuses)
    with pytest.raises(ArgumentError, match="takes no 'h100:1x8': no such platform"):
        gpus.described("h100:1x8")


def test_figures_of_gpus_agree_with_the_data_sheets() -> None:
    assert set(gpus.KINDS) == {kind for kind in DEVICES if not kind.startswith("tpu-")}
    for kind, figures in gpus.FIGURES.items():
        sheet = DEVICES[kind]
        assert figures.bandwidth == pytest.approx(sheet.bandwidth, rel=0.05), kind
        assert figures.memory == pytest.approx(sheet.memory, rel=0.08), kind


@pytest.mark.skipif(find_spec("jax_cuda12_plugin") is None, reason="JAX's plugin for CUDA is missing: 5 GB")
def test_devices_of_two_hosts() -> None:
    found = topologies.topology_named("h100:2x4")
    assert (len(found.devices), found.hosts) == (8, 2)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU compiler is missing")
@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_a_device_is_a_chip_and_the_cycles_of_a_product_are_near_its_rate(name: str) -> None:
    found = topology_named(name)
    assert len(found.devices) == 4
    one = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=SingleDeviceSharding(found.devices[0]))
    text: Any = jax.jit(jnp.matmul).lower(one, one).compile().as_text()
    cycles = sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', text)))
    assert found.chip.clock is not None
    assert 0.8 < 2 * 4096**3 / cycles * found.chip.clock / found.chip.half < 1
