"""Figures of a training in each place that they can go to."""

import csv
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.tracking import choosing, sending, summary
from jaxtribute._src.addons.tracking.plain_files import JsonLines, Table
from processes import run_python


@pytest.fixture(autouse=True)
def quiet_services(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing asks the network, and what the libraries set in the environment is taken back."""
    before = dict(os.environ)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}.items():
        os.environ[name] = value
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def write_all(directory: Path, name: str) -> None:
    """Two steps of a training, with everything that a tracker takes."""
    with summary.Writer(directory, trackers=[name]) as writer:
        writer.configure({"rate": 0.1}, layers=3)
        writer.write(loss=jnp.float32(2.5), hits=3)
        writer.write({"loss": 1.25})
        writer.histogram("weights", jnp.arange(60.0).reshape(6, 10))
        writer.text("sample", "a <b> text")


def test_csv(tmp_path: Path) -> None:
    write_all(tmp_path, "csv")
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    found = [(row["step"], row["kind"], row["name"], row["value"]) for row in rows]
    assert found[:5] == [
        ("", "configuration", "rate", "0.1"),
        ("", "configuration", "layers", "3"),
        ("0", "scalar", "loss", "2.5"),
        ("0", "scalar", "hits", "3.0"),
        ("1", "scalar", "loss", "1.25"),
    ]
    assert json.loads(found[5][3])["counts"] == [2] * 30
    assert found[6] == ("1", "text", "sample", "a <b> text")


def test_json_lines(tmp_path: Path) -> None:
    write_all(tmp_path, "jsonl")
    lines: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {"configuration": {"rate": 0.1, "layers": 3}}
    assert [line["scalars"] for line in lines if "scalars" in line] == [{"loss": 2.5, "hits": 3.0}, {"loss": 1.25}]
    assert [line["step"] for line in lines[1:]] == [0, 1, 1, 1]
    assert lines[3]["edges"][-1] == 59
    assert lines[4]["text"] == "a <b> text"


def test_tensorboard(tmp_path: Path) -> None:
    write_all(tmp_path, "tensorboard")
    (file,) = tmp_path.glob("events.out.tfevents.*")
    data = file.read_bytes()
    for name in (b"configuration", b"loss", b"hits", b"weights", b"sample", b"a <b> text"):
        assert name in data


@pytest.mark.parametrize(("kind", "name"), [(Table, "metrics.csv"), (JsonLines, "metrics.jsonl")])
def test_what_is_written_is_in_the_file_before_a_flush(
    kind: type[Table | JsonLines], name: str, tmp_path: Path
) -> None:
    tracker = kind(tmp_path)
    tracker.scalars({"loss": 0.5}, 3, 1.0)
    assert "loss" in (tmp_path / name).read_text()
    tracker.close()


@pytest.mark.parametrize("name", ["csv", "jsonl", "tensorboard"])
def test_what_is_not_finite_or_no_letter_is_no_failure(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with summary.Writer(tmp_path, trackers=[name]) as writer:
        writer.text("sample", "half a letter \ud800, \x00, \u202e<b>")
        writer.histogram("weights", np.array([1, 2, np.nan, np.inf], np.float32))
    assert "failed" not in caplog.text
    if name == "csv":
        printed = (tmp_path / "metrics.csv").read_text()
        assert "half a letter \\ud800" in printed
        assert '""not_finite"": 2' in printed


@pytest.mark.slow
def test_mlflow_in_a_local_store(tmp_path: Path) -> None:
    write_all(tmp_path, "mlflow")
    mlflow: Any = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"rate": "0.1", "layers": "3"}
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")] == [
        (0, 2.5),
        (1, 1.25),
    ]
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "texts" / "sample" / "1.txt").read_text() == "a <b> text"
    assert sum(json.loads((artifacts / "histograms" / "weights" / "1.json").read_text())["counts"]) == 60


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path: Path) -> None:
    run_python(
        f"""
        import jax.numpy as jnp
        from jaxtribute.summary import Writer

        with Writer({str(tmp_path)!r}, trackers=["wandb"]) as writer:
            writer.configure(layers=3)
            writer.write(loss=jnp.float32(2.5), hits=3)
            writer.histogram("weights", jnp.arange(60.0).reshape(6, 10))
            writer.text("sample", "a text")
        """
    )
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    data = file.read_bytes()
    for name in (b"loss", b"hits", b"weights", b"layers"):
        assert name in data


def test_names_of_the_launcher_are_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choosing.TRACK, "csv, jsonl")
    with summary.Writer(tmp_path, trackers=["csv"]) as writer:
        writer.write(loss=1.0)
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.csv", "metrics.jsonl"}


def test_wrong_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(jd.errors.ArgumentError, match=r"no tracker 'neptune'. HINT: name one of tensorboard, wandb"):
        summary.Writer(tmp_path, trackers=["neptune"])
    wrong: Any = 3
    with pytest.raises(jd.errors.ArgumentTypeError, match="3 of type int is no tracker"):
        summary.Writer(tmp_path, trackers=[wrong])
    monkeypatch.setattr(choosing, "find_spec", lambda name: None)
    with pytest.raises(jd.errors.MissingLibraryError, match=r"HINT: pip install -e '\.\[mlflow\]'"):
        summary.Writer(tmp_path, trackers=["mlflow"])


class Sink:
    """A tracker that keeps the steps that it takes."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = False

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        self.steps.append(step)

    def histogram(self, name: str, values: Any, step: int, time_s: float) -> None: ...
    def text(self, name: str, text: str, step: int, time_s: float) -> None: ...
    def configure(self, settings: Mapping[str, Any]) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None:
        self.closed = True


class Broken(Sink):
    """A tracker whose every call raises."""

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        self.steps.append(step)
        raise ConnectionError("no route to the server")


class Hanging(Sink):
    """A tracker whose server does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = threading.Event()

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        self.answer.wait(60)


def test_a_tracker_of_ones_own(tmp_path: Path) -> None:
    sink = Sink()
    with summary.Writer(tmp_path, trackers=[sink]) as writer:
        for _ in range(5):
            writer.write(loss=1.0)
    assert sink.steps == [0, 1, 2, 3, 4]
    assert sink.closed


def test_a_tracker_that_raises_ends_no_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken, sink = Broken(), Sink()
    with caplog.at_level(logging.WARNING), summary.Writer(tmp_path, trackers=[broken, sink]) as writer:
        for _ in range(100):
            writer.write(loss=1.0)
    assert sink.steps == list(range(100))
    assert len(broken.steps) == 20  # and then it was asked no more
    assert "Broken failed: ConnectionError: no route to the server. HINT: the training goes on" in caplog.text
    assert len(caplog.records) == 2


def test_a_tracker_that_hangs_stalls_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "_MOST_WAITING", 10)
    hanging = Hanging()
    monkeypatch.setattr(choosing, "Sender", lambda name, make: sending.Sender(name, make, patience_s=0.2))
    with caplog.at_level(logging.WARNING):
        with summary.Writer(tmp_path, trackers=[hanging]) as writer:
            for _ in range(1000):
                writer.write(loss=1.0)
            writer.flush()
        assert "Hanging takes figures too slowly" in caplog.text
        assert "has not ended within 0.2 s" in caplog.text
    hanging.answer.set()  # the thread, which was left behind, comes to its end


def test_a_variable_is_written_as_it_was(tmp_path: Path) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        variable = jd.Variable(jnp.zeros(4), name="v")
        count = jd.Variable(0.0, name="count")

    @jd.function
    def step() -> jax.Array:
        count.assign_add(1.0)
        return variable.assign_add(jnp.ones(4))  # pyright: ignore[reportReturnType]

    with summary.Writer(tmp_path, trackers=["jsonl"]) as writer:
        for _ in range(3):
            step()
            writer.write(count=count)
            writer.histogram("v", variable)
    edges: list[float] = []
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        found = json.loads(line)
        if "edges" in found:
            edges.append(np.mean([found["edges"][0], found["edges"][-1]]).item())
    assert edges == [1.0, 2.0, 3.0]
