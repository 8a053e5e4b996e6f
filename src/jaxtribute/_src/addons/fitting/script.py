"""Searches for the best ways to train a script, in a process of its own, which `plan --fit` starts.

The first argument is a JSON object: `topology`, `analytic` (why its own compiler is not asked), `budget` in bytes,
`batch`, `most_batch`, `seconds`, `most` and `optimizer` (whether its arguments may be others). The script and its
arguments follow. The last line of output is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from jaxtribute._src.addons.fitting.candidates import Candidate, Outcome
from jaxtribute._src.addons.fitting.places import place
from jaxtribute._src.addons.fitting.search import FitSearch
from jaxtribute._src.addons.fitting.trials import Trials
from jaxtribute._src.addons.tools.tables import seconds_text
from jaxtribute._src.addons.tools.waiting import say, telling


def main(settings: str, script: str, *arguments: str) -> None:
    """Searches, and answers on standard output."""
    asked: dict[str, Any] = json.loads(settings)
    begun = time.monotonic()
    target = place(asked["topology"], asked["budget"], asked=not asked["analytic"])
    trials = Trials(Path(script), arguments, target)
    own = trials.batch()
    batch = asked["batch"] or own
    until = begun + asked["seconds"]

    def judged(candidate: Candidate, left: int) -> Outcome:
        number, name = asked["most"] - left + 1, f"{candidate}, batch {candidate.batch:,}"
        with telling(f"compiling way {number} of at most {asked['most']}: {name}"):
            outcome = trials(candidate, left)
        time_ = outcome.refusal.partition("\n")[0] or f"{seconds_text(outcome.seconds)} an update"
        say(f"way {number} of at most {asked['most']}: {name}: {time_}")
        return outcome

    search = FitSearch(
        judged,
        len(target.devices),
        target.chip.memory,
        batch,
        most_batch=asked["most_batch"] or batch,
        until=until,
        most=asked["most"],
        optimizer=asked["optimizer"] and trials.optimizes,
    )
    search.best()
    answer = {
        "topology": target.name,
        "memory": target.chip.memory,
        "analytic": asked["analytic"],
        "batch": own,
        "compiled": search.compiled,
        "seconds": time.monotonic() - begun,
        "ended": time.monotonic() > until,
        "found": [one.as_dict() for one in search.found.values()],
    }
    # The script may have left a line without an end.
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
