"""`jd.experimental.Automatic`: from a file, from a search, and from what a search has left."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import jaxtribute as jd
from fitting.scripts import write
from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.fitting import asking, automatic, report
from jaxtribute._src.addons.fitting.asking import Fit
from jaxtribute._src.addons.fitting.automatic import kept_at, topology_of
from jaxtribute._src.addons.fitting.candidates import MIRRORED, SHARDED, Candidate, Outcome
from jaxtribute._src.addons.launcher.compilation_cache import default_directory
from jaxtribute.errors import ArgumentError, ConfigError


def saved(folder: Path, outcome: Outcome) -> Path:
    path = folder / "choice.json"
    path.write_text(json.dumps(outcome.as_dict()))
    return path


def test_a_choice_is_applied(tmp_path: Path) -> None:
    candidate = Candidate(SHARDED, 64, per_replica=2)
    strategy: Any = jd.experimental.Automatic(saved(tmp_path, Outcome(candidate, layout={"^w$": [None, "model"]})))
    assert type(strategy) is jd.FullyShardedStrategy
    assert strategy.num_replicas_in_sync == len(jax.devices()) // 2
    layouts: Any = strategy.extended.layouts
    assert layouts["^w$"] == (None, "model")
    own: Any = jd.experimental.Automatic(saved(tmp_path, Outcome(candidate)), layout={"w": ("model",)})
    assert own.extended.layouts["w"] == ("model",)


def test_a_choice_for_other_devices_is_told(tmp_path: Path) -> None:
    here = f"cpu:{len(jax.devices())}"
    jd.experimental.Automatic(saved(tmp_path, Outcome(Candidate(MIRRORED, 64), topology=here)))
    with pytest.warns(UserWarning, match=rf"chosen for v5e:4x4, and this is {here}.*HINT: .*--topology {here} --save"):
        jd.experimental.Automatic(saved(tmp_path, Outcome(Candidate(MIRRORED, 64), topology="v5e:4x4")))


def test_a_budget_is_set_for_all_losses(tmp_path: Path) -> None:
    from jaxtribute._src.core.execution import budgets

    try:
        jd.experimental.Automatic(saved(tmp_path, Outcome(Candidate(MIRRORED, 64, memory=1 << 20))))
        assert budgets.asked_for(None) == 1 << 20
    finally:
        jd.config.set_memory_budget(None)


def test_what_cannot_be_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"holds no choice: .* HINT"):
        jd.experimental.Automatic(tmp_path / "missing.json")
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(ArgumentError, match=r"is no choice: .* HINT"):
        jd.experimental.Automatic(tmp_path / "other.json")
    with pytest.raises(ArgumentError, match="budget is 'auto'"):
        jd.experimental.Automatic(budget="auto")
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(ConfigError, match="one of several"):
        jd.experimental.Automatic()


def device(platform: str, kind: str, *coords: int) -> Any:
    return SimpleNamespace(platform=platform, device_kind=kind, coords=coords)


def test_devices_by_the_names_that_plan_has() -> None:
    assert topology_of([device("cpu", "cpu")] * 4) == "cpu:4"
    flat = [device("tpu", "TPU v5 lite", x, y, 0) for x in range(2, 4) for y in range(4)]
    assert topology_of(flat) == "v5e:2x4"
    assert (
        topology_of([device("tpu", "TPU v5", x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]) == "v5p:2x2x2"
    )
    assert topology_of([device("gpu", "NVIDIA H100 80GB HBM3")] * 8) == "h100:1x8"
    hosts: list[Any] = [
        SimpleNamespace(platform="gpu", device_kind="NVIDIA H100", process_index=host) for host in (0, 1)
    ]
    assert topology_of([device for device in hosts for _ in range(4)]) == "h100:2x4"
    with pytest.raises(ArgumentError, match="nothing is known of devices of the kind 'Quantum'"):
        topology_of([device("gpu", "Quantum")])


@pytest.mark.slow
def test_a_script_searches_once_and_is_quick_from_then_on(tmp_path: Path) -> None:
    script = write(tmp_path, "jd.experimental.Automatic(seconds=0)")
    environment = os.environ | {"JAXTRIBUTE_CPU_DEVICES": "2", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    runs = [
        subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240, check=True
        )
        for _ in range(2)
    ]
    assert "trained by" in runs[0].stdout
    assert runs[0].stdout == runs[1].stdout
    assert ["looking for a way to train" in run.stderr for run in runs] == [True, False]
    assert len(list((tmp_path / "cache" / "jaxtribute" / "programs" / "choices").iterdir())) == 1


def test_the_command_prints_the_best_and_the_lines_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    waits, own = {"all-gather among 2": 5e-4}, {"layout": None}
    found = [
        Outcome(Candidate(SHARDED, 64, 2), 4, "", 3 << 20, 0, 2e-3, 1.5e-3, waits, own=own),
        Outcome(Candidate(MIRRORED, 64), 2, "does not fit: by 3 GiB"),
        Outcome(Candidate(MIRRORED, 64, 4), 2, "ValueError: no data"),
    ]

    def answered(_: str, given: list[str], devices: int, **__: Any) -> dict[str, Any]:
        asked.append(json.loads(given[0]) | {"devices": devices})
        whole = {"topology": "cpu:2", "memory": 4 << 20, "analytic": "no compiler", "batch": 64, "compiled": 3}
        return whole | {"seconds": 1.0, "ended": False, "found": [one.as_dict() for one in found]}

    monkeypatch.setattr(asking, "run_module", answered)
    choice, script = tmp_path / "choice.json", str(write(tmp_path))
    options = ["--fit", "--topology", "cpu:2", "--budget", "1KiB", "--most-batch", "256", "--save", str(choice)]
    assert main(["plan", *options, script]) == 0
    printed = capsys.readouterr().out
    assert asked[0]["budget"] == 1024
    assert (asked[0]["most_batch"], asked[0]["devices"]) == (256, 2)
    assert "predicted, not run" in printed
    assert "3.1 MB (75%)" in printed
    assert "computing 75%, all-gather among 2 25%" in printed
    assert "strategy = jd.FullyShardedStrategy(devices_per_replica=2, layout=...)" in printed
    assert f'jd.experimental.Automatic("{choice}", layout=...)' in printed
    assert "Do not fit: mirrored.\nCannot be: mirrored, 4 devices each: ValueError: no data" in printed
    assert type(jd.experimental.Automatic(choice)) is jd.FullyShardedStrategy
    del found[0]
    assert main(["plan", "--fit", "--topology", "cpu:2", script]) == 1
    assert "none of what was tried fits cpu:2" in capsys.readouterr().err
    assert main(["plan", "--fit", script]) == 2
    assert "without --topology" in capsys.readouterr().err


def test_a_choice_is_kept_for_this_program_on_these_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    other = write(tmp_path / "elsewhere")
    kept = partial(kept_at, arguments=(), topology="cpu:2", budget=None)
    found = {
        kept(script),
        kept(other),
        kept(script, arguments=("1",)),
        kept(script, budget=1),
        kept(script, topology="cpu:4"),
    }
    monkeypatch.setitem(sys.modules, "beside", SimpleNamespace(__file__=str(tmp_path / "beside.py")))
    found.add(kept(script))
    (tmp_path / "beside.py").write_text("LAYERS = 30\n")
    found.add(kept(script))
    monkeypatch.setattr(automatic, "version", lambda name: "1" if name == "libtpu" else "0")
    found.add(kept(script))
    assert len(found) == 8
    bucket = SimpleNamespace(config=SimpleNamespace(jax_compilation_cache_dir="gs://bucket/programs"))
    monkeypatch.setattr(automatic, "jax", bucket)
    assert kept(script).is_relative_to(default_directory())


def test_what_is_kept_and_cannot_be_read_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{")
    monkeypatch.setattr(automatic, "kept_at", lambda *_: kept)
    best = Outcome(Candidate(MIRRORED, 64))
    monkeypatch.setattr(automatic, "fit", lambda *_, **__: Fit({}, [best]))
    assert automatic._chosen(write(tmp_path), (), "cpu:2", None, 1.0) == best  # pyright: ignore[reportPrivateUsage]
    assert Outcome.read(json.loads(kept.read_text())) == best


def test_a_device_has_what_it_says_and_not_what_its_name_promises() -> None:
    small: Any = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 30 << 30})
    silent: Any = SimpleNamespace(memory_stats=lambda: None)
    assert automatic.memory_of([small, silent], None) == 30 << 30
    assert automatic.memory_of([small], 20 << 30) == 20 << 30
    assert automatic.memory_of([silent], None) is None


def test_a_module_that_was_run_by_its_name_is_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    main = SimpleNamespace(__file__="train.py", __spec__=SimpleNamespace(name="project.train"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(ConfigError, match=r"python -m project.train runs a module. HINT"):
        jd.experimental.Automatic()


def test_what_automatic_cannot_apply_is_printed_beside_it() -> None:
    one = Outcome(Candidate(MIRRORED, 128, per_replica=2, accumulate=2), own={"layout": None})
    assert report.lines_text(one, 64, "c.json").splitlines()[-4:] == [
        "or",
        '    strategy = jd.experimental.Automatic("c.json", layout=...)',
        "    optimizer = jd.Optimizer(..., accumulate_steps=2)  # each call with 64 examples",
        "    # a batch of 128",
    ]
    answer = {"compiled": 1, "seconds": 1.0, "analytic": "no compiler", "topology": "cpu:2", "ended": False}
    assert "makers" not in report.end_text(answer, [one])


def test_a_saved_step_is_no_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step.json").write_text("{}")
    assert main(["plan", "--fit", "--topology", "cpu:2", str(tmp_path / "step.json")]) == 2
    assert "HINT: give the script" in capsys.readouterr().err
