"""What the doctor knows before any check, and the facts that it tells."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from cryptography.hazmat.primitives import serialization

from jaxtribute._src.addons.doctor import checks
from jaxtribute._src.addons.doctor.report import Finding, Level, look
from jaxtribute._src.addons.elastic.links import Tls
from jaxtribute._src.addons.launcher.certificates import write_certificates
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Address


def tf_config(addresses: list[str], kind: str = "worker", index: int = 0, **jobs: list[str]) -> dict[str, str]:
    config = {"cluster": {"worker": addresses, **jobs}, "task": {"type": kind, "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


def cluster_findings(environ: dict[str, str]) -> dict[str, Finding]:
    return {finding.title: finding for finding in checks.check_cluster(look(environ))}


def test_no_cluster() -> None:
    (found,) = checks.check_cluster(look({}))
    assert found.text.startswith("none: this process trains alone. Looked for TF_CONFIG;")


def test_a_cluster_is_described() -> None:
    found = cluster_findings(tf_config([f"10.0.0.{i}:1" for i in range(9)], index=2, ps=["10.0.1.1:1"]))
    assert found["resolver"].text.startswith("TFConfigClusterResolver: TF_CONFIG is {")
    assert found["job worker"].text.startswith("9: 10.0.0.0:1, ")
    assert found["job worker"].text.endswith(" and 1 more")
    assert found["job ps"].text == "1: 10.0.1.1:1"
    assert found["this process"].text == "worker 2 (10.0.0.2:1)"
    assert all(finding.level is Level.FACT for finding in found.values())


def test_a_task_that_does_not_train() -> None:
    found = cluster_findings(tf_config(["10.0.0.1:1"], "ps", 0, ps=["10.0.1.1:1"]))
    assert found["this process"].text == "ps, which does not train with the workers"


@pytest.mark.parametrize(
    ("environ", "text", "fix"),
    [
        ({"TF_CONFIG": "{"}, "it is no JSON", "write"),
        ({"SLURM_STEP_NODELIST": "n1"}, "is missing here", "srun"),
        (tf_config(["10.0.0.1:1"], index=5), "the task in TF_CONFIG", "every process"),
    ],
)
def test_a_description_that_is_wrong(environ: dict[str, str], text: str, fix: str) -> None:
    found = cluster_findings(environ)["cluster"]
    assert found.level is Level.ERROR
    assert text in found.text
    assert fix in found.fix


def test_an_allocation_without_a_step() -> None:
    found = cluster_findings({"SLURM_JOB_ID": "7"})["Slurm"]
    assert found.level is Level.WARNING
    assert "srun" in found.fix


def test_localhost_among_several_machines() -> None:
    found = cluster_findings(tf_config(["localhost:1", "10.0.0.2:1"]))["addresses"]
    assert found.level is Level.ERROR
    assert found.text.startswith("worker 0 (localhost:1) can be reached from one machine only")
    assert "addresses" not in cluster_findings(tf_config(["localhost:1", "127.0.0.1:2"]))


def device_findings(environ: dict[str, str]) -> dict[str, Finding]:
    return {finding.title: finding for finding in checks.check_devices(look(environ))}


def test_devices_are_counted() -> None:
    found = device_findings({"CUDA_VISIBLE_DEVICES": "", "PJRT_NPROC": "16"})
    assert found["devices"].text == "8 x CPU (cpu)"
    assert list(found) == ["devices"]


def test_gpus_that_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = device_findings({"CUDA_VISIBLE_DEVICES": "0,1"})["GPUs"]
    assert (found.level, found.text) == (Level.ERROR, "CUDA_VISIBLE_DEVICES='0,1' names 2, JAX finds none")
    left_out = device_findings({"CUDA_VISIBLE_DEVICES": "0,1", "JAX_PLATFORMS": "cpu"})["GPUs"]
    assert left_out.level is Level.FACT

    class Gpu:
        platform, device_kind = "gpu", "Fast"

    monkeypatch.setattr(jax, "local_devices", lambda: [Gpu()])
    monkeypatch.setattr(checks, "visible_gpus", lambda _: ["0", "1"])
    some = device_findings({})
    assert some["devices"].text == "1 x GPU (Fast)"
    assert (some["GPUs"].level, some["GPUs"].text) == (Level.ERROR, "this machine has 2, JAX finds 1")


@pytest.mark.parametrize(
    ("environ", "fix"), [({"JAX_PLATFORMS": "tpu"}, "unset JAX_PLATFORMS='tpu'"), ({}, "install JAX")]
)
@pytest.mark.parametrize(
    ("error", "text"), [(RuntimeError("no backend"), "no backend"), (AssertionError(), "it finds no device")]
)
def test_jax_that_does_not_start(
    error: Exception, text: str, environ: dict[str, str], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(jax, "local_devices", fail)
    (found,) = checks.check_devices(look(environ))
    assert (found.level, found.text) == (Level.ERROR, f"JAX does not start: {text}")
    assert found.fix.startswith(fix)


def test_a_thread_pool_that_is_too_small() -> None:
    found = device_findings({"CUDA_VISIBLE_DEVICES": "", "PJRT_NPROC": "4"})["thread pool"]
    assert found.level is Level.WARNING
    assert "chooses 16" in found.fix


NAMES = ("JAX_MTLS_CERT_FILE", "JAX_MTLS_KEY_FILE", "JAX_MTLS_CA_FILE")


def broken(folder: Path, how: str) -> dict[str, str]:
    """The environment of a job's certificates, with one thing wrong."""
    (folder / "other").mkdir()
    made = [write_certificates(bytes([number]) * 64, where) for number, where in enumerate((folder, folder / "other"))]
    cert, key, authority = NAMES
    match how:
        case "absent":
            del made[0][key]
        case "no file":
            Path(made[0][authority]).unlink()
        case "a folder":
            made[0][cert] = str(folder)
        case "no certificate":
            Path(made[0][cert]).write_text("hello")
        case "another's key":
            made[0][key] = made[1][key]
        case "a key with a password":
            loaded: Any = serialization.load_pem_private_key(Path(made[0][key]).read_bytes(), None)
            locked = serialization.BestAvailableEncryption(b"secret")
            form = serialization.PrivateFormat.PKCS8
            Path(made[0][key]).write_bytes(loaded.private_bytes(serialization.Encoding.PEM, form, locked))
        case _:
            pass
    return made[0]


@pytest.mark.parametrize(
    "how", ["absent", "no file", "a folder", "no certificate", "another's key", "a key with a password"]
)
def test_certificates_that_are_wrong(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = broken(tmp_path, how)
    (found,) = checks.check_certificates(look(environ))
    assert found.level is Level.ERROR
    assert found.fix
    assert "\n" not in found.text
    if how != "absent":
        for name in NAMES:
            monkeypatch.setenv(name, environ[name])
        with pytest.raises(ArgumentError, match=r"the island at .* cannot encrypt: .*HINT"):
            Tls.needed_for([Address("10.0.0.1", 1)])


def test_certificates_that_are_right_or_not_wanted(tmp_path: Path) -> None:
    (found,) = checks.check_certificates(look(broken(tmp_path, "")))
    assert found.level is Level.GOOD
    assert not list(checks.check_certificates(look({})))
    assert not list(checks.check_certificates(look({NAMES[0]: "", NAMES[1]: "x"})))
