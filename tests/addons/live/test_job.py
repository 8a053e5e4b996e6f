"""Records of the launcher."""

import json
from pathlib import Path

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.launcher.attempt import Kind, Outcome
from jaxtribute._src.addons.live.files import JOB
from jaxtribute._src.addons.live.job import JobRecorder
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.core.observers import ATTEMPT


def test_a_job_that_fails_and_is_started_again(tmp_path: Path) -> None:
    def launch() -> int:
        with ATTEMPT.during(None, "0", 2, 1) as attempt:
            attempt.result = Outcome(Kind.FAILED, 1, 1, "ended with exit code 1: E: no\nmore", "Traceback\nE: no\nmore")
        with ATTEMPT.during(None, "1", 2, 1) as attempt:
            attempt.result = Outcome(Kind.DONE)
        return 0

    assert JobRecorder(tmp_path, ("python", "train.py")).run(launch) == 0
    assert ATTEMPT.observers == ()
    kinds = [json.loads(line)["k"] for line in (tmp_path / JOB).read_text().splitlines()]
    assert kinds == ["job", "attempt start", "attempt end", "attempt start", "attempt end", "over"]
    state = Run(tmp_path).state()
    assert (state["status"], state["starts"], state["command"]) == ("done", 2, "python train.py")
    (failure,) = [event for event in state["events"] if event["kind"] == "failure"]
    assert (failure["rank"], failure["text"]) == (1, "ended with exit code 1: E: no")
    assert failure["details"].endswith("E: no\nmore")


def test_a_launcher_that_raises_is_over_too(tmp_path: Path) -> None:
    def launch() -> int:
        raise jd.errors.DeadlineError("machine 0 waited")

    with pytest.raises(jd.errors.DeadlineError):
        JobRecorder(tmp_path, ("train.py",)).run(launch)
    assert json.loads((tmp_path / JOB).read_text().splitlines()[-1])["code"] is None
    assert ATTEMPT.observers == ()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(jd.errors.ConfigError, match=r"the launcher cannot record .*HINT"):
        JobRecorder(tmp_path / "file" / "run", ("train.py",))


def test_the_launcher_refuses_trackers_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "train.py"
    program.write_text("")
    assert main(["launch", "--track", "neptune", str(program)]) == 2
    assert "no tracker 'neptune'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_job_from_the_launcher_on(tmp_path: Path) -> None:
    from processes import run_python

    program = tmp_path / "train.py"
    program.write_text(
        "import jaxtribute as jd\nwith jd.summary.Writer('figures', trackers=[]) as w:\n    w.write(loss=1.0)\n"
    )
    launch = ["launch", "--run", str(tmp_path / "run"), "--track", "jsonl", "--track", "csv", str(program)]
    code = f"import os; os.chdir({str(tmp_path)!r}); from jaxtribute._src.addons.cli.main import main"
    run_python(f"{code}; raise SystemExit(main({launch}))")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"metrics.csv", "metrics.jsonl"}
    state = Run(tmp_path / "run").state()
    assert state["status"] == "done"
    assert len(state["workers"]) == 1
    assert sum(state["goodput"].values()) == pytest.approx(state["wall"], rel=0.01)


def test_secrets_of_a_command_line_are_not_recorded(tmp_path: Path) -> None:
    command = ["python", "train.py", "--db-password", "p1", "--API_KEY=p2", "--token", "--steps", "5", "-secret", "p3"]
    JobRecorder(tmp_path, command).close(0)
    text = (tmp_path / "job.jsonl").read_text(encoding="utf-8")
    assert "python train.py --db-password *** --API_KEY=*** --token --steps 5 -secret ***" in text
    assert not any(secret in text for secret in ("p1", "p2", "p3"))
