"""The helper that runs Python in a process of its own ends every process, and shows what it printed."""

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from processes import ProcessFailedError, free_ports, run_python


@pytest.mark.slow
def test_the_output_is_stdout_and_stderr() -> None:
    output = run_python("""
        import sys
        print("out", *sys.argv[1:])
        print("err", file=sys.stderr)
    """, "one", "two")  # fmt: skip
    assert sorted(output.splitlines()) == ["err", "out one two"]


@pytest.mark.slow
def test_a_script_may_be_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('from a file')")
    assert run_python(script) == "from a file\n"


@pytest.mark.slow
def test_devices_and_environment_reach_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "not for the child")
    code = "import os; print(*(os.environ.get(n) for n in ('JAXTRIBUTE_CPU_DEVICES', 'MINE', 'XLA_FLAGS')))"
    assert run_python(code, devices=3, env={"MINE": "1"}).split() == ["3", "1", "None"]


@pytest.mark.slow
def test_another_exit_status_fails_and_shows_the_output() -> None:
    with pytest.raises(ProcessFailedError, match=r"(?s)ended with 1, not 0.*the cause"):
        run_python("raise SystemExit('the cause')")
    assert "the cause" in run_python("raise SystemExit('the cause')", status=1)


@pytest.mark.slow
def test_a_warning_is_an_error() -> None:
    with pytest.raises(ProcessFailedError, match="UserWarning: beware"):
        run_python("import warnings; warnings.warn('beware')")


@pytest.mark.slow
def test_a_process_that_hangs_is_killed_and_shows_its_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, communicate = tmp_path / "stuck", subprocess.Popen[str].communicate

    def until_stuck(process: Any, timeout: float | None = None) -> Any:
        """The timeout comes once the process has begun to hang, however long it took to start."""
        end = time.monotonic() + 30
        while timeout is not None and time.monotonic() < end:
            if stuck.exists():
                raise subprocess.TimeoutExpired(process.args, timeout)
            time.sleep(0.01)
        return communicate(process, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", until_stuck)
    code = """
        import pathlib, sys, time
        def stuck():
            print("begun", flush=True)
            pathlib.Path(sys.argv[1]).touch()
            time.sleep(600)
        stuck()
    """
    with pytest.raises(ProcessFailedError, match=r"(?s)killed after 1 s.*begun.*in stuck"):
        run_python(code, str(stuck), timeout=1)


def test_a_free_port_is_given_to_nobody_else() -> None:
    port = free_ports(1)[0]
    with socket.create_server(("127.0.0.1", port)):
        other = free_ports(1)[0]
    assert port != other
    assert len(set(free_ports(3))) == 3
    with socket.create_server(("127.0.0.1", 0)) as given:
        assert max(port, other) < given.getsockname()[1]


@pytest.mark.slow
def test_a_process_that_is_left_behind_is_killed() -> None:
    # The grandchild holds no pipe of ours, so only its process group tells of it.
    code = """
        import subprocess, sys
        null = subprocess.DEVNULL
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=null, stderr=null)
        print(child.pid, flush=True)
        import os
        os._exit(0)
    """
    with pytest.raises(ProcessFailedError, match="left processes behind") as caught:
        run_python(code)
    pid = int(str(caught.value).split()[-1])
    end = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        os.sched_yield()
