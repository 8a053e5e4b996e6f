"""A family ends together."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from jaxtribute._src.addons.launcher.family import Family
from jaxtribute._src.addons.testing.leaks import is_alive
from processes import await_end

pytestmark = pytest.mark.slow


def test_members_and_what_they_start_are_killed() -> None:
    with Family() as family:
        member = family.start(["sh", "-c", "sleep 600 & echo $!; wait"], dict(os.environ), subprocess.PIPE)
        assert member.stdout is not None
        grandchild = int(member.stdout.readline())
        pids = family.pids
        assert len(pids) == 2
        assert not family.wait(0.01)
        assert is_alive(grandchild)
    member.stdout.close()
    await_end(*pids, grandchild)
    assert member.returncode == -signal.SIGKILL
    family.close()


def test_members_that_end_are_waited_for() -> None:
    with Family() as family:
        family.start(["true"], {}, subprocess.DEVNULL)
        stopped = family.start(["sleep", "60"], {}, subprocess.DEVNULL)
        family.signal(signal.SIGTERM)
        assert family.wait(120)
        assert stopped.returncode == -signal.SIGTERM


def test_the_family_ends_with_its_parent_even_when_that_is_killed() -> None:
    code = """
        import subprocess
        from jaxtribute._src.addons.launcher.family import Family
        family = Family()
        null = subprocess.DEVNULL
        family.start(["sh", "-c", "trap '' TERM HUP INT; sleep 600 & wait"], {"PATH": "/bin:/usr/bin"}, null)
        print(*family.pids, flush=True)
        input()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(map(is_alive, pids))
        # A signal to the whole group does not end the guardian before its time.
        parent.kill()
    await_end(*pids)
