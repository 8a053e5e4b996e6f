"""Watches a program for its steps, and verifies each of them before it runs for the first time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from jaxtribute import Mirrored, PerReplica, ReduceOp, Variable
from jaxtribute._src.addons.tools.user_scripts import Finished, run_script
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.replaying import replayed
from jaxtribute._src.addons.verify.sources import Place, calling_place, is_theirs
from jaxtribute._src.addons.verify.verifying import Verdict, Verification
from jaxtribute.experimental import Event, Observer, observe
from jaxtribute.extending import Context, Eager, Function, Kinds, Nests

_RECENT = 256
_PATIENCE, _PATIENCE_S = 500, 20.0
"""Calls of a step, and seconds, after which no uneven batch is waited for."""
_QUIET_S = 5.0
"""Seconds without a new step after which none is waited for, such as that of an evaluation."""
_UNSEEN_S = 30.0
"""The same while the program has functions that have not run."""
_CALLS = 2, 8, 32, 128
"""The calls of a step that are looked at again, with the state and the batch that they have, as long as time allows."""
_LATER_S = 10.0
"""Seconds for these, of one step."""


@dataclass(slots=True)
class _Known:
    """A step that is verified.

    Attributes:
      name: its name.
      call: the Python function.
      strategies: those it runs on.
      variables: those it uses.
      verification: of its first call.
      results: by the id of a result of the last call: it, and where it stands there.
      calls: number of calls.
      seconds: spent on later ones.
    """

    name: str
    call: Any
    strategies: list[Any]
    variables: dict[Variable, None]
    verification: Verification
    results: dict[int, tuple[Any, str]] = field(default_factory=dict)
    calls: int = 1
    seconds: float = 0.0


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
        self.called: set[Any] | None = None
        """The functions that have run, also on no replicas or within others; None if nobody notes them."""
        self._unseen: list[str] = []
        self._asked = 0.0
        """The names of the others, and when they were looked up."""
        self._fed: dict[int, list[Any]] = {}
        """By the id of an iterator what a step has drawn of it."""
        self._begun = time.perf_counter()
        self._verified: dict[Any, _Known] = {}
        self._dispatched = False
        """True if the step under way has been looked at."""
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
            self._dispatched = False
        elif event.kind == Kinds.RUN.name:
            self._strategies[event.subject] = None
            if self.called is not None:
                self.called.update(one for one in event.arguments[:1] if isinstance(one, Function))
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
            calls = max((known.calls for known in self._verified.values()), default=_CALLS[1])
            # A mistake that only uneven batches show is one if the program has such batches.
            waits = any(one.findings and one.right for one in self.verdicts)
            seconds = time.perf_counter() - self._begun
            patient = self._repeats < _PATIENCE and seconds < _PATIENCE_S
            waits = waits or (calls < _CALLS[1] and self._again > 1)
            if self._repeats < self._again or seconds <= _QUIET_S or (waits and patient):
                return
            now = time.perf_counter()
            if now > self._asked + 1 or not self._unseen:
                self._asked, self._unseen = now, self.unseen()
            if seconds > _UNSEEN_S or not self._unseen:
                raise Finished

    def unseen(self) -> list[str]:
        """The user's functions that have not run, with their lines."""
        if self.called is None:
            return []
        functions = [one for one in gc.get_objects() if type(one) is Function and one not in self.called | self._seen]
        codes = [getattr(one.python_function, "__code__", None) for one in functions]
        return [
            f"{code.co_name} ({Place(code.co_filename, code.co_firstlineno)})"
            for code in codes
            if code is not None and is_theirs(code.co_filename)
        ]

    def _verify(self, event: Event) -> None:
        function: Any = event.subject
        wanted = not self._functions or function in self._functions
        if function in self._seen and not self._dispatched:
            self._dispatched = True
            self._look_again(function, event.arguments, dict(getattr(event, "keywords", {})))
        if function in self._seen or not isinstance(function, Function) or not wanted:
            return
        self._seen.add(function)
        self._repeats, self._dispatched = 0, True
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
        known = self._verified.get(key)
        if known is None:
            return
        self._results, known.results = {}, {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(event.result, is_leaf=Nests.is_whole):
            name = jax.tree_util.keystr(path)
            if isinstance(leaf, PerReplica | Mirrored | jax.Array):
                known.results[id(leaf)] = leaf, name
            if isinstance(leaf, PerReplica):
                self._results[id(leaf)] = leaf, known.verification, name

    def _look_again(self, key: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Judges what a call is given of the results of the one before; verifies it as well if its turn has come."""
        known = self._verified.get(key)
        if known is None:
            return
        known.calls += 1
        right = all(one.right for one in self._of.get(key, ()))
        due = known.calls in _CALLS and known.seconds < _LATER_S and not self._functions
        if not right or not (due or known.calls == 2):
            return
        begun = time.perf_counter()
        leaves = Nests.flatten((tuple(args), kwargs))[0]
        # Numbers of Python and their like are objects that many have in common; arrays are not.
        fed = {known.results[id(leaf)][1]: place for place, leaf in enumerate(leaves) if id(leaf) in known.results}
        self._busy = True
        try:
            verdict = known.verification.carried(fed) if fed and not known.verification.fed else None
            if due and (verdict is None or verdict.right):
                drawn = set(map(id, self._drawn)) or None
                call, args, kwargs = replayed(known.call, args, kwargs, self._fed)
                first, strategy = known.verification, known.strategies[0]
                later = Verification(known.name, call, args, kwargs, strategy, known.variables, drawn, first)
                verdict = later.verdict(brief=True)
        except Exception:  # noqa: BLE001 (the first call's verdict stands)
            return
        finally:
            self._busy = False
            seconds = time.perf_counter() - begun
            known.seconds += seconds
            self._begun += seconds
        if verdict is not None and verdict.findings:
            known_lines = {one.culprit.mistake for verdict in self._of.get(key, ()) for one in verdict.findings}
            verdict.findings = [one for one in verdict.findings if one.culprit.mistake not in known_lines]
        if verdict is not None and verdict.findings:
            verdict.name = f"{known.name}, call {known.calls}"
            verdict.seconds = seconds
            self._add(verdict, key)

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
                    whose = (key for key, one in self._verified.items() if one.verification is verification)
                    self._add(verdict, next(whose))

    def _run_alone(self, event: Event) -> None:
        """Verifies a `strategy.run` that no function is around."""
        strategy, fn = event.subject, event.arguments[0]
        key = strategy, fn
        keywords = dict(getattr(event, "keywords", {}))
        if key in self._seen:
            self._look_again(key, event.arguments[1:], keywords)
            self._count(key)
            return
        self._seen.add(key)
        self._repeats = 0

        def call(*args: Any, **kwargs: Any) -> Any:
            return strategy.run(fn, *args, **kwargs)  # type: ignore[attr-defined]

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
        plain = call
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
                if scheduled is None:
                    self._verified[key] = _Known(name, plain, strategies, self._variables, verification)
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
    script: Path, arguments: Sequence[str], report: Callable[[Verdict], None], again: int | None
) -> tuple[list[Verdict], bool, list[str]]:
    """Runs a program and verifies its steps.

    Args:
      script: the program.
      arguments: its arguments.
      report: is told each verdict as it is there.
      again: see `Watcher`.

    Returns:
      The verdicts; whether the program was ended before its own end; and if so its functions that had not run.

    Raises:
      ScriptError: the program fails; it says what there is of the verdicts.
    """
    watcher = Watcher(report, again)
    watcher.called, call = set[Any](), Function.__call__
    noted = watcher.called

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        noted.add(function)
        return call(function, *args, **kwargs)

    with observe(watcher, *KINDS), mock.patch.object(Function, "__call__", called):
        try:
            ended = run_script(script, arguments)
        except (Exception, SystemExit) as error:
            if not script.is_file():
                raise
            raise ScriptError(watcher.verdicts) from error
    return watcher.verdicts, ended, watcher.unseen() if ended else []
