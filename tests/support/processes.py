"""Python in a process of its own: for what must happen before JAX starts, and for what may hang."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

from jaxtribute._src.addons.testing.leaks import is_alive

# What decides about devices and their pool is the test's to set, not inherited from the test process.
_NOT_INHERITED = (
    "JAXTRIBUTE_CPU_DEVICES",
    "JAXTRIBUTE_PJRT_NPROC",
    "JAXTRIBUTE_TUNE_ALLOCATOR",
    "JAX_NUM_CPU_DEVICES",
    "PJRT_NPROC",
    "XLA_FLAGS",
)


class ProcessFailedError(AssertionError):
    """A Python process hung, left processes behind, or ended with another exit status than the test expects."""


def run_python(
    code: str | Path,
    *arguments: str,
    devices: int | None = None,
    timeout: float = 600,
    env: Mapping[str, str] | None = None,
    status: int = 0,
) -> str:
    """Runs a script in a fresh Python process and returns what it printed, stdout and stderr together.

    Args:
        code: Source text, which may be indented, or the path of a script.
        arguments: The script's arguments.
        devices: The number of logical CPU devices, through `JAXTRIBUTE_CPU_DEVICES`; `None` sets none.
        timeout: Seconds. A process that outlives them is made to print the stacks of its threads, and killed.
        env: Environment variables to set.
        status: The exit status that the test expects.

    Raises:
        ProcessFailedError: The process hung, left processes behind or ended otherwise; with all it printed.
    """
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    if devices is not None:
        variables["JAXTRIBUTE_CPU_DEVICES"] = str(devices)
    source = [str(code)] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-W", "error", *source, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=variables | dict(env or {}),
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            output = _kill_with_stacks(process)
            raise ProcessFailedError(f"the process was killed after {timeout} s; it printed:\n{output}") from None
        except BaseException:
            _signal_group(process, signal.SIGKILL)
            raise
    if _signal_group(process, signal.SIGKILL):
        raise ProcessFailedError(f"the process ended and left processes behind; it printed:\n{output}")
    if process.returncode != status:
        raise ProcessFailedError(f"the process ended with {process.returncode}, not {status}; it printed:\n{output}")
    return output


def free_ports(count: int) -> list[int]:
    """Ports for processes that take them only seconds later: the kernel gives them to nobody who asks for any port."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    # Test processes that run side by side look far from each other.
    for port in range(first_given - 1 - os.getpid() * 97 % 16384, 1024, -1):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} ports are free, not {count}")


def await_end(*pids: int, timeout: float = 120) -> None:
    """Waits until no such process runs any more.

    Raises:
        AssertionError: One still does after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < end, f"still alive: {alive}"
        time.sleep(0.01)


def _kill_with_stacks(process: "subprocess.Popen[str]") -> str:
    # faulthandler prints the stacks of all threads on SIGABRT.
    process.send_signal(signal.SIGABRT)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal_group(process, signal.SIGKILL)
    output, _ = process.communicate()
    return output


def _signal_group(process: "subprocess.Popen[str]", number: signal.Signals) -> bool:
    """Signals the process and all it started; false where nothing is left to signal."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
