"""`Verdict`: what came of the verification of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtribute._src.addons.verify.arrangements import Arrangement, shorts
from jaxtribute._src.addons.verify.comparing import Difference
from jaxtribute._src.addons.verify.culprit import Culprit
from jaxtribute._src.addons.verify.doubts import WRONG, doubts
from jaxtribute._src.addons.verify.sources import Place


@dataclass(slots=True, eq=False)
class Finding:
    """A mistake.

    Attributes:
      culprit: where it is, as far as it is known, and what to write instead.
      differences: what it makes differ, in the first arrangement that shows it.
      arrangement: that arrangement.
      failing: all arrangements that differ.
      right: those that do not.
    """

    culprit: Culprit
    differences: list[Difference]
    arrangement: Arrangement
    failing: list[Arrangement] = field(default_factory=list)
    right: list[Arrangement] = field(default_factory=list)

    @property
    def conditional(self) -> bool:
        """True if batches that the replicas share evenly are right."""
        return all(one.kind != "divides" for one in self.failing)

    def concerns(self, uneven: bool, idle: bool) -> bool:
        """True if it changes what a program does.

        Args:
          uneven: the program has batches that its replicas share unevenly.
          idle: it has batches that leave replicas empty.
        """
        return not self.conditional or uneven or (idle and any(one.idle and one.alike for one in self.failing))


@dataclass(slots=True, eq=False)
class Verdict:
    """The result of the verification of one step.

    Attributes:
      name: the step's function.
      findings: its mistakes.
      tried: the arrangements that were compared.
      refused: the arrangements in which the step raises, with what.
      notes: what else could not be verified, in words; no mistake is likely there.
      varying: names of what depends on the number of replicas in a step that is given no batch, and may have to.
      outputs: how many variables and results were compared.
      results: how many there are.
      pending: results that differ on each replica, and look like the state of the next call.
      untaken: conditions, on which all replicas agree, of which not all branches could be run.
      parted: the same of conditions that are made of what each replica has of its own.
      missing: what is written on one device alone, or on replicas alone, in words.
      stored: numbers of replicas that are stored where they cannot be others for one device, in words.
      estimates: lines that draw, of a key of each replica, numbers of which one device has one set for the whole batch.
      still: True if nothing that is trained has changed.
      unread: the line that differentiates a loss that reads nothing that is trained, if nothing has changed.
      blank: what is trained, and is no number (NaN) after the step on one device: all replicas agree on that.
      seconds: how long it took.
      uneven: True if the program has batches that its replicas share unevenly, not counting those without a row.
      idle: True if it has batches that leave replicas without a row.
      unsure: what differs where replicas have no rows, for no reason that is known, in words.
      asynchronous: True for a function of a coordinator, whose workers have one replica each: what differs on several
        replicas does no harm there.
      in_fit: True if the step is one of Keras's `fit`, which reduces losses, gradients and metrics by rules of its own.
    """

    name: str
    findings: list[Finding] = field(default_factory=list)
    tried: list[Arrangement] = field(default_factory=list)
    refused: list[tuple[Arrangement, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    varying: list[str] = field(default_factory=list)
    outputs: int = 0
    results: int = 0
    pending: list[str] = field(default_factory=list)
    untaken: list[Place] = field(default_factory=list)
    parted: list[Place] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    estimates: list[Place] = field(default_factory=list)
    still: bool = False
    unread: Place | None = None
    blank: list[str] = field(default_factory=list)
    seconds: float = 0.0
    uneven: bool = False
    idle: bool = False
    unsure: str | None = None
    asynchronous: bool = False
    in_fit: bool = False

    @property
    def wrong(self) -> bool:
        """True if something was found that concerns the program's own batches and replicas."""
        return not self.asynchronous and any(one.concerns(self.uneven, self.idle) for one in self.findings)

    @property
    def right(self) -> bool:
        """True if nothing was found that concerns the program's own batches, and nothing is left that may be wrong."""
        return not self.wrong and not any(True for _ in doubts(self))

    @property
    def status(self) -> int:
        """The command's exit status for this step."""
        return WRONG if self.wrong else min((status for status, _ in doubts(self)), default=0)

    @property
    def compared(self) -> bool:
        """True if the step was compared with one device, and what differs is told from what has to."""
        if not self.tried or self.asynchronous:
            return bool(self.tried)
        return not self.varying and bool(self.outputs or self.findings or not self.results)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Sentences on what could not be verified: first what may be a mistake, then what is only noted."""
        return (*(what for _, what in doubts(self)), *self.noted)

    @property
    def noted(self) -> list[str]:
        """Sentences on what could not be verified and is likely to be no mistake, or on why nothing was compared."""
        notes = [one for one in self.notes if not self.idle or one != self.unsure]
        reasons: dict[str, list[Arrangement]] = {}
        for arrangement, reason in self.refused:
            reasons.setdefault(reason, []).append(arrangement)
        if len(reasons) == 1 and not self.tried:
            notes += reasons
        else:
            notes += [f"{reason} (rows on the replicas: {shorts(where)})" for reason, where in reasons.items()]
        return [*notes, *(f"a branch that is not taken: {branch}: {branch.text}" for branch in self.untaken)]

    def __str__(self) -> str:
        from jaxtribute._src.addons.verify.report import text  # which imports this module

        return text(self)
