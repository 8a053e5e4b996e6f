"""Faults of parameter servers: the chief goes through them; the launcher starts it again where it ended by one."""

from __future__ import annotations

import re
from collections.abc import Callable

from soak import counting
from soak.jobs import Job

SHAPE = ("--ps", "1", "--workers", str(counting.WORKERS), "--max-restarts", "20")
"""With more starts than faults that end the chief: on a busy machine Ray may not start in its own time."""
PROGRAM = "counting.py"
PER_JOB = 12
FAULTS = tuple(counting.FAULTS)
_SAVE = re.compile("save-[0-9]{6}")


def disturbed(job: Job, faults: list[str], say: Callable[[str], None]) -> None:
    """Runs the chief until it has gone through all faults; its counters are exact, or an error is raised."""
    job.arguments = faults
    job.start()
    seen = 0
    while job.running:
        job.await_(lambda seen=seen: not job.running or job.count("now: ") > seen, "the next fault comes")
        for line in [line for line in job.lines if "now: " in line][seen:]:
            seen += 1
            say(line.rpartition("now: ")[2].strip())
        job.look()
    code = job.wait()
    wrong = job.folder / "wrong"
    assert not wrong.exists(), f"{wrong.read_text()}\n{job.told()}"
    assert code == 0, f"exit code {code}\n{job.told()}"
    assert (job.folder / "result").read_text() == "well"
    ends = sum(name in counting.ENDS_CHIEF for name in faults)
    assert job.count("starts the job again") >= ends, job.told()


def problems(job: Job) -> list[str]:
    """What is left behind."""
    saves = sorted(path.name for path in (job.folder / "saves").iterdir())
    wrong = [] if len(saves) == 2 and all(map(_SAVE.fullmatch, saves)) else [f"the folder of saves holds {saves}"]
    return wrong + job.left()
