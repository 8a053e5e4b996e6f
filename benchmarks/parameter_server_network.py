"""Parameter servers on two machines with 1 Gbit/s between them: time and bytes of a step, against TensorFlow's.

python -m benchmarks.parameter_server_network --tensorflow /path/to/its/python [--quick] [--json FILE]

The coordinator and two workers run on one machine, the server on the other: network namespaces, see `network`. Losses
are compared before anything is timed. Bytes are those of the cable, both ways, headers included. The ratio of a row is
the library's figure divided by TensorFlow's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.support.namespaces import Machine, two_machines

from benchmarks.harness import ROOT, Peer, free_ports, inherited, median_ratio
from benchmarks.network import RATE

STEPS = {"step": 200, "pull": 60, "push": 60}
"""Steps a turn; a twentieth as many transfers of 16 MB."""


def main() -> None:
    """Measures and prints a table, or serves as a task of the library's cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensorflow", help="the interpreter of an installation of TensorFlow")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        serve_task()
        return
    pythons = {"jaxtribute": sys.executable}
    if options.tensorflow:
        pythons["TensorFlow"] = options.tensorflow
    with two_machines() as machines, ExitStack() as stack:
        for machine in machines:
            machine.limit(RATE)
        peers = {name: stack.enter_context(cluster_of(name, python, machines)) for name, python in pythons.items()}
        table = measure(peers, machines, 2 if options.quick else 7)
    print(json.dumps(table, indent=1))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


def serve_task() -> None:
    """Serves as the worker or server that TF_CONFIG tells."""
    import jaxtribute as jd

    resolver = jd.cluster_resolver.TFConfigClusterResolver()
    server = jd.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id)
    server.join()


@contextmanager
def cluster_of(name: str, python: str, machines: Sequence[Machine]) -> Generator[Peer]:
    """A library's cluster: its coordinator, which serves requests, and the tasks, which end with it."""
    first, second = machines
    ports = free_ports(4)
    places = {("chief", 0): first, ("worker", 0): first, ("worker", 1): first, ("ps", 0): second}
    cluster: dict[str, list[str]] = {}
    for ((job, _), machine), port in zip(places.items(), ports, strict=True):
        cluster.setdefault(job, []).append(f"{machine.address}:{port}")
    own = name == "jaxtribute"
    module = "benchmarks.parameter_server" if own else "benchmarks.parameter_server_tensorflow"
    with ExitStack() as stack:
        # Network namespaces share the machine's disk, and processes that see one folder talk over its sockets.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jdb", dir="/tmp"))
        env = {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": folder}
        for (job, index), machine in places.items():
            if job == "chief":
                continue
            arguments = [json.dumps(cluster), job, str(index)]
            if own:
                arguments = ["--task"]
            command = [python, "-m", __spec__.name if own else module, *arguments]
            within = machine.on_own_disk(folder) if machine is second else machine.within
            log = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                [*within, *command],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**inherited(), **env, **task_of(cluster, job, index)},
            )
            stack.callback(_end, process, log)
        arguments = ["--serve", "library"] if own else []
        peer = Peer(module, arguments, {**env, **task_of(cluster, "chief", 0)}, python, first)
        try:
            yield peer
        finally:
            with suppress(RuntimeError, BrokenPipeError):
                peer.steps("close", 0)
            peer.close()


def task_of(cluster: Mapping[str, Sequence[str]], job: str, index: int) -> dict[str, str]:
    """The environment of a task."""
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}


def _end(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Ends a task; where it has failed, shows what it told."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)
    if process.returncode > 0:
        log.seek(0)
        print(log.read()[-4000:].decode(errors="replace"), file=sys.stderr)


def measure(peers: Mapping[str, Peer], machines: Sequence[Machine], rounds: int) -> dict[str, Any]:
    """Compares losses, then measures each problem, the libraries in turn."""
    losses = {name: peer.steps("losses", 1)[1] for name, peer in peers.items()}
    first = losses["jaxtribute"]
    assert all(abs(loss - first) <= 1e-4 * abs(first) for loss in losses.values()), losses
    table: dict[str, Any] = {"losses": losses, "load": os.getloadavg()[0]}
    for problem, steps in STEPS.items():
        seconds: dict[str, list[float]] = {name: [] for name in peers}
        moved: dict[str, list[float]] = {name: [] for name in peers}
        # A turn of transfers pulls and pushes by turns, and times one of the two: its bytes are those of both.
        calls = steps if problem == "step" else steps // 20
        for turn in range(rounds + 1):
            for name, peer in peers.items():
                before = sum(machine.sent_bytes() for machine in machines)
                taken = peer.steps(problem, steps)[0]
                after = sum(machine.sent_bytes() for machine in machines)
                if turn:  # the first one warms up
                    seconds[name].append(taken)
                    moved[name].append((after - before) / calls)
        table[problem] = {
            name: {
                "ms": round(statistics.median(seconds[name]) * 1e3, 3),
                "ratio of time": round(median_ratio(seconds["jaxtribute"], seconds[name]), 3),
                "bytes": round(statistics.median(moved[name])),
                "ratio of bytes": round(median_ratio(moved["jaxtribute"], moved[name]), 3),
            }
            for name in peers
        }
    return table


if __name__ == "__main__":
    main()
