"""The search for ways of training that fit and are fast, of which few can be compiled."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from jaxtribute._src.addons.fitting.candidates import MIRRORED, SHARDED, TOO_LARGE, Candidate, Outcome, ranked

MOST = 25
"""Programs that are compiled at most."""
_FULL = 0.92
"""The part of a device's memory that arrays may take; gaps between them and the program take the rest."""
_WORSE = 1.3
"""Larger groups are no longer tried if the last ones took so many times as long as the best."""
_FIRST = 0.6
"""The part of the tries after which no larger groups are tried, once something fits: the rest is to improve it."""
_WAITING = 0.1
"""The share of an update that is spent on collectives, from which it is tried to have them less often."""

Judge = Callable[[Candidate, int], Outcome]
"""Compiles a candidate, with at most so many programs."""


class FitSearch:
    """Finds ways of training: whole or sharded variables, groups of devices, less kept, more calls, larger batches.

    Args:
      judge: compiles a candidate.
      devices: how many there are.
      memory: bytes that each has.
      batch: examples of an update.
      most_batch: how many it may become.
      until: the time, by `time.monotonic`, after which nothing more is begun.
      most: the most programs that are compiled.
      optimizer: whether the arguments of the script's optimizer may be others.

    Attributes:
      found: the outcomes, in the order in which they were compiled.
    """

    def __init__(
        self,
        judge: Judge,
        devices: int,
        memory: float,
        batch: int,
        *,
        most_batch: int = 0,
        until: float = math.inf,
        most: int = MOST,
        optimizer: bool = True,
    ) -> None:
        self._judge, self._devices, self._memory, self._batch = judge, devices, memory, batch
        self._most_batch, self._until, self._most = most_batch, until, most
        self._optimizer = optimizer
        self.found: dict[Candidate, Outcome] = {}

    @property
    def compiled(self) -> int:
        """The number of programs that were compiled."""
        return sum(one.compiled for one in self.found.values())

    def ranked(self) -> list[Outcome]:
        """Those that fit, the fastest first; of equal ones the one that needs less memory."""
        return ranked(self.found.values())

    def best(self) -> list[Outcome]:
        """Searches; returns those that fit, the fastest first."""
        for group in self._groups():
            # Where all devices are one replica, there is nothing to share among replicas.
            kinds = (MIRRORED, SHARDED) if group < self._devices or group == 1 else (MIRRORED,)
            last = [self._made_to_fit(Candidate(kind, self._batch, group)) for kind in kinds]
            fitting = self.ranked()
            times = [one.each for one in last if one is not None and one.fits]
            # As groups grow, devices exchange more for each example. One that has to be large is known by its memory.
            if group > 1 and fitting and times and min(times) > _WORSE * fitting[0].each:
                break
            if fitting and self.compiled > _FIRST * self._most:
                break
        self._improve()
        for candidate in self._with_more_examples():
            self._try(candidate)
        return self.ranked()

    def _improve(self) -> None:
        """Changes the best one as long as that makes it faster."""
        best = None
        while self.ranked() and best != self.ranked()[0]:
            best = self.ranked()[0]
            for candidate in self._changes(best):
                self._try(candidate)
                if self.ranked()[0] != best:
                    break

    def _groups(self) -> Iterator[int]:
        """Numbers of devices of a replica, the smallest first."""
        group = 1
        while group <= self._devices:
            if self._devices % group == 0:
                yield group
            group *= 2

    def _try(self, candidate: Candidate) -> Outcome | None:
        """Compiles a candidate; None if there are too few examples for it, or no try or time is left."""
        # All of a group's devices update what they have of a variable, and shards are updated where they lie.
        if candidate.strategy != MIRRORED or candidate.per_replica > 1:
            candidate = replace(candidate, whole_slots=False)
        known = self.found.get(candidate)
        if known is not None:
            return known
        left = self._most - self.compiled
        # Until one of a group fits it may need a layout, from one program at least.
        new = candidate.per_replica > 1 and all(
            one.candidate.per_replica != candidate.per_replica for one in self.ranked()
        )
        if (
            not candidate.rows(self._devices)
            or self._devices % candidate.per_replica
            or ((candidate.accumulate > 1 or candidate.whole_slots) and not self._optimizer)
        ):
            return None
        # However little time there is, there is an answer.
        if left <= new or (self.found and time.monotonic() > self._until):
            return None
        self.found[candidate] = self._judge(candidate, left)
        return self.found[candidate]

    def _made_to_fit(self, candidate: Candidate) -> Outcome | None:
        """Compiles a candidate, and if it does not fit, variants that keep less until one does."""
        whole = self.found.get(Candidate(MIRRORED, self._batch))
        if candidate.strategy == MIRRORED and whole is not None and whole.held > candidate.per_replica * self._memory:
            return None  # the state alone, divided among all devices of a replica, is too large
        outcome = self._try(candidate)
        # Beside slices it could seem best to have everything in slices.
        if outcome is not None and outcome.sliced:
            self._try(replace(candidate, whole_slots=True))
        if outcome is None or not outcome.refusal.startswith(TOO_LARGE):
            return outcome
        for variant in self._smaller(outcome):
            tried = self._try(variant)
            if tried is not None and tried.fits:
                return tried
        return outcome

    def _smaller(self, outcome: Outcome) -> Iterator[Candidate]:
        """Variants that need less memory, those that cost least time first."""
        one = outcome.candidate
        room = int((_FULL * self._memory - outcome.held) * one.per_replica)
        if room <= 0:
            return
        # What does not fit with all of its activations may lack little or much.
        budgets = [int(room * share) for share in (0.9, 0.4)] if outcome.held else []
        yield from (replace(one, memory=budget) for budget in budgets)
        for calls in (4, 16):
            yield replace(one, accumulate=calls)
            if budgets:
                yield replace(one, accumulate=calls, memory=budgets[-1])

    def _changes(self, best: Outcome) -> Iterator[Candidate]:
        """Ways of training that differ little from one that fits, and may be faster."""
        one, left = best.candidate, _FULL * self._memory - best.memory
        if best.sliced:
            yield replace(one, whole_slots=True)
        if one.memory is not None:
            if left > 0.1 * self._memory:
                yield replace(one, memory=int(one.memory + 0.8 * left * one.per_replica))
            for calls in (2, 4, 8):
                yield replace(one, memory=None, accumulate=calls * one.accumulate)
        if one.accumulate > 1:
            yield replace(one, accumulate=one.accumulate // 2)
        # A batch that may grow waits less often, too, and needs no sums for that.
        if sum(best.waits.values()) > _WAITING * best.seconds and self._most_batch <= self._batch:
            yield replace(one, accumulate=2 * one.accumulate)
        yield replace(one, strategy=SHARDED if one.strategy == MIRRORED else MIRRORED)
        if one.per_replica < self._devices:
            yield replace(one, per_replica=2 * one.per_replica)
        if one.per_replica > 1:
            yield replace(one, per_replica=one.per_replica // 2)

    def _with_more_examples(self) -> Iterator[Candidate]:
        """The two best with larger batches, as long as those fit."""
        for best in self.ranked()[:2]:
            one = best.candidate
            while 2 * one.batch <= self._most_batch:
                one = replace(one, batch=2 * one.batch)
                yield one
                if one not in self.found or not self.found[one].fits:
                    break
