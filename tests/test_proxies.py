"""Connections within a job, where the environment names a proxy that carries none."""

import os
import subprocess
import sys

import pytest

from jaxtribute._src.proxies import pass_by_proxies

READ_FIRST = "no_grpc_proxy"
PROGRAM = "import jaxtribute as jd; print(jd.MultiWorkerMirroredStrategy().num_replicas_in_sync, 'replicas')"
DEAD = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "", "no_grpc_proxy": ""}


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({}, []),
        ({"no_proxy": "a.example, .b"}, ["a.example", ".b"]),
        ({"no_proxy": "a.example", "no_grpc_proxy": "c"}, ["c"]),
    ],
)
def test_hosts_of_a_job_are_added_to_those_that_are_told(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str], kept: list[str]
) -> None:
    for name in ("no_proxy", READ_FIRST):
        monkeypatch.setenv(name, told.get(name, ""))
    for _ in range(2):
        pass_by_proxies(["10.0.0.1:1", "node7:2", "[fe80::1]:3", "10.0.0.1:4"])
    hosts = ["localhost", "127.0.0.1", "::1", "10.0.0.1", "node7", "fe80::1"]
    assert os.environ[READ_FIRST].split(",") == kept + hosts


@pytest.mark.slow
def test_a_dead_proxy_stops_no_job() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jaxtribute.cli", "launch", "--workers", "2", sys.executable, "-c", PROGRAM],
        env=os.environ | DEAD,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 replicas") == 2, done.stdout + done.stderr
    assert "proxy" not in done.stdout + done.stderr
