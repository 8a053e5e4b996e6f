"""Bad functions on real processes; prints as JSON what came of them.

python tests/addons/parameter_servers/ray_program.py
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

import jaxtribute as jd
from jaxtribute.errors import ClusterError, DeadlineError

ODD = os.fsdecode(b"caf\xe9.txt")


class Deadly:
    """Ends the process that looks at it, but for that of the coordinator."""

    def __reduce__(self) -> Any:
        return _built, (os.getpid(),)


def _built(pid: int) -> Any:
    raise SystemExit(f"from {pid}")


def exits() -> None:
    os._exit(3)


def stuck() -> None:
    while True:
        time.sleep(0.1)


def error_of(call: Any, kind: type[Exception]) -> str:
    """The text of the error that a call ends with, and its notes."""
    try:
        return f"no error but {call()!r}"
    except kind as error:
        return "\n".join([str(error), *getattr(error, "__notes__", ())])


def listening() -> list[str]:
    """The addresses that this process and its children listen at."""
    pids = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    found = psutil.net_connections("inet")
    return sorted({c.laddr[0] for c in found if c.laddr and c.status == psutil.CONN_LISTEN and c.pid in pids})


def main() -> None:
    """Runs it."""
    result: dict[str, Any] = {}
    with jd.ParameterServerStrategy({"ps": 1, "worker": 1}) as strategy:
        coordinator = jd.coordinator.ClusterCoordinator(strategy, max_attempts=2)
        assert strategy.cluster is not None
        result["folder"] = str(Path(strategy.cluster.endpoints[0].path).parent)
        with strategy.scope():
            count = jd.Variable(0, name="count")

        def step() -> None:
            count.assign_add(1)

        steps = jd.function(step)
        result["odd"] = coordinator.schedule(lambda: ODD).fetch() == ODD
        result["lower"] = coordinator.schedule(os.nice, args=(0,)).fetch() - os.nice(0)
        result["set"] = sorted(coordinator.schedule(lambda: {1, 2}).fetch())
        result["unpicklable"] = error_of(coordinator.schedule(Deadly).fetch, ClusterError)
        error_of(coordinator.join, ClusterError)
        result["listening"] = listening()
        coordinator.schedule(steps).fetch()
        result["exits"] = error_of(coordinator.schedule(exits).fetch, ClusterError)
        error_of(coordinator.join, ClusterError)
        result["stuck"] = error_of(coordinator.schedule(stuck, timeout_s=2).fetch, DeadlineError)
        error_of(coordinator.join, DeadlineError)
        coordinator.schedule(steps)
        coordinator.join()
        result["count"] = int(count)
    result["left"] = Path(result["folder"]).exists()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
