"""`Step`: one step of a program that runs, with what came of each of its calls that was looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxtribute import Mirrored, PerReplica, ReduceOp, Variable
from jaxtribute._src.addons.verify.batches import drawn_rows
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.replaying import replayed
from jaxtribute._src.addons.verify.sources import Place
from jaxtribute._src.addons.verify.verdict import Verdict
from jaxtribute._src.addons.verify.verifying import Verification
from jaxtribute.extending import Nests
from jaxtribute.typing import Function as Callee

CALLS = 2, 8, 32, 128
"""The calls of a step that are looked at again, with the state and the batch that they have, as long as time allows."""
_LATER_S = 10.0
"""Seconds for these, of one step."""
_OF_FIT = "jaxtribute._src.addons.keras."
"""Beginning of the names of the modules whose functions are the steps of Keras's `fit`."""


@dataclass(slots=True)
class Call:
    """A call that is about to run.

    Attributes:
      args: its arguments.
      kwargs: those by name.
      strategies: the strategies that it has run on.
      variables: the variables of its programs.
      drawn: by the id of an iterator what the call has drawn of it.
      recent: what was drawn of any dataset lately: such arrays are batches.
    """

    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    strategies: dict[Any, None] = field(default_factory=dict)
    variables: dict[Variable, None] = field(default_factory=dict)
    drawn: dict[int, list[Any]] = field(default_factory=dict)
    recent: list[Any] = field(default_factory=list)


class Step:
    """A step: the outermost `jd.function`, a `strategy.run` outside of any, or what a coordinator schedules.

    Args:
      name: its name.
      call: the Python function.
      strategies: those that it runs on.

    Attributes:
      verdicts: what came of its calls.
      calls: number of calls.
      results: by the id of a result of the last call: it, and where it stands there.
      verification: that of the first call; None if it could not be verified.
    """

    asynchronous = False

    def __init__(self, name: str, call: Callee, strategies: Sequence[Any]) -> None:
        self.name, self._call, self._strategies = name, call, strategies
        self._variables: dict[Variable, None] = {}
        self._seconds = 0.0
        self._in_fit = str(getattr(call, "__module__", "")).startswith(_OF_FIT)
        self.verdicts: list[Verdict] = []
        self.calls = 1
        self.results: dict[int, tuple[Any, str]] = {}
        self.verification: Verification | None = None

    def first(self, call: Call) -> Verdict | None:
        """Verifies the first call; None if it turns out to be no step."""
        begun = time.perf_counter()
        self._variables = call.variables
        try:
            if len(self._strategies) != 1:
                raise CannotVerify("it runs on several strategies" if self._strategies else "it runs on no replicas")
            if self._strategies[0].extended.mesh.peers is not None:
                raise CannotVerify("it runs on several workers. HINT: run the program in one process")
            verdict = self._of_first(call)
        except CannotVerify as reason:
            verdict = Verdict(self.name, notes=[str(reason)])
        except Exception as error:  # noqa: BLE001 (the program goes on, whatever its function meets here)
            verdict = Verdict(self.name, notes=[f"{type(error).__name__}: {error}"])
        if verdict is not None:
            verdict.asynchronous, verdict.in_fit = self.asynchronous, self._in_fit
            verdict.seconds = time.perf_counter() - begun
            self.verdicts.append(verdict)
        return verdict

    def later(self, call: Call) -> Verdict | None:
        """Judges what a call is given of the results of the one before; verifies it as well if its turn has come.

        Returns:
          What is new; None if nothing is.
        """
        self.calls += 1
        due = self.calls in CALLS and self._seconds < _LATER_S
        if self.verification is None or any(one.wrong for one in self.verdicts) or not (due or self.calls == 2):
            return None
        begun = time.perf_counter()
        try:
            verdict = self._of_later(call, self.verification, due=due)
        except Exception:  # noqa: BLE001 (the first call's verdict stands)
            return None
        finally:
            seconds = time.perf_counter() - begun
            self._seconds += seconds
        if verdict is None:
            return None
        known = {one.culprit.mistake for verdict in self.verdicts for one in verdict.findings}
        verdict.findings = [one for one in verdict.findings if one.culprit.mistake not in known]
        if not verdict.findings:
            return None
        verdict.name, verdict.seconds = f"{self.name}, call {self.calls}", seconds
        verdict.in_fit = self._in_fit
        self.verdicts.append(verdict)
        return verdict

    def reduced(self, path: str, op: ReduceOp, axis: Any, place: Place) -> Verdict | None:
        """Judges a reduction, outside of the step, of a result; see `Verification.reduced`.

        Returns:
          What came of it; None if it could not be judged, or if all that differs was told with the step.
        """
        if self.verification is None:
            return None
        earlier = [one for verdict in self.verdicts for one in verdict.findings]
        verdict = self.verification.reduced(path, op, axis, place, earlier)
        if verdict is not None and not verdict.tried:
            return None
        # Of a step whose results are values of each replica nothing else is compared.
        self.verdicts[0].outputs += 1
        if verdict is None:
            return None
        self.verdicts.append(verdict)
        return verdict

    def note(self, result: Any) -> None:
        """Notes the results of a call."""
        self.results = {
            id(leaf): (leaf, jax.tree_util.keystr(path))
            for path, leaf in jax.tree_util.tree_leaves_with_path(result, is_leaf=Nests.is_whole)
            if isinstance(leaf, PerReplica | Mirrored | jax.Array)
        }

    def _of_first(self, call: Call) -> Verdict | None:
        self.verification = verification = self.verified(call)
        return verification.verdict()

    def _of_later(self, call: Call, first: Verification, *, due: bool) -> Verdict | None:
        leaves = Nests.flatten((tuple(call.args), call.kwargs))[0]
        # Numbers of Python and their like are objects that many have in common; arrays are not.
        fed = {self.results[id(leaf)][1]: place for place, leaf in enumerate(leaves) if id(leaf) in self.results}
        verdict = first.carried(fed) if fed and not first.fed else None
        for known in self.verdicts if verdict is not None else ():
            known.pending = [name for name in known.pending if name.removeprefix("the result") not in fed]
        if due and (verdict is None or not verdict.wrong):
            verdict = self.verified(call, first).verdict(brief=True)
        return verdict

    def verified(
        self, call: Call, first: Verification | None = None, around: Callable[[Callee], Callee] | None = None
    ) -> Verification:
        """A call, ready to be run on any replicas, with what it draws as arguments.

        Args:
          call: the call.
          first: the verification of an earlier one.
          around: makes of the function the one that is run.
        """
        function, args, kwargs = replayed(self._call, call.args, call.kwargs, call.drawn)
        function = function if around is None else around(function)
        strategy = self._strategies[0]
        drawn = drawn_rows(call.recent)
        verification = Verification(self.name, function, args, kwargs, strategy, self._variables, drawn, first)
        # The steps of `fit` that fill batches up are given the number of rows that count, too.
        verification.padded = self._in_fit and len(args) > 1
        return verification
