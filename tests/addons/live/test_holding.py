"""Two jobs never record into one folder at a time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.live.files import JOB
from jaxtribute._src.addons.live.job import JobRecorder
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.core.checkpoint import owner
from processes import run_python

HOLDER = """
import sys, time
from pathlib import Path
from jaxtribute._src.addons.live.job import JobRecorder
recorder = JobRecorder(Path(sys.argv[1]), ("python", "train.py"))
print("there", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.Popen[bytes]:
    """The launcher of another job that records there, which the test must end."""
    monkeypatch.setattr(owner, "_GRACE_S", 0.1)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    return process


@pytest.mark.slow
def test_a_second_job_is_refused_and_told_who_records_there(
    tmp_path: Path, other_job: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text("")
    try:
        assert main(["launch", "--run", str(tmp_path / "run"), str(program)]) == 2
        error = capsys.readouterr().err
        assert f"process {other_job.pid} on " in error
        assert ", since 20" in error
        assert "HINT: name another folder" in error
        # A program without the launcher as well.
        with pytest.raises(jd.errors.ConfigError, match=rf"process {other_job.pid} on .*, since 20.*HINT"):
            jd.config.record_run(tmp_path / "run")
        assert len((tmp_path / "run" / JOB).read_text().splitlines()) == 1
    finally:
        other_job.kill()
        other_job.communicate()
    # Killed, it holds the folder no longer: a job that is started again there goes on.
    assert main(["launch", "--run", str(tmp_path / "run"), str(program)]) == 0
    assert Run(tmp_path / "run").state()["status"] == "done"


@pytest.mark.slow
def test_a_program_without_the_launcher_holds_the_folder_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "_GRACE_S", 0.1)
    code = """
    import sys
    from pathlib import Path
    import jaxtribute as jd
    from jaxtribute._src.addons.live.job import JobRecorder
    from jaxtribute._src.core.checkpoint import owner
    jd.config.record_run(sys.argv[1])
    print((Path(sys.argv[1]) / ".job.jsonl.owner").is_file())
    """
    assert "True" in run_python(code, str(tmp_path))
    assert not (tmp_path / ".job.jsonl.owner").exists()
    JobRecorder(tmp_path, ("train.py",)).close(0)


def test_a_later_job_may_use_the_folder(tmp_path: Path) -> None:
    for _ in range(2):
        JobRecorder(tmp_path, ("train.py",)).close(0)
        assert [path.name for path in tmp_path.iterdir()] == [JOB]
    kinds = [json.loads(line)["k"] for line in (tmp_path / JOB).read_text().splitlines()]
    assert kinds == ["job", "over"] * 2
