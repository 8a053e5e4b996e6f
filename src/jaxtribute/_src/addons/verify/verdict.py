"""`Verdict`: what came of the verification of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.comparing import Difference
from jaxtribute._src.addons.verify.culprit import Culprit
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
      unverified: what could not be verified, in words.
      varying: names of what depends on the number of replicas in a step that is given no batch, and may have to.
      outputs: how many variables and results were compared.
      pending: results that differ on each replica, and look like the state of the next call.
      untaken: conditions of which not all branches could be run.
      estimates: lines that draw, of a key of each replica, numbers of which one device has one set for the whole batch.
      still: True if nothing that is trained has changed.
      unread: the line that differentiates a loss that reads nothing that is trained, if nothing has changed.
      blank: what is trained, and is no number (NaN) after the step on one device: all replicas agree on that.
      seconds: how long it took.
      uneven: True if the program has batches that its replicas share unevenly, not counting those without a row.
      idle: True if it has batches that leave replicas without a row.
      unsure: True if it differs where replicas have no rows, and nothing tells why.
      asynchronous: True for a function of a coordinator, whose workers have one replica each: what differs on several
        replicas does no harm there.
      in_fit: True if the step is one of Keras's `fit`, which reduces losses, gradients and metrics by rules of its own.
    """

    name: str
    findings: list[Finding] = field(default_factory=list)
    tried: list[Arrangement] = field(default_factory=list)
    refused: list[tuple[Arrangement, str]] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    varying: list[str] = field(default_factory=list)
    outputs: int = 0
    pending: list[str] = field(default_factory=list)
    untaken: list[Place] = field(default_factory=list)
    estimates: list[Place] = field(default_factory=list)
    still: bool = False
    unread: Place | None = None
    blank: list[str] = field(default_factory=list)
    seconds: float = 0.0
    uneven: bool = False
    idle: bool = False
    unsure: bool = False
    asynchronous: bool = False
    in_fit: bool = False

    @property
    def right(self) -> bool:
        """True if nothing was found that concerns the program's own batches and replicas."""
        return self.asynchronous or not any(one.concerns(self.uneven, self.idle) for one in self.findings)

    @property
    def compared(self) -> bool:
        """True if the step was compared with one device, and what differs is told from what has to."""
        return bool(self.tried) and (self.asynchronous or not self.varying)

    @property
    def complete(self) -> bool:
        """True if the step was compared, and nothing hides what it trains, or what the program's batches do."""
        return self.compared and not self.pending and not self.hidden

    @property
    def hidden(self) -> bool:
        """True if what was compared does not tell what the program trains."""
        return self.still or bool(self.blank) or (self.unsure and self.idle)

    def __str__(self) -> str:
        from jaxtribute._src.addons.verify.report import text  # which imports this module

        return text(self)
