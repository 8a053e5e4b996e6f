"""The manifest for Kubernetes: what it says fits together, and its command runs in each pod."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from processes import free_ports

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "examples" / "kubernetes" / "digits.yaml"
PROGRAM = """
import json, os, sys
config = json.loads(os.environ["TF_CONFIG"])
assert os.environ["PYTHONFAULTHANDLER"] == "1"
workers = config["cluster"]["worker"]
print("task", config["task"]["index"], "of", len(workers), os.environ["JAXTRIBUTE_CPU_DEVICES"], *sys.argv[1:])
"""


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    service, job = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    return service, job


def test_its_parts_fit_together() -> None:
    service, job = documents()
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = dict(word.split("=") for word in container["args"] if word.startswith("--"))
    name = job["metadata"]["name"]
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    assert options["--coordinator"].startswith(f"{name}-0.{service['metadata']['name']}:")
    assert job["spec"]["completionMode"] == "Indexed"
    assert int(options["--nodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert pod["terminationGracePeriodSeconds"] > float(options["--save-time"])
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [75]}
    assert pod["restartPolicy"] == "Never"  # as a podFailurePolicy asks for
    assert (ROOT / container["args"][-2]).is_file()


@pytest.mark.slow
def test_its_command_runs_in_every_pod(tmp_path: Path) -> None:
    _, job = documents()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (tmp_path / "examples").mkdir()
    (tmp_path / container["args"][-2]).write_text(PROGRAM)
    assert container["command"][0] == "jaxtribute"
    address = f"--coordinator=127.0.0.1:{free_ports(1)[0]}"
    arguments = [address if word.startswith("--coordinator") else word for word in container["args"]]
    command = [sys.executable, "-m", "jaxtribute.cli", *container["command"][1:], *arguments]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    pods = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, **given, "JOB_COMPLETION_INDEX": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(job["spec"]["completions"])
    ]
    try:
        outputs = [pod.communicate(timeout=300)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
    said = [[line for line in output.splitlines() if line.startswith("[")] for output in outputs]
    assert said == [[f"[{rank}] task {rank} of 2 2 --strategy=multi-worker"] for rank in range(2)], outputs
    assert [pod.returncode for pod in pods] == [0, 0]
