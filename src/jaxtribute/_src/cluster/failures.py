"""Messages that the workers of a cluster send each other when one of them fails."""

from __future__ import annotations

import json
import traceback
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Failure:
    """Reason why a cluster cannot go on.

    Attributes:
      rank: the worker that is the cause.
      summary: one line: what happened there.
      details: its traceback, or nothing.
      reporter: the worker that noticed.
    """

    rank: int
    summary: str
    details: str
    reporter: int

    @classmethod
    def raised(cls, rank: int, error: BaseException) -> Failure:
        """The failure of a worker whose program raised."""
        lines = traceback.format_exception(error)
        summary = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        return cls(rank, f"raised {summary}", "".join(lines), rank)

    def encode(self) -> str:
        """The failure as text."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Failure:
        """The failure that `encode` gave."""
        return cls(**json.loads(text))

    def message(self, names: tuple[str, ...]) -> str:
        """The failure, as the other workers report it."""
        text = f"{names[self.rank]} {self.summary}"
        if self.reporter != self.rank:
            text += f", as {names[self.reporter]} noticed"
        return text
