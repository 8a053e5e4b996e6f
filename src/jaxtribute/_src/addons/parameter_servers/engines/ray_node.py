"""This machine as a node of a Ray cluster: the chief's holds the cluster, a task's offers the place for that task."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtribute._src.addons.launcher.environment import LOCAL_CLUSTER
from jaxtribute._src.addons.launcher.family import Family
from jaxtribute._src.addons.messaging.transport import deadline
from jaxtribute.errors import ClusterError, DeadlineError
from jaxtribute.extending import Folder
from jaxtribute.typing import Foreign

if TYPE_CHECKING:
    from jaxtribute import ClusterSpec

AUTHENTICATION = "RAY_AUTH_MODE"
"""Ray's own variable; unless the user says otherwise, who joins a cluster must have its token."""
MANNERS = {
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_gcs_server_request_timeout_seconds": "120",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",
}
"""Ray gives a busy machine 30 s to start and a minute to be found, starts processes that no task of ours can use, and
lets tasks run with niceness 15: beside anything else that runs on the machine, a training gets a thirtieth of it."""
START_S = 300.0
_COMMAND = [sys.executable, "-m", "ray.scripts.scripts"]
_POLL_S = 0.5
_GONE_S = 5.0
_STORE_BYTES = 100 << 20


class RayNode:
    """A Ray node of this process: it ends when it is stopped.

    Args:
      arguments: what `ray start` is told besides.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (read when the node fails)
        self._folder = Folder()
        command = [*_COMMAND, "start", "--block", "--disable-usage-stats"]
        command += ["--num-cpus=1", f"--object-store-memory={_STORE_BYTES}", *arguments]
        # Any free ports: those from 10002 to 19999, which it would set aside, the tasks of a cluster could not have.
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        # A folder of its own: of nodes of one machine that start at once, two would take the same socket and one end.
        command.append(f"--temp-dir={self._folder.path}")
        if "--head" in arguments:
            command.append("--include-dashboard=false")
        environment = {**os.environ, AUTHENTICATION: os.environ.get(AUTHENTICATION, "token"), **MANNERS}
        self._family = Family()  # ends with this process, however that ends
        self._process = self._family.start(command, environment, self._output)

    @property
    def alive(self) -> bool:
        """True if it runs."""
        return self._process.poll() is None

    def output(self) -> str:
        """The end of what Ray said."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-2000:]

    def stop(self) -> None:
        """Ends it with all its processes."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._family.close()
        self._output.close()
        self._folder.close()


def start_head(address: str) -> RayNode:
    """Starts the node that holds the cluster, on the chief's address.

    Raises:
      ClusterError: somebody else has the address, or Ray could not be started; the message ends with what it said.
      DeadlineError: it does not answer.
    """
    host, port = _resolved(address)
    _check_free(address, host, port)
    make_token()
    node = RayNode(["--head", f"--node-ip-address={host}", f"--port={port}"])
    left = deadline(START_S)
    while not _answers(host, port):
        if not node.alive:
            said = node.output()
            node.stop()
            raise ClusterError(f"Ray could not be started on {address}. HINT: is the port free? Ray says: {said}")
        if not left():
            node.stop()
            raise DeadlineError(f"Ray on {address} has not answered for {START_S:.0f} s. HINT: see `ray status`.")
        time.sleep(_POLL_S)
    return node


def _check_free(address: str, host: str, port: int) -> None:
    """Checks that this process can have the chief's address, or another program would be taken for Ray."""
    if not port:
        raise ClusterError(
            f"the chief's address {address} has port 0, so that the other tasks cannot find it. HINT: name a port."
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Ray: an earlier run's may not have cooled down
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ClusterError(
                f"the chief's address {address} cannot be had: {error.strerror}. HINT: name an address of this "
                "machine, and a port that no other program has."
            ) from error


def prepare_ray() -> None:
    """Says how Ray shall start, before it is imported; what the user has said stays."""
    make_token()
    if "ray" in sys.modules:
        return  # it has read its settings
    for name, value in {AUTHENTICATION: "token", "RAY_USAGE_STATS_ENABLED": "0", **MANNERS}.items():
        os.environ.setdefault(name, value)


def make_token() -> None:
    """Makes the token of this user's Ray clusters, unless there is one; only the user can read it."""
    # A token that the user has chosen is not touched, nor is one made beside it.
    given = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    path = Path.home() / ".ray" / "auth_token"
    if given or os.environ.get(AUTHENTICATION, "token") != "token":
        return
    if not path.exists():
        command = [*_COMMAND, "get-auth-token", "--generate"]
        subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_S)
    # Whoever made it: nobody but its owner may read it.
    with contextlib.suppress(OSError):
        path.chmod(0o600)


def task_of_cluster(spec: ClusterSpec, job: str, index: int) -> Callable[[], None]:
    """Runs `jd.Server.join` for a task of a cluster with parameter servers: offers its place until the chief ends.

    The chief's strategy starts the cluster; a server that is never joined, in the chief's own process, does nothing.
    """
    if job not in ("ps", "worker"):
        return lambda: None

    def join() -> None:
        if "chief" not in spec.jobs:
            raise ClusterError(
                f"the cluster {spec} has no chief for {job} {index} to join. "
                "HINT: add the job 'chief', whose process makes the ParameterServerStrategy."
            )
        _offer(spec.task_address("chief", 0), spec.task_address(job, index), resource_of(job, index))

    return join


def _offer(chief: str, own: str, resource: str) -> None:
    host, port = _resolved(chief)
    left = deadline(START_S)
    while not _answers(host, port):
        if not left():
            raise DeadlineError(f"the chief at {chief} has not started for {START_S:.0f} s. HINT: does it run?")
        time.sleep(_POLL_S)
    node = _joined(host, port, own, resource)
    try:
        # A busy chief may miss a question: only silence for some seconds counts as its end.
        gone = deadline(_GONE_S)
        while gone():
            if not node.alive:
                raise ClusterError(f"Ray has ended on {own}. HINT: see what it says: {node.output()}")
            if _answers(host, port):
                gone = deadline(_GONE_S)
            time.sleep(_POLL_S)
    finally:
        node.stop()


def _joined(host: str, port: int, own: str, resource: str) -> RayNode:
    place = json.dumps({resource: 1})
    return RayNode([f"--address={host}:{port}", f"--node-ip-address={_resolved(own)[0]}", f"--resources={place}"])


def resource_of(role: str, index: int) -> str:
    """The Ray resource that the node of a task offers."""
    return f"jaxtribute-{role}-{index}"


def _answers(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_POLL_S):
        return True
    return False


def _resolved(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal() and int(port) < 1 << 16):
        raise ClusterError(f"the address {address!r} of the cluster names no port. HINT: write host:port, as h0:2222.")
    try:
        return socket.gethostbyname(host), int(port)
    except (OSError, ValueError) as error:  # a name that can be none is a ValueError
        raise ClusterError(
            f"the address {address!r} of the cluster is one that this machine does not know: {error}. HINT: "
            "correct the cluster spec or TF_CONFIG, or wait until the name is known."
        ) from error


def owns_cluster(resolver: Foreign) -> str | None:
    """The chief's address if this process is the chief of a cluster of several processes, which then holds Ray."""
    spec = resolver.cluster_spec() if hasattr(resolver, "cluster_spec") else None
    if spec is None or os.environ.get(LOCAL_CLUSTER) == "1":
        return None
    jobs: dict[str, Any] = spec.as_dict()
    if not jobs.get("chief") or getattr(resolver, "task_type", None) != "chief":
        return None
    return spec.task_address("chief", 0)
