"""The files for clusters: what they say fits together, and their command lines run on two machines."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxtribute._src.addons.cli.commands import launch
from namespaces import Machine

ROOT = Path(__file__).parents[2]
FILES = ROOT / "examples" / "cluster"
MANIFESTS = [FILES / "job.yaml", FILES / "jobset.yaml"]
DOCKERFILE = (FILES / "Dockerfile").read_text(encoding="utf-8")
SBATCH = FILES / "slurm.sbatch"
ELASTIC_MANIFEST, ELASTIC_SBATCH = FILES / "elastic.yaml", FILES / "elastic.sbatch"
PROGRAM = """
import json, os, sys
config = json.loads(os.environ["TF_CONFIG"])
assert "JAX_MTLS_KEY_FILE" in os.environ, "the key makes certificates"
workers = config["cluster"]["worker"]
print("task", config["task"]["index"], "of", len(workers), os.environ["JAXTRIBUTE_CPU_DEVICES"], *sys.argv[1:])
"""
SHIM = f"""#!/bin/sh
exec {sys.executable} -m jaxtribute.cli "$@"
"""
SRUN = """#!/bin/bash
# A step of Slurm on two machines: network namespaces.
shift  # --kill-on-bad-exit=0
rank=0
for name in $NAMES; do
    SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=$HOSTS SLURM_STEP_TASKS_PER_NODE="1(x2)" \\
        ip netns exec "$name" "$@" &
    tasks="${tasks:-} $!"
    rank=1
done
for task in $tasks; do wait "$task" || status=$?; done
exit ${status:-0}
"""


def manifest(path: Path) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The parts of a manifest: the job, its pod, and the name of its first pod."""
    *others, found = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    name = found["metadata"]["name"]
    claim, policy, *services = others
    pod = found["spec"].get("template") or found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert pod["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    # The same pods are closed to others, let in each other, and are kept apart.
    label = "job-name" if found["kind"] == "Job" else "jobset.sigs.k8s.io/jobset-name"
    (allowed,) = policy["spec"]["ingress"][0]["from"]
    (apart,) = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    for selector in (policy["spec"]["podSelector"], allowed["podSelector"], apart["podAffinityTerm"]["labelSelector"]):
        assert selector == {"matchLabels": {label: name}}
    if found["kind"] == "Job":
        (service,) = services
        assert service["spec"]["selector"] == {"job-name": name}
        assert found["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
        return found, found["spec"]["template"]["spec"], f"{name}-0.{service['metadata']['name']}"
    (job,) = found["spec"]["replicatedJobs"]
    network = found["spec"]["network"]
    assert (network["enableDNSHostnames"], job["replicas"]) == (True, 1)
    # https://jobset.sigs.k8s.io/docs/concepts: jobset, replicated job, its number, the pod's number.
    return (
        job["template"],
        job["template"]["spec"]["template"]["spec"],
        f"{name}-{job['name']}-0-0.{network['subdomain']}",
    )


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_fits_together(path: Path) -> None:
    job, pod, first = manifest(path)
    (container,) = pod["containers"]
    options = dict(word.split("=") for word in container["args"] if word.startswith("--"))
    assert options["--coordinator"].rpartition(":")[0] == first
    assert job["spec"]["completionMode"] == "Indexed"
    assert int(options["--nodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert pod["terminationGracePeriodSeconds"] > float(options["--save-time"])
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [75, 143]}
    assert pod["restartPolicy"] == "Never"  # as a podFailurePolicy asks for
    assert (ROOT / container["args"][-2]).is_file()
    (volume, kept), (mount, written) = pod["volumes"], container["volumeMounts"]
    # Checkpoints stay where a pod goes.
    assert (kept["name"], "persistentVolumeClaim" in kept) == (written["name"], True)
    assert options["--checkpoints"].startswith(f"{written['mountPath']}/")
    assert (volume["name"], mount["readOnly"]) == (mount["name"], True)
    # Made by the line in the head of the file; readable by the user of the image and by nobody else.
    made = re.search(r"create secret generic (\S+) --from-file=(\S+)", path.read_text(encoding="utf-8"))
    assert made is not None
    assert volume["secret"] == {"secretName": made[1], "defaultMode": 0o440}
    assert options["--key"] == f"{mount['mountPath']}/{made[2]}"
    user = re.search(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert user is not None
    assert pod["securityContext"] == {"runAsUser": int(user[1]), "runAsNonRoot": True, "fsGroup": int(user[1])}


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    launch.add_arguments(parser)
    found = parser.parse_args(words)
    launch._refuse_for_islands(found)  # pyright: ignore[reportPrivateUsage]
    assert (ROOT / found.program).is_file()
    return found


def test_the_files_for_islands_say_what_the_launcher_takes() -> None:
    claim, _, _, job = list(yaml.safe_load_all(ELASTIC_MANIFEST.read_text(encoding="utf-8")))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["volumes"][1]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert [one["name"] for one in pod["volumes"]] == [one["name"] for one in container["volumeMounts"]]
    assert container["args"][-1].startswith(f"--checkpoints={container['volumeMounts'][1]['mountPath']}/")
    assert {"name": "JOB_COMPLETION_INDEX"}.items() <= container["env"][1].items()
    assert {"name": "JOB_FAILURES"}.items() <= container["env"][2].items()
    found = parsed(expanded(container["args"], {"JOB_COMPLETION_INDEX": "1", "JOB_FAILURES": "2"}))
    assert found.rejoin_if == 2
    assert list(found.hosts) == [
        f"{job['metadata']['name']}-{n}.{pod['subdomain']}" for n in range(job["spec"]["completions"])
    ]
    text = ELASTIC_SBATCH.read_text(encoding="utf-8")
    (line,) = re.findall(r"sh -c 'jaxtribute launch (.*)' \|\| status", text.replace("\\\n", ""))
    values = {"$hosts": "a,b", "$port": "20001", "$SLURM_PROCID": "1", "$key": "key", "$folder": "logs"}
    found = parsed([values.get(word, word) for word in shlex.split(line)])
    assert found.arguments == ["--checkpoints", "$folder/checkpoints"]
    assert (found.hosts, found.node_rank, found.port) == (("a", "b"), 1, 20001)


@pytest.mark.slow
def test_kubernetes_knows_every_field_of_the_manifests() -> None:
    """The types of the official client, which leave out what they do not know and refuse what lacks a field."""
    from kubernetes import client

    api: Any = client.ApiClient()
    documents = [
        one for path in [*MANIFESTS, ELASTIC_MANIFEST] for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    types = {kind: f"V1{kind}" for kind in ("Service", "Job", "PersistentVolumeClaim", "NetworkPolicy")}
    for document in documents:
        if document["kind"] in types:
            assert sanitized(api, document, types[document["kind"]]) == document
        else:
            for job in document["spec"]["replicatedJobs"]:
                assert sanitized(api, job["template"], "V1JobTemplateSpec") == job["template"]
            # Those of jobset.x-k8s.io/v1alpha2 that the file uses.
            assert document["spec"].keys() == {"network", "failurePolicy", "replicatedJobs"}
            assert document["spec"]["network"].keys() == {
                "enableDNSHostnames", "publishNotReadyAddresses", "subdomain",
            }  # fmt: skip
            assert document["spec"]["failurePolicy"].keys() == {"maxRestarts"}
            assert document["spec"]["replicatedJobs"][0].keys() == {"name", "replicas", "template"}


def sanitized(api: Any, document: dict[str, Any], kind: str) -> dict[str, Any]:
    """A document as the client would send it."""
    return api.sanitize_for_serialization(api._ApiClient__deserialize(document, kind))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a program in place of the example, and commands that the files use."""
    (tmp_path / "examples" / "cluster").mkdir(parents=True)
    (tmp_path / "examples" / "cluster" / "train.py").write_text(PROGRAM)
    for name, text in {"jaxtribute": SHIM, "srun": SRUN, "scontrol": '#!/bin/sh\necho "$@" >>asked\n'}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "job.key").write_text("k" * 32)
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return os.environ | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "HOME": str(place)}


def expanded(words: list[str], told: dict[str, str]) -> list[str]:
    """A command as Kubernetes makes it of a manifest's."""
    return [re.sub(r"\$\((\w+)\)", lambda found: told[found[1]], word) for word in words]


def started_pod(
    machine: Machine, index: int, place: Path, command: list[str], given: dict[str, str]
) -> "subprocess.Popen[str]":
    """Starts a command on a machine, where Kubernetes tells it its number and what `given` says."""
    told = given | {"JOB_COMPLETION_INDEX": str(index)}
    return subprocess.Popen(
        [*machine.within, *expanded(command, told)],
        cwd=place,
        env=environment(place) | told,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def printed_in_pods(
    machines: tuple[Machine, Machine], place: Path, command: list[str], given: dict[str, str]
) -> list[str]:
    """What a command prints on each machine; it must end well on all."""
    pods = [started_pod(machine, index, place, command, given) for index, machine in enumerate(machines)]
    return ended_well(pods)


def ended_well(pods: list["subprocess.Popen[str]"]) -> list[str]:
    """What pods have printed, all of which must end with 0."""
    try:
        outputs = [one.communicate(timeout=300)[0] for one in pods]
    finally:
        for one in pods:
            one.kill()
            one.wait()
    assert [one.returncode for one in pods] == [0] * len(pods), "\n\n".join(outputs)
    return outputs


@pytest.mark.slow
def test_the_command_of_the_manifests_runs_in_every_pod(machines: tuple[Machine, Machine], place: Path) -> None:
    jobs = [manifest(path) for path in MANIFESTS]
    told = [[word.replace(first, "first") for word in pod["containers"][0]["args"]] for _, pod, first in jobs]
    assert told[0] == told[1], "the manifests run different commands"
    job, pod, first = jobs[0]
    (container,) = pod["containers"]
    changed = {"--coordinator": (first, machines[0].address), "--key": ("/run/jaxtribute", str(place))}
    changed |= {option: ("/checkpoints", str(place)) for option in ("--log-dir", "--run")}
    command = [word.replace(*changed.get(word.partition("=")[0], ("", ""))) for word in container["args"]]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    outputs = printed_in_pods(machines, place, [*container["command"], *command], given)
    said = [[line for line in output.splitlines() if line.startswith("[")] for output in outputs]
    assert said == [[f"[{rank}] task {rank} of 2 2 --checkpoints=/checkpoints/digits"] for rank in range(2)], outputs
    assert job["spec"]["completions"] == len(machines)


@pytest.fixture
def islands_command(machines: tuple[Machine, Machine], place: Path) -> list[str]:
    """The command of the manifest of islands, with the paths and addresses of two machines here."""
    *_, job = yaml.safe_load_all(ELASTIC_MANIFEST.read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    shutil.copy(ROOT / "examples" / "elastic.py", place / "examples")
    hosts = "--hosts=" + ",".join(machine.address for machine in machines)
    words = [hosts if word.startswith("--hosts") else word for word in container["args"]]
    words = [word.replace("/run/jaxtribute", str(place)).replace("=/checkpoints", f"={place}") for word in words]
    return [*container["command"], *words]


@pytest.mark.slow
def test_the_islands_of_the_manifest_go_on_from_their_checkpoint(
    machines: tuple[Machine, Machine], place: Path, islands_command: list[str]
) -> None:
    def epochs(count: int, failures: int) -> list[str]:
        """The epochs that the first island tells of in a job of so many, whose pods have all failed so often."""
        command, given = [*islands_command, "--epochs", str(count)], {"JOB_FAILURES": str(failures)}
        output, _ = printed_in_pods(machines, place, command, given)
        return re.findall(r"^\[0\] epoch (\d+)", output, re.MULTILINE)

    assert epochs(1, 0) == ["0"]
    assert epochs(2, 0) == ["1"]
    assert epochs(3, 1) == ["2"]
    assert sorted(path.name for path in (place / "logs").iterdir()) == [f"rank-{rank}.log" for rank in range(4)]


@pytest.mark.slow
def test_a_pod_that_takes_the_place_of_another_joins_the_islands(
    machines: tuple[Machine, Machine], place: Path, islands_command: list[str]
) -> None:
    command, log = [*islands_command, "--epochs", "100"], place / "logs" / "rank-2.log"

    def until(words: str) -> None:
        end = time.monotonic() + 120
        while not (log.exists() and re.search(words, log.read_text(), re.MULTILINE)):
            if time.monotonic() > end or pods[1].poll() is not None:
                pods[1].kill()
                raise AssertionError(f"no {words!r} in\n{log.read_text()}\n{pods[1].communicate()[0]}")
            time.sleep(0.05)

    pods = [started_pod(machine, rank, place, command, {"JOB_FAILURES": "0"}) for rank, machine in enumerate(machines)]
    try:
        until(r"^epoch \d+: .* islands \[0, 1, 2, 3\]")
        pods[0].terminate()  # as a node is drained; its islands save nothing of their own
        output = pods[0].communicate(timeout=120)[0]
        assert pods[0].returncode == 75, output
        until(r"^epoch \d+: .* islands \[2, 3\]")
        pods[0] = started_pod(machines[0], 0, place, command, {"JOB_FAILURES": "1"})
        outputs = ended_well(pods)
    finally:
        for one in pods:
            one.kill()
            one.wait()
    assert re.search(r"^\[2\] epoch 99: .* islands \[0, 1, 2, 3\]", outputs[1], re.MULTILINE), outputs[1]
    assert "Each of 1797 images was seen 100 times." in outputs[0]


@pytest.mark.slow
def test_the_batch_file_of_slurm(machines: tuple[Machine, Machine], place: Path) -> None:
    """It runs on both machines, leaves logs and no key, and asks for another turn after a preemption."""
    with (place / "examples" / "cluster" / "train.py").open("a") as program:
        program.write("sys.exit(75)\n")
    allocated = {"SLURM_JOB_ID": "4711", "NAMES": " ".join(machine.name for machine in machines)}
    allocated["HOSTS"] = ",".join(machine.address for machine in machines)
    text = SBATCH.read_text(encoding="utf-8").replace("--max-restarts 10", "--max-restarts 10 --max-preemptions 0")
    command = ["bash", "-c", text]
    around = environment(place) | allocated
    done = subprocess.run(command, cwd=place, env=around, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 75, done.stdout + done.stderr
    for rank in range(2):
        expected = f"task {rank} of 2 2 --checkpoints=logs/4711/checkpoints\n"
        assert (place / "logs" / "4711" / f"rank-{rank}.log").read_text() == expected, done.stderr
    assert (place / "logs" / "4711" / "run").is_dir()
    assert not list(place.glob(".jaxtribute-*"))
    assert (place / "asked").read_text() == "requeue 4711\n"


@pytest.mark.slow
def test_the_batch_file_has_no_mistake_that_a_checker_finds() -> None:
    subprocess.run(["bash", "-n", str(SBATCH)], check=True, timeout=60)
    subprocess.run(["bash", "-n", str(ELASTIC_SBATCH)], check=True, timeout=60)
    if (checker := shutil.which("shellcheck")) is not None:
        subprocess.run([checker, str(SBATCH)], check=True, timeout=60)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", SBATCH.read_text(encoding="utf-8"), re.MULTILINE))
    saved = re.search(r"--save-time (\d+)", SBATCH.read_text(encoding="utf-8"))
    assert saved is not None
    assert int(options["signal"].partition("@")[2]) > int(saved[1])
    assert options["ntasks-per-node"] == "1"


@pytest.mark.slow
def test_what_the_image_copies_is_enough_to_install_the_library(tmp_path: Path) -> None:
    copied = [words.split() for words in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)]
    for *sources, target in copied:
        for source in sources:
            into = tmp_path / target / (source if target == "./" else "")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, into)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, check=True, timeout=120)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r'"\.\[(.*)\]"', DOCKERFILE)
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    python = re.search(r"^FROM python:(\d+\.\d+)-slim$", DOCKERFILE, re.MULTILINE)
    assert python is not None
    assert f"Programming Language :: Python :: {python[1]}" in project["classifiers"]
    assert (tmp_path / "examples" / "cluster" / "train.py").is_file()


@pytest.mark.slow
def test_the_program_saves_on_sigterm_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", "2", str(FILES / "train.py")]
    command += ["--checkpoints", str(tmp_path / "c"), "--epochs"]
    with subprocess.Popen([*command, "1000"], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            while "epoch" not in (line := first.stdout.readline()):
                assert line, "it ended before its first epoch"
            first.terminate()
            rest = first.communicate(timeout=120)[0]
        finally:
            first.kill()
    assert first.returncode == 75, rest
    last = max(map(int, re.findall(r"epoch (\d+)", line + rest)))
    done = subprocess.run(
        [*command, str(last + 1)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    assert re.findall(r"epoch (\d+)", done.stdout) == [str(last + 1)], done.stdout


@pytest.mark.slow
def test_the_program_goes_on_from_its_last_epoch_if_a_worker_is_killed(tmp_path: Path) -> None:
    # A worker that kills itself in an epoch, once, as the kernel does where memory is short.
    program = tmp_path / "train.py"
    text = (FILES / "train.py").read_text(encoding="utf-8")
    killed = """value = handler.run(step, batch)
            if (epoch, handler.total_run_calls % batches, os.environ.get("JAXTRIBUTE_RESTART")) == (4, 9, "0"):
                os.kill(os.getpid(), 9 if strategy.cluster_resolver.task_id == 1 else 0)"""
    assert text.count("value = handler.run(step, batch)") == 1
    program.write_text("import os\n" + text.replace("value = handler.run(step, batch)", killed))
    command = [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", "2", "--max-restarts", "1", str(program)]
    command += ["--checkpoints", str(tmp_path / "c"), "--epochs", "6"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
    told = list(map(int, re.findall(r"epoch (\d+)", done.stdout)))
    # The save of the fourth epoch may still be under way in the fifth; that of the third one is not.
    assert told in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 4, 5, 6]), done.stdout
    assert "was killed by SIGKILL" in done.stdout
