"""`Verification`: one step, run on one device and on virtual replicas, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxtribute import Mirrored, PerReplica, ReduceOp, Variable
from jaxtribute._src.addons.verify.altering import alterations
from jaxtribute._src.addons.verify.arrangements import Arrangement, arrangements, magnified, pairs, uneven
from jaxtribute._src.addons.verify.batches import batches_of, chosen_rows, is_data, whole
from jaxtribute._src.addons.verify.blame import Suspects
from jaxtribute._src.addons.verify.catalogue import CATALOGUE
from jaxtribute._src.addons.verify.choices import Changes, ways
from jaxtribute._src.addons.verify.comparing import Before, Difference, differences, missing
from jaxtribute._src.addons.verify.counts import Counts
from jaxtribute._src.addons.verify.culprit import Culprit, last_line, repeated_draw
from jaxtribute._src.addons.verify.deciding import asks_more, decided, parting
from jaxtribute._src.addons.verify.depending import own_numbers
from jaxtribute._src.addons.verify.doubts import kept_for_good
from jaxtribute._src.addons.verify.feeding import paths_of, returned
from jaxtribute._src.addons.verify.grouping import Judged, add_findings, grouped
from jaxtribute._src.addons.verify.machine import Branch, CannotVerify, Record
from jaxtribute._src.addons.verify.meeting import Draws
from jaxtribute._src.addons.verify.operations import is_float, is_key
from jaxtribute._src.addons.verify.pairing import Runs
from jaxtribute._src.addons.verify.progress import Progress
from jaxtribute._src.addons.verify.reducing import Reduction
from jaxtribute._src.addons.verify.sources import Place, raising
from jaxtribute._src.addons.verify.stage import Outcome, Stage
from jaxtribute._src.addons.verify.standing import standing_in
from jaxtribute._src.addons.verify.states import blank, is_told, is_trained, shaken
from jaxtribute._src.addons.verify.unread import unread
from jaxtribute._src.addons.verify.verdict import Finding, Verdict
from jaxtribute.extending import Context, Nests
from jaxtribute.typing import Function as Callee

_AHEAD = 8
"""Steps that one device goes ahead until all that is trained has changed: a learning rate may begin with 0."""
_BRANCHES = 4
"""Branches that are taken against their conditions."""


class Verification:
    """The step of a user, ready to be run on any replicas.

    Args:
      name: its name.
      call: the Python function.
      args: its arguments, as the program has given them; batches are values of the strategy's replicas.
      kwargs: those by name.
      strategy: the strategy.
      variables: the variables that it reads and writes, as far as they are known.
      drawn: what was drawn of datasets lately, by id the numbers of rows: where the strategy has one replica, batches
        are plain arrays.
      first: that of an earlier call; its batches tell this one's.
    """

    def __init__(
        self,
        name: str,
        call: Callee,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        strategy: Any,
        variables: Iterable[Variable],
        drawn: Mapping[int, int] | None = None,
        first: Verification | None = None,
    ) -> None:
        self._name, self._call, self._strategy = name, call, strategy
        self._variables = list(dict.fromkeys(variables))
        leaves, self._tree = Nests.flatten((tuple(args), kwargs))
        if any(hasattr(leaf, "__next__") for leaf in leaves):
            raise CannotVerify("it draws from an iterator of its own. HINT: call it with the batch")
        if first is not None and len(first._moments[0][1]) == len(leaves):
            # State that the replicas have let go apart is no batch; the first one's goes on.
            leaves = [
                leaf.values[0] if isinstance(leaf, PerReplica) and place not in first._split else leaf
                for place, leaf in enumerate(leaves)
            ]
        wholes = list(map(whole, leaves))
        self._placed = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Mirrored)]
        both = zip(leaves, wholes, strict=True)
        self._given_data = any(is_data(one) for leaf, one in both if not isinstance(leaf, Mirrored))
        self._split, self.batch = batches_of(leaves, wholes, drawn or {}, strategy)
        state = {variable: shaken(variable, number) for number, variable in enumerate(self._variables)}
        self._moments: list[tuple[dict[Variable, Any], list[Any]]] = [(state, wholes)]
        """The variables and arguments of the call, and of those after it."""
        self._paths = paths_of((tuple(args), kwargs))
        self.fed: dict[str, int] = {} if first is None else dict(first.fed)
        """By the path of a result the place where the next call was given it."""
        self.padded = False
        """True if batches are filled up, so that replicas always share them evenly."""
        self._counts = Counts(call, strategy.num_replicas_in_sync)
        self._counted = self._counts.parameters(call, args) if len(args) == len(leaves) else []
        """Places of arguments that are the number of replicas."""
        self._context = Context.current()
        self._known: dict[Arrangement, tuple[Outcome, Draws]] = {}
        self._found: dict[Arrangement, Outcome] = {}
        self._traces: dict[Any, Any] = {}
        self._changes: dict[Branch, list[Changes]] = {}
        """Changes that lead into a branch, on one device and on each replica."""

    def trial(self) -> Outcome:
        """Runs the step on one device with the program's batch."""
        return self._run(Arrangement((max(self.batch, 1),)))

    def reduced(self, path: str, op: ReduceOp, axis: Any, place: Place, earlier: Sequence[Finding]) -> Verdict | None:
        """Judges a reduction, outside of the step, of a result that is a value of each replica; None if that is told.

        Args:
          path: where in the results the value stands.
          op: the reduction.
          axis: what is reduced within each replica.
          place: the line of the reduction.
          earlier: what is wrong in the step; one that is the reason gets what differs.
        """
        verdict = Verdict(f"strategy.reduce of {self._name}{path}", outputs=1, results=1)
        runs = [(self._known[arrangement.alone][0], found) for arrangement, found in self._found.items()]
        return None if Reduction(path, op, axis, place).is_told(verdict, runs, self._kept, earlier) else verdict

    def verdict(self, *, brief: bool = False) -> Verdict:
        """Runs the step in all arrangements and compares.

        Args:
          brief: whether to run it on two replicas only, as it is called.
        """
        verdict = Verdict(self._name)
        wrong: list[tuple[Arrangement, list[Difference]]] = []
        repeated: dict[Any, Any] = {}
        for group in self._groups(verdict, brief=brief):
            if len({arrangement.kind for arrangement, _ in wrong}) > 1:
                break  # enough is known: three and four replicas show what two have shown
            refused: list[tuple[Arrangement, str]] = []
            for arrangement in group:
                if not arrangement.plain and (not verdict.tried or any(map(_is_enough, wrong))):
                    break
                try:
                    found, one = self._run(arrangement), self._known[arrangement.alone][0]
                except CannotVerify as reason:
                    refused.append((arrangement, f"cannot be followed: {reason}"))
                    break
                except Exception as error:  # noqa: BLE001  # whatever the user's function raises for such rows
                    refused.append((arrangement, raising(error)))
                    continue
                verdict.tried.append(arrangement)
                self._found[arrangement] = found
                missed = arrangement.branch is not None and not arrangement.branch.is_taken([*one.tapes, *found.tapes])
                if missed or not is_told(arrangement, one, found):
                    # Of a state that does not ask for it, or is no state of the program.
                    del self._found[verdict.tried.pop()]
                    self._leave(verdict, [arrangement.branch] if arrangement.branch is not None else [])
                    break
                verdict.notes += [*one.lost, *found.lost]
                open_, pending = [], []
                apart = list(differences(one, found, self._before(one), open_, pending))
                verdict.notes += open_
                verdict.pending += pending
                verdict.missing += missing(one, found)
                verdict.results = len(one.written) + len(one.outputs)
                verdict.outputs = verdict.results - len(open_) - len(pending) - len(missing(one, found))
                for record in found.repeated:
                    repeated.setdefault(record.place, (record, arrangement))
                if apart:
                    wrong.append((arrangement, apart))
                refused.clear()
                break
            verdict.refused += refused[-1:]
        self._conclude(verdict, wrong, repeated.values(), brief=brief)
        return verdict

    def _conclude(
        self,
        verdict: Verdict,
        wrong: list[tuple[Arrangement, list[Difference]]],
        repeated: Iterable[tuple[Record, Arrangement]],
        *,
        brief: bool,
    ) -> None:
        """Adds what has come of all arrangements together."""
        verdict.notes = list(dict.fromkeys(verdict.notes))
        verdict.pending, verdict.untaken = list(dict.fromkeys(verdict.pending)), list(dict.fromkeys(verdict.untaken))
        verdict.stored = list(map(kept_for_good, self._counts.fixed)) if verdict.tried else []
        verdict.missing, verdict.parted = list(dict.fromkeys(verdict.missing)), list(dict.fromkeys(verdict.parted))
        self._judge(wrong, verdict)
        known = {one.name for finding in verdict.findings for one in finding.differences}
        verdict.pending = [name for name in verdict.pending if name not in known]
        self._blame_input(verdict)
        for record, arrangement in repeated:
            culprit = repeated_draw(record, self._key_of(record, arrangement))
            verdict.findings.append(Finding(culprit, [], arrangement, [arrangement], []))
        if not brief and all(one.altered for finding in verdict.findings for one in finding.failing):
            # Of a condition that only other rows show its line says more than the numbers behind it.
            more = self._decided(verdict)
            if not verdict.findings or any(one.culprit.pattern.name == "decided-by-replica" for one in more):
                verdict.findings = more

    def _decided(self, verdict: Verdict) -> list[Finding]:
        """Findings of what each replica has of its own, conditions, draws or counts, though that is not seen here."""
        base = next((one for one in verdict.tried if one.kind == "divides"), None)
        if base is None or not asks_more(self._found[base]):
            return []
        one, found = self._kept(base)
        runs = Runs(one, found)
        held = [*self._moment(base.alone)[0].values(), *self._moment(base.alone)[1]]
        culprits = decided(runs, one, found, self._returned(one), held)
        told = {each.place for each in culprits}
        verdict.estimates = [line for line in dict.fromkeys(own_numbers(runs)) if found.private and line not in told]
        return [Finding(culprit, [], base, [base]) for culprit in culprits]

    def _groups(self, verdict: Verdict, *, brief: bool) -> Iterator[Sequence[Arrangement]]:
        """Gives the arrangements, as `arrangements` does: those of the call, of a later one, of other branches."""
        for group in self._any_groups(verdict, brief=brief):
            yield [one for one in group if one.kind == "divides"] if self.padded else group

    def _any_groups(self, verdict: Verdict, *, brief: bool) -> Iterator[Sequence[Arrangement]]:
        if brief:
            yield pairs(self.batch)
            yield uneven()
            return
        yield from arrangements(self.batch)
        base = next((one for one in verdict.tried if one.kind == "divides"), None)
        if base is None:
            return
        asks = any(tape.asks_finite for tape in self._found[base].tapes)
        given = [self._moments[0][1][place] for place in self._split]
        for altered in alterations(base.sizes[0], given, asks=asks):
            yield [replace(base, altered=altered)]
        progress = Progress()
        ahead = self._later(base.alone, verdict, progress)
        if progress.faint:
            yield from magnified(self.batch, ahead)
            for one, _ in self._known.values():
                if one.arrangement.factor > 1:
                    progress.add(one, self._before(one))
        verdict.still = progress.still
        if verdict.still:
            verdict.unread = unread(self._run(base.alone, frozenset()), self._moment(base.alone)[0])
        # What begins with zero, such as a momentum, shows in the call after.
        for distance in (ahead, ahead + 1) if ahead else (1,):
            yield pairs(self.batch, distance)
            yield uneven(distance)
        one, _ = self._known.get(replace(base.alone, ahead=ahead + 1), (None, None))
        verdict.blank = verdict.blank or (blank(one, self._before(one)) if one is not None else [])
        branches = self._untaken(base)
        if branches:
            one, found = self._kept(base)
            self._changes, missed = ways([*one.tapes, *found.tapes], branches)
            self._leave(verdict, [*missed, *list(self._changes)[_BRANCHES:]])
        for branch in list(self._changes)[:_BRANCHES]:
            yield [replace(base, ahead=ahead, branch=branch)]

    def _later(self, alone: Arrangement, verdict: Verdict, progress: Progress) -> int:
        """Returns the distance to the last step that changes more of what is trained; the moment after it is known."""
        best = 0
        for ahead in range(_AHEAD + 1):
            one = self._run(replace(alone, ahead=ahead))
            verdict.blank = verdict.blank or blank(one, self._before(one))
            best = ahead if progress.add(one, self._before(one)) else best
            self._go_on(one)
            if progress.complete:
                break
        return best

    def _go_on(self, one: Outcome) -> None:
        """Adds the moment after a step."""
        state, leaves = self._moments[one.arrangement.ahead]
        after = list(leaves)
        for path, place in self._returned(one).items():
            value = one.outputs[path]
            after[place] = value if is_key(value) else jnp.asarray(value, leaves[place].dtype)
        self._moments[one.arrangement.ahead + 1 :] = [({**state, **one.written}, after)]

    def _returned(self, one: Outcome) -> dict[str, int]:
        leaves = self._moments[0][1]
        both = {**returned(self._paths, leaves, self._split, one.outputs), **self.fed}
        return {
            path: place
            for path, place in both.items()
            if Nests.is_array(leaves[place]) and np.shape(one.outputs.get(path)) == np.shape(leaves[place])
        }

    def _moment(self, arrangement: Arrangement) -> tuple[dict[Variable, Any], list[Any]]:
        """The variables and arguments that a step begins with."""
        state, leaves = self._moments[arrangement.ahead]
        factor = arrangement.stretch
        if factor == 1:
            return state, leaves
        leaves = list(leaves)
        base = next(iter(self._known.values()))[0]
        for place in self._returned(base).values():
            if not is_key(leaves[place]) and is_float(leaves[place].dtype):
                leaves[place] = leaves[place] * factor
        trained = {variable: value * factor for variable, value in state.items() if is_trained(variable, value)}
        return {**state, **trained}, leaves

    def _before(self, one: Outcome) -> Before:
        state, leaves = self._moment(one.arrangement)
        results = {path: leaves[place] for path, place in self._returned(one).items()}
        return Before(state, results, self.fed)

    def _untaken(self, base: Arrangement) -> list[Branch]:
        """The branches that were not taken, of conditions that say the same everywhere."""
        tapes = [*self._known[base.alone][0].tapes, *self._found[base].tapes]
        return [
            replace(branch, index=index)
            for branch, taken in tapes[0].taken.items()
            if all(tape.taken.get(branch) == taken for tape in tapes)
            for index in range(branch.count)
            if index not in taken
        ]

    def _leave(self, verdict: Verdict, branches: Sequence[Branch]) -> None:
        """Notes branches that cannot be run, by whether the replicas may part there."""
        if branches:
            base = next(one for one in verdict.tried if one.kind == "divides")
            own = parting(*self._kept(base), branches)
            verdict.parted += [branch.place for branch in branches if branch in own]
            verdict.untaken += [branch.place for branch in branches if branch not in own]

    def carried(self, fed: dict[str, int]) -> Verdict:
        """Judges results that were seen to be the state of the next call.

        Args:
          fed: by the path of each the place where that call was given it.
        """
        self.fed = fed
        verdict = Verdict(self._name)
        wrong: list[tuple[Arrangement, list[Difference]]] = []
        for arrangement, found in self._found.items():
            if arrangement.plain and not arrangement.idle:
                one = self._known[arrangement.alone][0]
                apart = [each for each in differences(one, found, self._before(one), [], []) if each.own]
                verdict.tried.append(arrangement)
                verdict.outputs = verdict.results = len(fed)
                if apart:
                    wrong.append((arrangement, apart))
        self._judge(wrong, verdict)
        return verdict

    def _blame_input(self, verdict: Verdict) -> None:
        """Tells apart a step whose batch is no value of replicas: each of them computes all of it."""
        found = next(iter(self._found.values()), None)
        if found is None or self._split or found.shared or not found.wholes:
            return
        place = found.wholes[0]
        if verdict.findings and self._strategy.num_replicas_in_sync == 1:
            # A whole batch is right there; which of the arrays it is, nothing tells.
            verdict.findings, verdict.tried = [], []
            verdict.notes.append(
                f"{place} gives its only replica arrays that no distributed dataset has made: a batch is not told from "
                "a state. HINT: run the program on two replicas, or draw its batches of "
                "strategy.experimental_distribute_dataset"
            )
        elif verdict.findings:
            first = verdict.findings[0]
            first.culprit = Culprit(CATALOGUE["not-distributed"], place, first.culprit.place)
            first.differences = [one for finding in verdict.findings for one in finding.differences]
            del verdict.findings[1:]
        else:
            verdict.notes.append(f"{place} distributes no batch: every replica has computed with all of its rows")

    def _judge(self, wrong: list[tuple[Arrangement, list[Difference]]], verdict: Verdict) -> None:
        """Adds a finding for each group of values that differ in the same arrangements."""
        names = list(dict.fromkeys(difference.name for _, apart in wrong for difference in apart))
        shown = ", ".join(names[:3])
        if wrong and not self._is_shared() and self._judge_alone(wrong, verdict, names):
            return
        if wrong and all(one.idle for one, _ in wrong):
            verdict.unsure = (
                f"{shown} differ where replicas have no rows ({wrong[0][0]}): see that nothing divides by their number"
            )
            verdict.notes.append(verdict.unsure)
            return
        add_findings(verdict, self._judged(wrong))

    def _judged(self, wrong: list[tuple[Arrangement, list[Difference]]]) -> Iterator[Judged]:
        """Gives each group of values that differ in the same arrangements, with its mistake."""
        for group in grouped(wrong):
            suspects = Suspects(*self._kept(group.arrangement), group.apart, group.others)
            culprit = suspects.culprit()
            yield Judged(group, culprit, suspects.behind() if culprit.guess else frozenset())

    def _is_shared(self) -> bool:
        """True if the step was given rows of a batch, or arrays that may be one, for the replicas."""
        return bool(self._split) or (self._given_data and any(found.shared for found in self._found.values()))

    def _judge_alone(
        self, wrong: list[tuple[Arrangement, list[Difference]]], verdict: Verdict, names: Sequence[str]
    ) -> bool:
        """Judges a step that no batch was distributed for; returns whether nothing else is to be said of it.

        What its program closes over is the same for every number of replicas, as a batch is not. Whatever each replica
        has for itself, such as data that it draws, may rightly be more on more replicas.
        """
        arrangement, apart = max(wrong, key=lambda pair: (pair[0].kind == wrong[0][0].kind, len(pair[1])))
        suspects = Suspects(*self._kept(arrangement), apart)
        shared = any(found.shared for found in self._found.values())
        wholes = any(found.wholes for found in self._found.values())
        if not shared and not suspects.is_own():
            culprit = suspects.closed_over()
            several = self._strategy.num_replicas_in_sync > 1
            if culprit is not None and several and not wholes:
                failing = [one for one, _ in wrong]
                right = [one for one in verdict.tried if one not in failing]
                verdict.findings.append(Finding(culprit, apart, arrangement, failing, right))
                return True
            if wholes:
                return False
        if self._given_data:
            return False
        verdict.varying += names
        verdict.notes.append(
            f"{', '.join(names[:3])} depend on the number of replicas, and no batch is given to the step. HINT: pass "
            "it as an argument that strategy.experimental_distribute_dataset has made; data that each replica draws "
            "for itself cannot be compared"
        )
        return True

    def _key_of(self, drawn: Record, arrangement: Arrangement) -> Place | None:
        """The user's line that last made something of the key of a draw."""
        tape = self._run(arrangement.alone, frozenset()).tapes[0]
        for record in tape.records:
            if (record.name, record.place) == (drawn.name, drawn.place):
                return last_line(tape, record)
        return None

    def _kept(self, arrangement: Arrangement) -> tuple[Outcome, Outcome]:
        """One device and the replicas, with all that they compute."""
        both = arrangement.alone, arrangement
        one, found = (self._run(each, frozenset()) for each in both)
        turns = zip(one.tapes[0].turns, *(tape.turns for tape in found.tapes), strict=False)
        other = frozenset(number for number, each in enumerate(turns) if len(set(each)) > 1)
        return (self._run(both[0], other), self._run(both[1], other)) if other else (one, found)

    def _run(self, arrangement: Arrangement, folded: frozenset[int] | None = None) -> Outcome:
        if arrangement.replicas > 1 and arrangement.alone not in self._known:
            self._run(arrangement.alone)
        draws = Draws(noting=True) if arrangement.replicas == 1 else self._known[arrangement.alone][1]
        draws.next = 0
        state, leaves = self._moment(arrangement)
        stage = Stage(self._strategy, arrangement, state, draws, folded)
        stage.batch, stage.placed = self.batch, {id(leaves[place]) for place in self._placed}
        stage.traces = self._traces
        if arrangement.branch is not None:
            all_of_them = self._changes[arrangement.branch]
            stage.changed = all_of_them[:1] if arrangement.replicas == 1 else all_of_them[1:]
        with standing_in(self._strategy, self._variables, stage), self._counts.others(arrangement.replicas):
            args, kwargs = self._tree.unflatten([self._given(place, leaf, stage) for place, leaf in enumerate(leaves)])
            with Context.entered(Context(self._context.strategy, self._context.replica, stage)):
                result = self._call(*args, **kwargs)
            stage.note_results(result)
        draws.noting = False
        if arrangement.replicas == 1:
            self._known[arrangement] = stage.found, draws
        return stage.found

    def _given(self, place: int, leaf: Any, stage: Stage) -> Any:
        each = self._split.get(place)
        if each is None:
            leaf = stage.found.arrangement.replicas if place in self._counted else leaf
            stage.note(leaf)
            return leaf
        arrangement = stage.found.arrangement
        examples = chosen_rows(len(leaf) // max(each, 1), arrangement.rows)
        rows = (examples[:, None] * each + np.arange(each)).reshape(-1)
        # An array that the code around sees, not one of NumPy: what it computes of it must be a tracer's like.
        whole = leaf[rows] if arrangement.altered is None else arrangement.altered.of(leaf[rows], each)
        parts = [jnp.asarray(part) for part in arrangement.parts(whole, each)]
        stage.note(parts)
        if arrangement.replicas == 1:
            return parts[0]
        return PerReplica(tuple(parts), self._strategy.extended.mesh, idle=arrangement.idle)


def _is_enough(wrong: tuple[Arrangement, list[Difference]]) -> bool:
    """True if variables differ already where replicas share a batch evenly."""
    return wrong[0].kind == "divides" and any(one.state for one in wrong[1])
