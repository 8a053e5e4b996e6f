"""Watches a program for its steps, and verifies each of them before it runs for the first time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax

from jaxtribute import PerReplica, ReduceOp, Variable
from jaxtribute._src.addons.tools.user_scripts import Finished, run_script
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.replaying import replayed
from jaxtribute._src.addons.verify.sources import calling_place
from jaxtribute._src.addons.verify.verifying import Verdict, Verification
from jaxtribute.experimental import Event, Observer, observe
from jaxtribute.extending import Context, Eager, Function, Kinds, Nests

_RECENT = 256
_PATIENCE, _PATIENCE_S = 500, 20.0
"""Calls of a step, and seconds, after which no uneven batch is waited for."""
_QUIET_S = 5.0
"""Seconds without a new step after which none is waited for, such as that of an evaluation."""


class Watcher(Observer):
    """An observer that verifies steps.

    A step is the outermost `jd.function`, or a `strategy.run` outside of any. It is verified when its program has been
    traced, so that it is known which variables it uses, and before it first changes them.

    Args:
      report: is told each verdict.
      again: after so many calls of steps that are verified already, and some seconds, with no new one between them,
        the program is ended; None to let it run to its end.
      functions: what is looked at; all by default.
    """

    def __init__(self, report: Callable[[Verdict], None], again: int | None, functions: Sequence[Any] = ()) -> None:
        self._report, self._again, self._functions = report, again, functions
        self._seen: set[Any] = set()
        self._repeats = 0
        self._step: Event | None = None
        self._strategies: dict[Any, None] = {}
        self._variables: dict[Variable, None] = {}
        self._busy = False
        self._running: dict[Any, None] = {}
        """The strategy whose `run` is under way, outside of any step."""
        self._drawn: list[Any] = []
        self._fed: dict[int, list[Any]] = {}
        """By the id of an iterator what a step has drawn of it."""
        self._begun = time.perf_counter()
        self._verified: dict[Any, Verification] = {}
        self._results: dict[int, tuple[Any, Verification, str]] = {}
        """By the id of a result that each replica has for itself: it, whose it is, and where it stands there."""
        self._of: dict[Any, list[Verdict]] = {}
        self._uneven: set[Any] = set()
        """The steps that have had a batch that their replicas share unevenly, and by step what came of it."""
        self.verdicts: list[Verdict] = []

    def on_start(self, event: Event) -> None:
        """Notes what belongs to a step; verifies it as its program is about to run."""
        if self._busy:
            return
        if event.kind == Kinds.STEP.name:
            self._look_at(event.arguments, event.subject)
            self._step, self._strategies, self._variables, self._fed = event, dict(self._running), {}, {}
        elif event.kind == Kinds.RUN.name:
            self._strategies[event.subject] = None
            if self._step is None:
                self._running = {event.subject: None}
            plain = not isinstance(event.arguments[0] if event.arguments else None, Function)
            if self._step is None and plain and type(Context.current().executor) is Eager:
                self._look_at(event.arguments[1:], (event.subject, event.arguments[0]))
                self._run_alone(event)
        elif event.kind == Kinds.DISPATCH.name and self._step is not None:
            self._verify(self._step)
        elif event.kind == Kinds.REDUCE.name and self._step is None and self._results:
            self._verify_reduction(event)
        elif event.kind == Kinds.SCHEDULE.name:
            self._verify_scheduled(event)

    def on_end(self, event: Event) -> None:
        """Notes the variables of a traced program, and what was drawn of a dataset."""
        if self._busy:
            return
        if event.kind == Kinds.TRACE.name and event.error is None:
            executor: Any = getattr(event.result, "executor", None)
            for one in (*getattr(executor, "inputs", ()), *getattr(executor, "written", ())):
                if isinstance(one, Variable):
                    self._variables[one] = None
        elif event.kind == Kinds.STEP.name:
            if self._step is event:
                # One that is no program, as where replicas of different shapes cannot be, has told no dispatch.
                self._step = None
                self._note(event, event.subject)
                self._count(event.subject)
        elif event.kind == Kinds.RUN.name:
            self._running = {}
            if self._step is None and event.arguments:
                self._note(event, (event.subject, event.arguments[0]))
        elif event.kind == Kinds.INPUT.name:
            self._look_at(event.result, self._step and self._step.subject)
            self._fed.setdefault(id(event.subject), []).append(event.result)
            self._drawn.extend(jax.tree.leaves(event.result))
            del self._drawn[:-_RECENT]

    def _look_at(self, batch: Any, key: Any) -> None:
        """Notes whether replicas share a batch of a step unevenly; those without rows do not count."""
        if key is not None and any(map(_is_uneven, Nests.flatten(batch)[0])):
            for verdict in self._of.setdefault(key, []):
                verdict.uneven = True
            self._uneven.add(key)

    def _count(self, subject: Any) -> None:
        if subject in self._seen and self._again is not None:
            self._repeats += 1
            # A mistake that only uneven batches show is one if the program has such batches.
            waits = any(one.findings and one.right for one in self.verdicts)
            seconds = time.perf_counter() - self._begun
            patient = self._repeats < _PATIENCE and seconds < _PATIENCE_S
            if self._repeats >= self._again and seconds > _QUIET_S and not (waits and patient):
                raise Finished

    def _verify(self, event: Event) -> None:
        function: Any = event.subject
        wanted = not self._functions or function in self._functions
        if function in self._seen or not isinstance(function, Function) or not wanted:
            return
        self._seen.add(function)
        self._repeats = 0
        keywords = dict(getattr(event, "keywords", {}))
        strategies = [one for one in self._strategies if not getattr(one, "is_default", False)]
        if not strategies:
            strategies = list(
                dict.fromkeys(
                    one.distribute_strategy
                    for one in self._variables
                    if not getattr(one.distribute_strategy, "is_default", True)
                )
            )
            if not self._strategies:
                return  # it runs on no replicas
        self._judge(function.__name__, function.python_function, event.arguments, keywords, strategies, key=function)

    def _verify_scheduled(self, event: Event) -> None:
        """Verifies, in this process, a function that a coordinator hands to a worker."""
        from jaxtribute._src.addons.verify.servers import Scheduled

        scheduled = Scheduled(event)
        if scheduled.function in self._seen:
            self._count(scheduled.function)
            return
        self._seen.add(scheduled.function)
        self._repeats = 0
        self._judge(scheduled.name, scheduled.call, (), {}, [scheduled.strategy], scheduled)

    def _note(self, event: Event, key: Any) -> None:
        """Notes results of a verified step that each replica has for itself: code around it may reduce them."""
        verification = self._verified.get(key)
        if verification is None:
            return
        self._results = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(event.result, is_leaf=Nests.is_whole):
            if isinstance(leaf, PerReplica):
                self._results[id(leaf)] = leaf, verification, jax.tree_util.keystr(path)

    def _verify_reduction(self, event: Event) -> None:
        given = {**dict(zip(("reduce_op", "value", "axis"), event.arguments, strict=False)), **event.keywords}
        op, axis, place = ReduceOp.parse(given["reduce_op"]), given.get("axis"), calling_place()
        for leaf in Nests.flatten(given["value"])[0]:
            _, verification, path = self._results.get(id(leaf), (None, None, ""))
            key = verification, path, op, str(axis), place
            if verification is not None and key not in self._seen:
                self._seen.add(key)
                verdict = verification.reduced(path, op, axis, place)
                if verdict.tried:
                    self._add(verdict, next(key for key, known in self._verified.items() if known is verification))

    def _run_alone(self, event: Event) -> None:
        """Verifies a `strategy.run` that no function is around."""
        strategy, fn = event.subject, event.arguments[0]
        key = strategy, fn
        if key in self._seen:
            self._count(key)
            return
        self._seen.add(key)
        self._repeats = 0

        def call(*args: Any, **kwargs: Any) -> Any:
            return strategy.run(fn, *args, **kwargs)  # type: ignore[attr-defined]

        keywords = dict(getattr(event, "keywords", {}))
        name = getattr(fn, "__name__", "the replica function")
        self._judge(name, call, event.arguments[1:], keywords, [strategy], key=key)

    def _judge(
        self,
        name: str,
        call: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        strategies: list[Any],
        scheduled: Any = None,
        key: Any = None,
    ) -> None:
        self._busy = True
        begun = time.perf_counter()
        try:
            if len(strategies) != 1:
                raise CannotVerify("it runs on several strategies" if strategies else "it runs on no replicas")
            if strategies[0].extended.mesh.peers is not None:
                raise CannotVerify("it runs on several workers. HINT: run the program in one process")
            drawn = set(map(id, self._drawn)) or None
            if scheduled is not None:
                self._fed = {}
                args, kwargs = scheduled.arguments(self._fed)
            with scheduled or nullcontext():
                call, args, kwargs = replayed(call, args, kwargs, self._fed)
                strategy, variables = strategies[0], self._variables if scheduled is None else []
                verification = Verification(name, call, args, kwargs, strategy, variables, drawn)
                if scheduled is not None:
                    trial = verification.trial()
                    if not trial.ran and not trial.written:
                        return  # no step
                    if not trial.ran:
                        inner = call
                        call = lambda *args, **kwargs: strategy.run(inner, args, kwargs)  # noqa: E731
                        verification = Verification(name, call, args, kwargs, strategy, variables, drawn)
                verdict = verification.verdict()
                self._verified[key] = verification
        except CannotVerify as reason:
            verdict = Verdict(name, unverified=[str(reason)])
        except Exception as error:  # noqa: BLE001 (the program goes on, whatever its function meets here)
            verdict = Verdict(name, unverified=[f"{type(error).__name__}: {error}"])
        finally:
            self._busy = False
        verdict.asynchronous = scheduled is not None
        verdict.seconds = time.perf_counter() - begun
        self._add(verdict, key)

    def _add(self, verdict: Verdict, key: Any) -> None:
        verdict.uneven = key in self._uneven
        self._of.setdefault(key, []).append(verdict)
        self._begun = time.perf_counter()
        self.verdicts.append(verdict)
        self._report(verdict)


def _is_uneven(leaf: Any) -> bool:
    shapes = (leaf.shapes or ()) if isinstance(leaf, PerReplica) else ()
    return len({shape for shape in shapes if shape[0]}) > 1


_KINDS = Kinds.STEP, Kinds.TRACE, Kinds.DISPATCH, Kinds.RUN, Kinds.REDUCE, Kinds.INPUT, Kinds.SCHEDULE
KINDS = tuple(kind.name for kind in _KINDS)


def verify_script(
    script: Path, arguments: Sequence[str], report: Callable[[Verdict], None], again: int | None
) -> tuple[list[Verdict], bool]:
    """Runs a program and verifies its steps.

    Args:
      script: the program.
      arguments: its arguments.
      report: is told each verdict as it is there.
      again: see `Watcher`.

    Returns:
      The verdicts; and whether the program was ended before its own end.
    """
    watcher = Watcher(report, again)
    with observe(watcher, *KINDS):
        ended = run_script(script, arguments)
    return watcher.verdicts, ended
