"""The benchmarks' own parts that need no measuring: problems, environments, tables, orders, and one comparison."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import environments, pages, predicted, problems, published, registry, scaling  # noqa: E402
from benchmarks.__main__ import plot, show  # noqa: E402
from benchmarks.comparison import Comparison, Contender, Row, compare  # noqa: E402
from benchmarks.harness import Peer  # noqa: E402
from benchmarks.peers.jax_steps import OPS  # noqa: E402
from benchmarks.scaling import order  # noqa: E402

from jaxtribute._src.addons.planning.calibration import Comparison as Calibrated  # noqa: E402
from jaxtribute._src.addons.planning.probes import Parts  # noqa: E402


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["4-4", "64-256-256-10", "conv", "transformer", "small-5"])
def test_the_loss_of_a_batch_is_the_sum_of_its_parts(name: str) -> None:
    problem = problems.make(name, 8)
    assert problem.batch == 8
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        whole = problem.loss(OPS, problem.params, *problem.data)
        parts = [problem.loss(OPS, problem.params, *problem.part(index, 4)) for index in range(4)]
    np.testing.assert_allclose(whole, sum(parts), rtol=1e-5)
    again = problems.make(name, 8)
    jax.tree.map(np.testing.assert_array_equal, (problem.params, problem.data), (again.params, again.data))


def test_every_suite_is_described_and_has_its_module() -> None:
    assert {"dispatch", "digits", "workers", "allreduce", "scaling", "run_steps", "faults", "ledger"} <= set(
        registry.names()
    )
    for name in registry.names():
        assert registry.described(name)


@pytest.mark.slow
def test_an_environment_in_the_given_place_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environments.names() == ["tensorflow", "torch"]
    monkeypatch.setenv(environments.PLACE, str(tmp_path))
    (tmp_path / "tensorflow" / "bin").mkdir(parents=True)
    python = tmp_path / "tensorflow" / "bin" / "python"
    python.write_text("#!/bin/sh\nexit 0\n")  # has all that it is asked for
    python.chmod(0o755)
    assert environments.python_of("tensorflow") == str(python)


def test_orders_of_growth() -> None:
    sizes = [1, 10, 100, 1000, 10_000]
    assert order(sizes, [5.0] * 5) == 0
    assert order(sizes, [5 + 0.1 * size for size in sizes]) == pytest.approx(1, abs=0.1)
    assert order(sizes, [5 + 0.1 * size**2 for size in sizes]) == pytest.approx(2, abs=0.1)


@pytest.mark.slow
def test_the_plan_of_many_devices_is_a_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = [{"devices": n, "step": 0.1 + n / 1e3, "collectives": n / 1e3, "efficiency": 0.5} for n in (1, 10, 100)]

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[2:5] == ["jaxtribute.cli", "plan", "--json"]
        return subprocess.CompletedProcess(command, 0, f"noise\n{json.dumps({'curve': curve})}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    found = scaling.as_planned("conv", 4)
    assert [(row.name, row.median) for row in found.rows] == [("1", 0.101), ("10", 0.11), ("100", 0.2)]
    assert found.notes[-1].startswith("100 devices: 50% of a step is exchange, 50%")


def test_calibrations_are_told_by_their_medians() -> None:
    several = [Calibrated(2, 8, Parts(0.0, predicted, 0.0, 0.0), 2.0) for predicted in (1.0, 2.4, 9.0)]
    row = predicted.row("conv", several)
    assert (row["devices"], row["predicted"], row["measured"]) == (2, 2.4, 2.0)
    assert row["error"] == pytest.approx(0.2)
    assert row["errors"] == pytest.approx([-0.5, 0.2, 3.5])
    assert row["met"]
    assert not predicted.row("conv", several[2:])["met"]


def test_published_steps_are_judged_with_a_constant_for_each_chip() -> None:
    figures = {"a": ("v6e", 1.0, 2.0), "b": ("v6e", 2.0, 4.0), "c": ("v6e", 4.0, 18.0), "d": ("v5p", 8.0, 24.0)}
    rows: dict[str, dict[str, Any]] = {}
    for name, (chip, predicted_s, published_s) in figures.items():
        rows[name] = {"chip": chip, "predicted": predicted_s, "published": published_s}
    rows["e"] = {"chip": "v6e", "published": 3.0, "error": "it did not fit"}
    found = published.judged(rows)
    assert found == {"rank_correlation": pytest.approx(1.0), "constants": {"v6e": 3.0, "v5p": 3.0}}
    assert [rows[name]["error"] for name in "abcd"] == pytest.approx([0.5, 0.5, -1 / 3, 0.0])
    assert [rows[name]["without"] for name in "abc"] == pytest.approx([0.5, 0.5, -5 / 9])
    assert rows["d"]["without"] is None
    assert published.rank_correlation([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("text", "status", "found"), [("}\n\n", None, True), ("half a", 0, False), (None, 3, False), ("half a", None, None)]
)
def test_a_compilation_is_awaited_until_its_schedule_is_whole(
    text: str | None, status: int | None, found: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "DEADLINE_S", 0.1)
    if text is not None:
        (tmp_path / "module_0001.jit_step.x.after_optimizations.txt").write_text(text)
    assert published.until_scheduled(lambda: status, tmp_path, "a step") is found


def test_a_published_step_is_shown_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, row = next(iter(published.ROWS.items()))
    found = {
        "predicted": 2 * row.seconds,
        "exposed": 0.1,
        "memory": 1e9,
        "published_share": 0.4,
        "predicted_share": 0.2,
    }
    monkeypatch.setattr(published, "asked", lambda _: dict(found))
    monkeypatch.setattr("sys.argv", ["published", "--row", name])
    published.main()
    printed = capsys.readouterr().out
    assert name in printed
    assert "+0%" in printed  # of a chip's only step
    assert "0.5" in printed  # its constant


def test_shapes_of_published_steps_have_the_parameters_that_their_names_tell() -> None:
    for shape, billions in ((published.SMALL, 8.03), (published.LARGE, 70.6), (published.MISTRAL, 7.24)):
        assert sum(math.prod(size) for size, _ in shape.weights.values()) == pytest.approx(billions * 1e9, rel=2e-3)
    # TFLOP/s of a chip as these recipes tell them, from before MaxText counted causal attention by half.
    told = [413.433, 419.485, 407.225, 419.701, 412.319, 417.397, 431.981, 443.385, 422.091, 453.500, 462.297, 402.274]
    for row, each in zip(published.ROWS.values(), told, strict=False):
        shape, tokens = row.shape, row.way.examples * row.shape.length
        skipped = 6 * shape.layers * shape.heads * shape.each * shape.length * tokens
        assert published.operations(shape, row.way) + skipped == pytest.approx(each * 1e12 * row.seconds, rel=0.01)


@pytest.mark.slow
def test_tables_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("jaxtribute", 1e-5, 9e-6, 2e-5), Row("other", 2e-3, 1e-3, 3e-3, ratio=0.005, bar=1.0)]
    show([Comparison("problem", rows, ["a note"])])
    shown = capsys.readouterr().out
    assert "10.0 us" in shown
    assert "2 ms" in shown
    assert "yes" in shown
    assert "problem: a note" in shown
    pytest.importorskip("matplotlib")
    grows = [Row("1", 1e-5, 9e-6, 2e-5), Row("10", 2e-3, 1e-3, 3e-3)]
    plot("suite", [Comparison("problem", rows), Comparison("growing", grows)], tmp_path)
    assert (tmp_path / "suite.png").stat().st_size > 1000


def test_the_page_of_figures_shows_the_saved_results() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    assert pages.filled(page) == page, "HINT: python -m benchmarks tables --page docs/performance.md"
    assert page.count("<!-- results: ") > 5
    assert "| 64-256-256-10, batch 256, 1 device | jaxtribute |" in page


def test_a_page_keeps_what_stands_around_its_tables() -> None:
    page = "before\n\n<!-- results: packing -->\n\nold\n\n<!-- end -->\n\nafter\n"
    found = pages.filled(page)
    assert found.startswith("before\n\n<!-- results: packing -->\n\n| problem |")
    assert found.endswith("|\n\n<!-- end -->\n\nafter\n")
    assert "old" not in found


@pytest.mark.slow
def test_contenders_must_have_equal_losses() -> None:
    arguments = ["--problem", "4-4", "--batch", "4", "--devices", "1"]
    names = [Contender("jaxtribute"), Contender("named-sharding", bar=1.0)]
    found = compare("tiny", arguments, names, steps=4, rounds=2)
    assert [row.name for row in found.rows] == ["jaxtribute", "named-sharding"]
    assert found.rows[0].ratio is None
    assert found.rows[1].ratio is not None
    assert found.rows[1].loss == pytest.approx(found.rows[0].loss, rel=1e-5)
    json.dumps(found.as_json())


@pytest.mark.slow
def test_a_peer_that_fails_tells_why() -> None:
    with pytest.raises(RuntimeError, match="invalid literal for int"):
        Peer("benchmarks.peers.jax_steps", ["--problem", "nonsense", "--contender", "jaxtribute"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jaxtribute-all-reduce", "psum"])
def test_a_peer_of_sums_serves_the_one_that_was_asked_for(name: str) -> None:
    arguments = ["--problem", "vector-4", "--batch", "2", "--devices", "2", "--contender", name]
    peer = Peer("benchmarks.peers.jax_steps", arguments)
    try:
        assert peer.names == [name]
        seconds, total = peer.steps(name, 2)
    finally:
        peer.close()
    assert seconds > 0
    assert total == pytest.approx(problems.make("vector-4", 2).data[0][:, 0].sum(), rel=1e-5)


@pytest.mark.slow
def test_an_unknown_suite_is_an_error_that_lists_all() -> None:
    command = [sys.executable, "-m", "benchmarks", "run", "--suite", "nonsense"]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert "no suite nonsense; there are dispatch, digits" in done.stderr
