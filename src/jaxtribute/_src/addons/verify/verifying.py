"""`Verification`: one step, run on one device and on virtual replicas, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Mirrored, PerReplica, Variable
from jaxtribute._src.addons.verify.arrangements import Arrangement, alone, arrangements
from jaxtribute._src.addons.verify.blame import Culprit, Suspects
from jaxtribute._src.addons.verify.comparing import Difference, differences
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.meeting import Draws
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.stage import Outcome, Stage, snapshot, standing_in
from jaxtribute.extending import Context, Nests
from jaxtribute.typing import Function as Callee

_GROUPS = 4
"""Groups of values that are looked into."""
_NOISE = 0.02
"""Deviation of what is added to trained variables that are all zero: behind them gradients would be zero too."""


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


@dataclass(slots=True, eq=False)
class Verdict:
    """The result of the verification of one step.

    Attributes:
      name: the step's function.
      findings: its mistakes.
      tried: the arrangements that were compared.
      refused: the arrangements in which the step raises, with what.
      unverified: what could not be verified, in words.
      outputs: how many variables and results were compared.
      seconds: how long it took.
    """

    name: str
    findings: list[Finding] = field(default_factory=list)
    tried: list[Arrangement] = field(default_factory=list)
    refused: list[tuple[Arrangement, str]] = field(default_factory=list)
    unverified: list[str] = field(default_factory=list)
    outputs: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """True if nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        from jaxtribute._src.addons.verify.report import text  # which imports this module

        return text(self)


class Verification:
    """The step of a user, ready to be run on any replicas.

    Args:
      name: its name.
      call: the Python function.
      args: its arguments, as the program has given them; batches are values of the strategy's replicas.
      kwargs: those by name.
      strategy: the strategy.
      variables: the variables that it reads and writes, as far as they are known.
      batches: ids of the arrays that are batches, where the strategy has one replica and they are plain arrays; None
        where they are told by their number of rows.
    """

    def __init__(
        self,
        name: str,
        call: Callee,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        strategy: Any,
        variables: Iterable[Variable],
        batches: set[int] | None = None,
    ) -> None:
        self._name, self._call, self._strategy = name, call, strategy
        self._variables = list(dict.fromkeys(variables))
        leaves, self._tree = Nests.flatten((tuple(args), kwargs))
        if any(hasattr(leaf, "__next__") for leaf in leaves):
            raise CannotVerify("it draws from an iterator. HINT: call it with the batch")
        self._leaves = list(map(_whole, leaves))
        self._split, self.batch = _batches(leaves, self._leaves, batches, strategy)
        self._state = {variable: _shaken(variable, number) for number, variable in enumerate(self._variables)}
        self._context = Context.current()
        self._known: dict[int, tuple[Outcome, Draws]] = {}

    def verdict(self) -> Verdict:
        """Runs the step in all arrangements and compares."""
        verdict = Verdict(self._name)
        wrong: list[tuple[Arrangement, list[Difference]]] = []
        repeated: dict[Any, Any] = {}
        for group in arrangements(self.batch):
            if len({arrangement.kind for arrangement, _ in wrong}) > 1:
                break  # enough is known: three and four replicas show what two have shown
            refused: list[tuple[Arrangement, str]] = []
            for arrangement in group:
                try:
                    found, one = self._run(arrangement), self._alone(arrangement.rows)
                except CannotVerify as reason:
                    refused.append((arrangement, f"cannot be followed: {reason}"))
                    break
                except Exception as error:  # noqa: BLE001  # whatever the user's function raises for such rows
                    refused.append((arrangement, f"raises {type(error).__name__}: {str(error).splitlines()[:1]}"))
                    continue
                verdict.tried.append(arrangement)
                verdict.outputs = len(one.written) + len(one.outputs)
                verdict.unverified += [*one.lost, *found.lost]
                apart = list(differences(one, found, self._state, verdict.unverified))
                for record in found.repeated:
                    repeated.setdefault(record.place, (record, arrangement))
                if apart:
                    wrong.append((arrangement, apart))
                refused.clear()
                break
            verdict.refused += refused[-1:]
        verdict.unverified = list(dict.fromkeys(verdict.unverified))
        self._judge(wrong, verdict)
        for record, arrangement in repeated.values():
            verdict.findings.append(Finding(Suspects.repeated(record), [], arrangement, [arrangement], []))
        return verdict

    def _judge(self, wrong: list[tuple[Arrangement, list[Difference]]], verdict: Verdict) -> None:
        """Adds a finding for each group of values that differ in the same arrangements."""
        failing: dict[str, list[Arrangement]] = {}
        for arrangement, apart in wrong:
            for difference in apart:
                failing.setdefault(difference.name, []).append(arrangement)
        groups: dict[tuple[Arrangement, ...], list[str]] = {}
        for name, where in failing.items():
            groups.setdefault(tuple(where), []).append(name)
        # What differs in most arrangements first: a part of it may pass here and there, as Adam's first step does.
        ordered = sorted(groups.items(), key=lambda group: -len(group[0]))
        if wrong and all(one.idle for one, _ in wrong):
            names = ", ".join(list(failing)[:3])
            verdict.unverified.append(
                f"{names} differ where replicas have no rows ({wrong[0][0]}): see that nothing divides by their number"
            )
            return
        for where, names in ordered[:_GROUPS]:
            # Where all replicas have as many rows, fewer things can be the reason; fewer replicas are easier to read.
            arrangement = where[0]
            everything = next(apart for one, apart in wrong if one == arrangement)
            apart = [difference for difference in everything if difference.name in names]
            others = [difference.name for difference in everything if difference.name not in names]
            one, found = self._run(alone(arrangement.rows), keeps=True), self._run(arrangement, keeps=True)
            culprit = Suspects(one, found, apart, others).culprit()
            known = next((one for one in verdict.findings if _same_mistake(one.culprit, culprit)), None)
            if known is not None:
                known.differences += apart
                known.failing = [other for other in verdict.tried if other in known.failing or other in where]
                known.right = [other for other in verdict.tried if other not in known.failing]
                continue
            right = [other for other in verdict.tried if other not in where]
            verdict.findings.append(Finding(culprit, apart, arrangement, list(where), right))

    def _alone(self, rows: int) -> Outcome:
        if rows not in self._known:
            self._run(alone(rows))
        return self._known[rows][0]

    def _run(self, arrangement: Arrangement, *, keeps: bool = False) -> Outcome:
        rows = arrangement.rows
        if arrangement.replicas > 1 and rows not in self._known:
            self._run(alone(rows))
        draws = Draws(noting=True) if arrangement.replicas == 1 else self._known[rows][1]
        draws.next = 0
        stage = Stage(self._strategy, arrangement, self._state, draws, keeps=keeps)
        stage.batch = self.batch
        with standing_in(self._strategy, self._variables, stage):
            args, kwargs = self._tree.unflatten(
                [self._given(place, leaf, stage) for place, leaf in enumerate(self._leaves)]
            )
            with Context.entered(Context(self._context.strategy, self._context.replica, stage)):
                result = self._call(*args, **kwargs)
            self._note(result, stage)
        draws.noting = False
        if arrangement.replicas == 1:
            self._known[rows] = stage.found, draws
        return stage.found

    def _given(self, place: int, leaf: Any, stage: Stage) -> Any:
        each = self._split.get(place)
        if each is None:
            stage.note(leaf)
            return leaf
        arrangement = stage.found.arrangement
        wanted = arrangement.rows * each
        rows = np.resize(np.arange(len(leaf)), wanted) if wanted > len(leaf) else np.arange(wanted)
        # An array that the code around sees, not one of NumPy: what it computes of it must be a tracer's like.
        parts = [jnp.asarray(part) for part in arrangement.parts(leaf[rows], each)]
        stage.note(parts)
        if arrangement.replicas == 1:
            return parts[0]
        return PerReplica(tuple(parts), self._strategy.extended.mesh, idle=arrangement.idle)

    def _note(self, result: Any, stage: Stage) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(result, is_leaf=Nests.is_whole):
            if isinstance(leaf, Variable):
                continue
            name = jax.tree_util.keystr(path)
            if isinstance(leaf, PerReplica):
                stage.found.outputs[name] = tuple(map(stage.input_of, leaf.values))
            elif isinstance(leaf, Mirrored) or Nests.is_array(leaf):
                data = leaf.data if isinstance(leaf, Mirrored) else leaf
                stage.found.outputs[name] = stage.input_of(data)


def _same_mistake(one: Culprit, other: Culprit) -> bool:
    """True if two culprits are one line, or if the second has none: it is what the first leads to."""
    if other.place is None or one.mistake == other.mistake:
        return True
    lines = [place and (place.file, place.line) for place in (one.place, one.elsewhere)]
    return (other.place.file, other.place.line) in lines


def _whole(leaf: Any) -> Any:
    """An argument as one array of all rows, or as it is."""
    if isinstance(leaf, PerReplica):
        parts = leaf.values
        if all(map(Nests.is_array, parts)) and np.ndim(parts[0]):
            return np.concatenate([np.asarray(part) for part in parts])
        if all(np.array_equal(np.asarray(part), np.asarray(parts[0])) for part in parts):
            return parts[0]
        raise CannotVerify("an argument of the step is a number of each replica")
    if isinstance(leaf, Mirrored):
        return leaf.data if is_key(leaf.data) else jnp.asarray(np.asarray(leaf.data))
    if isinstance(leaf, jax.Array) and not is_key(leaf):
        return jnp.asarray(np.asarray(leaf))
    return leaf


def _batches(
    leaves: Sequence[Any], whole: Sequence[Any], batches: set[int] | None, strategy: Any
) -> tuple[dict[int, int], int]:
    """By their places the arguments that are batches, with how many rows they have for each example; and its rows."""
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, PerReplica) and np.ndim(whole[place])]
    if not places and (strategy.num_replicas_in_sync == 1 or batches is not None):
        arrays = [
            place for place, leaf in enumerate(leaves) if Nests.is_array(leaf) and np.ndim(leaf) and not is_key(leaf)
        ]
        places = [place for place in arrays if batches is None or id(leaves[place]) in batches]
        if places:
            first = len(whole[places[0]])
            places = [place for place in places if len(whole[place]) == first]
    if not places:
        return {}, 0
    batch = min(len(whole[place]) for place in places)
    found: dict[int, int] = {}
    for place in places:
        each, rest = divmod(len(whole[place]), max(batch, 1))
        if rest:
            raise CannotVerify("the arguments of the step have different numbers of rows")
        found[place] = each
    return found, batch


def _shaken(variable: Variable, number: int) -> Any:
    """Copies a variable; a trained variable that is all zero gets some noise."""
    value = snapshot(variable)
    if not variable.trainable or value.dtype != np.float64 or value.any():
        return value
    return np.random.default_rng(number).normal(scale=_NOISE, size=value.shape)
