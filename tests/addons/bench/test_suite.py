"""All measurements, on two logical devices, as data and as tables."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import jaxtribute as jd
from jaxtribute._src.addons.bench import rates
from jaxtribute._src.addons.bench.collective_rate import KINDS, CollectiveRate
from jaxtribute._src.addons.bench.rates import CheckpointRate, InputRate, StepRate
from jaxtribute.bench import Report, run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    return run(strategy, quick=True, rounds=1, directory=tmp_path_factory.mktemp("bench"))


def shown(what: Any) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_everything_is_measured(report: Report) -> None:
    assert report.where == "MirroredStrategy: 2 x cpu in 1 process(es)"
    assert [(one.kind, one.nbytes) for one in report.collectives] == [(k, n) for k in KINDS for n in (1024, 262144)]
    assert all(one.seconds > 0 and one.bare > 0 and one.rate > 0 for one in report.collectives)
    assert [one.variables for one in report.step] == [1, 10]
    assert all(one.seconds > 0 and one.bare > 0 for one in report.step)
    (read,) = report.input
    assert (read.batch, read.examples) == (64, 256)
    assert read.rate > 0
    (checkpoint,) = report.checkpoint
    assert checkpoint.nbytes == 65536
    assert 0 < checkpoint.held <= checkpoint.saved
    assert checkpoint.restored > 0


def test_json(report: Report) -> None:
    data = json.loads(json.dumps(report.as_dict()))
    assert set(data) == {"where", "jax", "collectives", "step", "input", "checkpoint", "notes"}
    assert data["collectives"][0]["rate"] == report.collectives[0].rate
    assert data["step"][0]["overhead"] == report.step[0].overhead


def test_tables() -> None:
    made = Report(
        "here",
        [CollectiveRate("all-reduce", 4000, 4, 2e-3, 1e-3)],
        [StepRate(10, 30e-6, 20e-6)],
        [InputRate(64, 640, 0.01, None), InputRate(64, 640, 0.01, 0.005)],
        [CheckpointRate(10**6, 0.001, 0.1, 0.05)],
        ["a note"],
    )
    lines = [" ".join(line.split()) for line in shown(made).splitlines()]
    assert "all-reduce 4.0 KB 2,000.0 us 1,000.0 us 2.00 0.003 GB/s" in lines
    assert "10 30.0 us 20.0 us 10.0 us" in lines
    assert "64 64,000 0.20 GB/s -" in lines
    assert "64 64,000 0.20 GB/s 128,000" in lines
    assert "1.0 MB 1.0 ms 10.0 MB/s 20.0 MB/s" in lines
    assert lines[-1] == "a note"


def test_bandwidth_is_what_each_device_must_send() -> None:
    assert CollectiveRate("all-reduce", 400, 4, 1.0, 1.0).rate == 600
    assert CollectiveRate("all-gather", 400, 4, 1.0, 1.0).rate == 300
    assert CollectiveRate("broadcast", 400, 4, 1.0, 1.0).rate == 400


def test_one_device_has_nothing_to_exchange() -> None:
    found = run(jd.OneDeviceStrategy("CPU:0"), ["collectives"], quick=True)
    assert found.collectives == []
    assert "nothing to exchange" in found.notes[0]


def test_a_temporary_folder_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def measure(strategy: jd.Strategy, nbytes: int, directory: Path, rounds: int) -> CheckpointRate:
        assert directory.is_dir()
        folders.append(directory)
        return CheckpointRate(nbytes, 1.0, 1.0, 1.0)

    monkeypatch.setattr(rates, "measure_checkpoint", measure)
    assert len(run(jd.OneDeviceStrategy("CPU:0"), ["checkpoint"]).checkpoint) == 1
    assert not folders[0].exists()
