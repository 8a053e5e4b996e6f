"""Watches a program for its steps, and verifies each of them before it runs for the first time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from jaxtribute import PerReplica, ReduceOp, Variable
from jaxtribute._src.addons.tools.user_scripts import check_program, run_script
from jaxtribute._src.addons.tools.waiting import telling
from jaxtribute._src.addons.verify.ending import Ending
from jaxtribute._src.addons.verify.holding import variables_of
from jaxtribute._src.addons.verify.sources import calling_place, title
from jaxtribute._src.addons.verify.steps import CALLS, Call, Step
from jaxtribute._src.addons.verify.verdict import Verdict
from jaxtribute.experimental import Event, Observer, observe
from jaxtribute.extending import Context, Eager, Function, Kinds, Nests, Program
from jaxtribute.typing import Function as Callee

_RECENT = 256
_ROWS_BEGIN = "jaxtribute._src.addons.tables.vocabulary"
"""The module whose functions begin rows of a table anew, and are no steps of the program's."""


class Watcher(Observer):
    """An observer that verifies steps.

    A step is the outermost `jd.function`, or a `strategy.run` outside of any. It is verified when its program has been
    traced, so that it is known which variables it uses, and before it first changes them.

    Args:
      report: is told each verdict.
      again: after so many calls of steps that are verified already, and some seconds, with no new one between them,
        the program is ended; None to let it run to its end.

    Attributes:
      verdicts: what came of the steps, in order.
      ending: ends the program.
    """

    def __init__(self, report: Callable[[Verdict], None], again: int | None) -> None:
        self._report = report
        self._steps: dict[Any, Step | None] = {}
        """By function, or strategy and function, its step; None for what runs on no replicas."""
        self._event: Event | None = None
        """The step under way, or that of a `strategy.run` outside of any."""
        self._call = Call()
        self._dispatched = False
        """True if the step under way has been looked at."""
        self._running: dict[Any, None] = {}
        """The strategy whose `run` is under way, outside of any step."""
        self._drawn: list[Any] = []
        self._uneven: set[Any] = set()
        """The steps that have had a batch that their replicas share unevenly."""
        self._idle: set[Any] = set()
        """The steps that have had a batch that left replicas without a row."""
        self._reduced: set[Any] = set()
        """Reductions around steps that are verified."""
        self._busy = False
        self.ending = Ending(again)
        self.verdicts: list[Verdict] = []

    def on_start(self, event: Event) -> None:
        """Notes what belongs to a step; verifies it as its program is about to run."""
        if self._busy:
            return
        if event.kind == Kinds.STEP.name:
            self._look_at(event.arguments, event.subject)
            self._event, self._call, self._dispatched = event, Call(strategies=dict(self._running)), False
        elif event.kind == Kinds.RUN.name:
            self._begin_run(event)
        elif event.kind == Kinds.DISPATCH.name and self._event is not None and isinstance(event.subject, Program):
            self._verify(self._event)
        elif event.kind == Kinds.REDUCE.name and self._event is None:
            self._verify_reduction(event)
        elif event.kind == Kinds.SCHEDULE.name:
            self._verify_scheduled(event)

    def on_end(self, event: Event) -> None:
        """Notes the variables of a traced program, and what was drawn of a dataset."""
        if self._busy:
            return
        if event.kind == Kinds.TRACE.name and event.error is None:
            executor: Any = getattr(event.result, "executor", None)
            used = (*getattr(executor, "inputs", ()), *getattr(executor, "written", ()))
            self._call.variables.update((one, None) for one in used if isinstance(one, Variable))
        elif event.kind == Kinds.STEP.name:
            if self._event is event:
                # One that is no program, as where replicas of different shapes cannot be, or islands agree on each
                # step, has told no dispatch.
                if event.error is None:
                    self._verify(event)
                self._event = None
                self._note(event, event.subject)
                if event.subject in self._steps:
                    self._count()
        elif event.kind == Kinds.RUN.name:
            self._running = {}
            if self._event is None and event.arguments:
                self._note(event, (event.subject, event.arguments[0]))
        elif event.kind == Kinds.INPUT.name:
            self._look_at(event.result, self._event and self._event.subject)
            self._call.drawn.setdefault(id(event.subject), []).append(event.result)
            self._drawn.extend(jax.tree.leaves(event.result))
            del self._drawn[:-_RECENT]

    def _look_at(self, batch: Any, key: Any) -> None:
        """Notes how the replicas share a batch of a step."""
        parts = [_shapes(leaf) for leaf in Nests.flatten(batch)[0]] if key is not None else []
        if any(sum(shape[0] > 0 for shape in shapes) > 1 for shapes in parts):
            self._uneven.add(key)
        if any(shape[0] == 0 for shapes in parts for shape in shapes):
            self._idle.add(key)
        step = self._steps.get(key)
        for verdict in step.verdicts if step is not None else ():
            self._tell(verdict, key)

    def _tell(self, verdict: Verdict, key: Any) -> None:
        verdict.uneven, verdict.idle = key in self._uneven, key in self._idle

    def _count(self) -> None:
        calls = max((step.calls for step in self._steps.values() if step is not None), default=CALLS[1])
        # A mistake that only uneven batches show is one if the program has such batches.
        self.ending.count(calls=calls, waits=any(one.findings and not one.wrong for one in self.verdicts))

    def _note(self, event: Event, key: Any) -> None:
        """Notes the results of a step: code around it may reduce them, or give them to its next call."""
        step = self._steps.get(key)
        if step is not None and step.verification is not None:
            step.note(event.result)

    def _verify(self, event: Event) -> None:
        function: Any = event.subject
        if not isinstance(function, Function) or self._dispatched or function.python_function.__module__ == _ROWS_BEGIN:
            return
        self._dispatched = True
        call = self._call
        call.args, call.kwargs = event.arguments, dict(getattr(event, "keywords", {}))
        if function not in self._steps:
            strategies = [one for one in call.strategies if not _is_default(one)]
            if call.strategies and not strategies:
                of = (one.distribute_strategy for one in call.variables)
                strategies = list(dict.fromkeys(one for one in of if not _is_default(one)))
            # Keras's steps have names of their own, by which they are told from each other.
            name = getattr(function.python_function, "shown_as", title(function.python_function, function.__name__))
            step = _step(name, function.python_function, strategies) if call.strategies else None
            self._steps[function] = step
            if step is not None:
                self._first(step, function)
        else:
            self._later(function)

    def _begin_run(self, event: Event) -> None:
        """Notes a `strategy.run`; verifies one that no function is around."""
        strategy, fn = event.subject, event.arguments[0] if event.arguments else None
        self._call.strategies[strategy] = None
        self.ending.ran(fn)
        if self._event is not None:
            return
        self._running = {strategy: None}
        if isinstance(fn, Function) or type(Context.current().executor) is not Eager:
            return
        key = strategy, fn
        self._look_at(event.arguments[1:], key)
        self._call.args, self._call.kwargs = event.arguments[1:], dict(getattr(event, "keywords", {}))
        if key in self._steps:
            self._later(key)
            self._count()
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            return strategy.run(fn, *args, **kwargs)  # type: ignore[attr-defined]

        self._call.variables = variables_of(strategy)
        self._steps[key] = step = _step(title(fn, "the replica function"), call, [strategy])
        self._first(step, key)

    def _verify_scheduled(self, event: Event) -> None:
        """Verifies, in this process, a function that a coordinator hands to a worker."""
        from jaxtribute._src.addons.verify.servers import Scheduled

        step = Scheduled(event)
        self.ending.ran(step.function)
        if step.function in self._steps:
            self._count()
            return
        self._steps[step.function] = step
        self._first(step, step.function)

    def _first(self, step: Step, key: Any) -> None:
        self._call.recent = self._drawn
        self.ending.restart()
        with self._occupied(), telling(f"verifying {step.name}"):
            verdict = step.first(self._call)
        self._add(verdict, key)

    def _later(self, key: Any) -> None:
        step = self._steps[key]
        if step is None:
            return
        self._call.recent = self._drawn
        with self._occupied(), telling(f"verifying {step.name}"):
            verdict = step.later(self._call)
        self._add(verdict, key)

    def _verify_reduction(self, event: Event) -> None:
        given = {**dict(zip(("reduce_op", "value", "axis"), event.arguments, strict=False)), **event.keywords}
        op, axis, place = ReduceOp.parse(given["reduce_op"]), given.get("axis"), calling_place()
        leaves = [leaf for leaf in Nests.flatten(given["value"])[0] if isinstance(leaf, PerReplica)]
        for key, step in self._steps.items():
            if step is None:
                continue
            for _, path in filter(None, (step.results.get(id(leaf)) for leaf in leaves)):
                reduction = key, path, op, str(axis), place
                if reduction not in self._reduced:
                    self._reduced.add(reduction)
                    self._add(step.reduced(path, op, axis, place), key)

    def _add(self, verdict: Verdict | None, key: Any) -> None:
        if verdict is None:
            return
        self._tell(verdict, key)
        self.ending.restart()
        self.verdicts.append(verdict)
        self._report(verdict)

    @contextmanager
    def _occupied(self) -> Generator[None]:
        """Looks at nothing meanwhile: what runs then is the verification."""
        self._busy, begun = True, time.perf_counter()
        try:
            yield
        finally:
            self._busy = False
            self.ending.pause(time.perf_counter() - begun)


def _step(name: str, call: Callee, strategies: Sequence[Any]) -> Step:
    """A step, of which one of parameter servers runs on copies of what they hold."""
    if any(hasattr(one.extended, "server_policy") for one in strategies):
        from jaxtribute._src.addons.verify.servers import OnServers

        return OnServers(name, call, strategies)
    return Step(name, call, strategies)


def _is_default(strategy: Any) -> bool:
    return getattr(strategy, "is_default", False)


def _shapes(leaf: Any) -> set[tuple[int, ...]]:
    """The shapes of the replicas' parts of a batch, where they are not all the same."""
    return set((leaf.shapes or ()) if isinstance(leaf, PerReplica) else ())


class ScriptError(Exception):
    """The program has failed, by the error that is this one's cause.

    Args:
      verdicts: what is known of its steps.
    """

    def __init__(self, verdicts: list[Verdict]) -> None:
        super().__init__("the program has failed.")
        self.verdicts = verdicts


_KINDS = Kinds.STEP, Kinds.TRACE, Kinds.DISPATCH, Kinds.RUN, Kinds.REDUCE, Kinds.INPUT, Kinds.SCHEDULE
KINDS = tuple(kind.name for kind in _KINDS)


def verify_script(
    script: Path,
    arguments: Sequence[str],
    report: Callable[[Verdict], None],
    again: int | None,
    *,
    module: bool = False,
) -> tuple[list[Verdict], bool, list[str]]:
    """Runs a program and verifies its steps.

    Args:
      script: the program.
      arguments: its arguments.
      report: is told each verdict as it is there.
      again: see `Watcher`.
      module: whether the program is the name of a module.

    Returns:
      The verdicts; whether the program was ended before its own end; and if so its functions that had not run.

    Raises:
      ArgumentError: there is no such program.
      ScriptError: the program fails; it says what there is of the verdicts.
    """
    check_program(script, module=module)
    watcher = Watcher(report, again)
    with observe(watcher, *KINDS), watcher.ending.noting():
        try:
            ended = run_script(script, arguments, module=module)
        except (Exception, SystemExit) as error:
            raise ScriptError(watcher.verdicts) from error
    return watcher.verdicts, ended, watcher.ending.unseen() if ended else []
