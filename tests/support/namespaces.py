"""Two machines in one: network namespaces that a virtual cable joins. It takes the rights of root."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO

TIMEOUT_S = 10


class NoRightsError(Exception):
    """This process may not make network namespaces; the message says why."""


@dataclass(frozen=True)
class Machine:
    """A network namespace.

    Attributes:
        name: its name, and that of its end of the cable.
        address: its IP address; nothing else reaches it.
    """

    name: str
    address: str

    @property
    def within(self) -> list[str]:
        """The start of a command line that runs in the namespace."""
        return ["ip", "netns", "exec", self.name]

    def on_own_disk(self, folder: str) -> list[str]:
        """The same, where `folder`, which exists, is one that no other process sees, and empty."""
        return [*self.within, "unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]

    def start(
        self, arguments: list[str], env: dict[str, str], output: IO[str], own_disk: str = ""
    ) -> "subprocess.Popen[str]":
        """Starts Python in the namespace; what it prints, on stderr too, goes to `output`.

        Args:
            arguments: its command line.
            env: environment variables to set.
            output: an open file.
            own_disk: a folder that is to be its own, as for `on_own_disk`; empty for none.
        """
        within = self.on_own_disk(own_disk) if own_disk else self.within
        return subprocess.Popen(
            [*within, sys.executable, "-X", "faulthandler", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | env,
            text=True,
            start_new_session=True,
        )

    def unplug(self) -> None:
        """Takes the cable out: packets are lost, and nobody is told."""
        _ip("-n", self.name, "link", "set", self.name, "down")

    def plug_in(self) -> None:
        """Puts the cable back."""
        _ip("-n", self.name, "link", "set", self.name, "up")

    def limit(self, rate: str) -> None:
        """Sends no faster than `rate`, in the words of `tc`, such as "1gbit"."""
        # Bursts of several of the largest packets that the kernel hands to the cable in one piece: with one, the two
        # directions got in each other's way.
        shaping = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        _run("tc", "-n", self.name, "qdisc", "add", "dev", self.name, "root", *shaping)

    def sent_bytes(self) -> int:
        """Bytes that the machine has sent over the cable, headers included."""
        shown = _run("ip", "-n", self.name, "-s", "-j", "link", "show", self.name)
        return json.loads(shown)[0]["stats64"]["tx"]["bytes"]


@contextmanager
def two_machines() -> Generator[tuple[Machine, Machine]]:
    """Two machines that reach each other, and nothing else.

    Raises:
        NoRightsError: this process may not make them.
    """
    if not sys.platform.startswith("linux") or shutil.which("ip") is None:
        raise NoRightsError("there is no `ip` command (iproute2) here")
    number = os.getpid()
    first = Machine(f"jda{number}", f"10.213.{number % 256}.1")
    second = Machine(f"jdb{number}", f"10.213.{number % 256}.2")
    with ExitStack() as made:
        for machine in (first, second):
            _ip("netns", "add", machine.name)
            made.callback(_ip, "netns", "del", machine.name)  # and its cable
        _ip("-n", first.name, "link", "add", first.name, "type", "veth", "peer", second.name, "netns", second.name)
        for machine in (first, second):
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.name)
            _ip("-n", machine.name, "link", "set", machine.name, "up")
            _ip("-n", machine.name, "link", "set", "lo", "up")
        yield first, second


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise NoRightsError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
