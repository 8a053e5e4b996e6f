"""Faults of parameter servers: the chief goes through them, and is started again where it ended by one."""

from __future__ import annotations

import re
from collections.abc import Callable

from soak import counting
from soak.jobs import Job

SHAPE = ("--ps", "1", "--workers", str(counting.WORKERS))
PROGRAM = "counting.py"
PER_JOB = 12
FAULTS = tuple(counting.FAULTS)
_SAVE = re.compile("save-[0-9]{6}")


def disturbed(job: Job, faults: list[str], say: Callable[[str], None]) -> None:
    """Runs the chief until it has gone through all faults; its counters are exact, or an error is raised."""
    job.arguments = faults
    ends = sum(name in counting.ENDS_CHIEF for name in faults)
    for start in range(ends + 1):
        if start:
            say(f"the chief ended, {start} of {ends} times")
        job.start()
        seen: int = job.count("now: ")
        while job.running:
            job.await_(lambda seen=seen: not job.running or job.count("now: ") > seen, "the next fault comes")
            if job.count("now: ") > seen:
                seen += 1
                job.look()
                say([line for line in job.lines if "now: " in line][seen - 1].rpartition("now: ")[2].strip())
        code = job.wait()
        assert (code == 0) == (start == ends), f"exit code {code}\n{job.told()}"
        job.await_(lambda: not job.processes(), "processes end with the chief", 60)
    assert (job.folder / "result").read_text() == "well"


def problems(job: Job) -> list[str]:
    """What is left behind."""
    saves = sorted(path.name for path in (job.folder / "saves").iterdir())
    wrong = [] if len(saves) == 2 and all(map(_SAVE.fullmatch, saves)) else [f"the folder of saves holds {saves}"]
    return wrong + job.left()
