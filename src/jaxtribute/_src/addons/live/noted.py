"""Notes of the thread that trains: where it is, its steps and examples, and what other threads have to tell.

The thread that trains only appends: to deques, which no thread locks, and to its own counts. The thread that looks
takes from them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import jax

from jaxtribute._src.addons.live.examples import examples_in
from jaxtribute._src.addons.live.looks import OUTSIDE, PARTS, PLACES, STEP, Places
from jaxtribute._src.addons.live.windows import Window, wall
from jaxtribute.experimental import Event, Observer
from jaxtribute.extending import Kinds
from jaxtribute.typing import Foreign, Json

if TYPE_CHECKING:
    from jaxtribute._src.addons.elastic.membership import View
    from jaxtribute.extending import Program

OBSERVED = (*PLACES, Kinds.WRITE.name, Kinds.METRICS.name, Kinds.TASK.name)
"""The kinds of events that are noted."""
_BLOCK_STEPS, _BLOCK_S = 16, 0.25
"""Times of steps are means over so many steps, or over as few as take so long. Every 16th call waits for the devices on
CPU, the others only hand their step over."""
_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event of a program that was compiled, or loaded from its cache."""
_MOST_METRICS = 64


@dataclass(frozen=True)
class _Ended:
    """The last figures of a task that has ended."""

    last: dict[str, Json]

    def figures(self) -> dict[str, Json]:
        """Returns them."""
        return self.last


class _Views:
    """Views of islands, as this process has come into them.

    Attributes:
      number: of the view that the last step was taken in; -1 before the first.
      usual_s: the mean time of the last steps.
    """

    def __init__(self) -> None:
        self.number, self.usual_s = -1, 0.0

    def come(self, view: View, event: Event) -> dict[str, Json]:
        """The record of another view, with what its first step has taken more than usually."""
        length = event.seconds or 0.0
        # The first step of a process is slow by itself.
        seconds = 0.0 if self.number < 0 else max(0.0, length - self.usual_s)
        self.number = view.number
        ranks = [member.rank for member in view.members]
        told: dict[str, Json] = {"k": "view", "t": wall(event.start_s + length), "s": round(seconds, 4)}
        return told | {"view": view.number, "islands": ranks}


class Noted(Observer):
    """An observer of the thread that trains.

    Args:
      run_folder: the run's folder, for processes that this one starts.
      is_task: True for a process that runs a task of parameter servers.

    Attributes:
      inside: the events that have begun and not ended in the thread that trains.
      places: the seconds in each place.
      thread: the thread that trains: the one that has dispatched a step last.
      dispatched: the last program and its result, until the devices have computed that.
      steps: calls of programs that change state.
      later: records that the thread that looks is to write.
    """

    def __init__(self, run_folder: str, is_task: bool) -> None:
        self.run_folder = run_folder
        self._is_task = is_task
        self.inside: list[Event] = []
        self.places = Places(time.monotonic())
        self.thread = threading.main_thread().ident
        self.dispatched: tuple[Program, Foreign] | None = None
        self.steps = self._examples = 0
        self._block = (time.monotonic(), 0)
        self._blocks: deque[tuple[float, int]] = deque()
        self._metrics: deque[tuple[int, dict[str, float]]] = deque()
        self.later: deque[dict[str, Json]] = deque()
        self._iterator: Foreign = None
        self._first: dict[int, int] | None = {}
        """The examples of the last batch of each iterator, until a program is called that may have them."""
        self._tasks: dict[str, Foreign] = {}
        """Tasks of a cluster with parameter servers that run here."""
        self._compiled = False
        """True if the thread that trains has compiled a program since the last step."""
        self._views = _Views()
        self._told = (0, 0)
        """The steps and examples that windows have."""

    def on_start(self, event: Event) -> None:
        """Notes that the thread that trains is in an event; that is the thread that has dispatched a step last."""
        place = PLACES.get(event.kind)
        if place is None:
            self._note_other("start", event)
        elif threading.get_ident() == self.thread:  # threads that read ahead or write checkpoints hold nobody up
            self.inside.append(event)
            if place < self.places.place:
                self.places.go(place, event.start_s)
        elif place == STEP and event.kind == Kinds.DISPATCH.name:
            self.thread = threading.get_ident()
            self.inside[:] = [event]
            self.places.go(place, event.start_s)

    def on_end(self, event: Event) -> None:
        """Notes that the thread that trains has left an event, and what that has come to."""
        inside = self.inside
        if inside and inside[-1] is event:
            inside.pop()
        elif event in inside:
            inside.remove(event)
        else:
            self._note_other("end", event)
            return
        place = min([PLACES[one.kind] for one in inside]) if inside else OUTSIDE
        if place != self.places.place:
            self.places.go(place, event.start_s + (event.seconds or 0.0))
        if event.error is not None:
            return
        if self._first and event.kind in (Kinds.DISPATCH.name, Kinds.CLOSURE.name):
            self._examples += sum(self._first.values())
            self._first = None
        if event.kind == Kinds.DISPATCH.name:
            self._note_step(event)
        elif event.kind == Kinds.INPUT.name:
            self._iterator = event.subject
            self._note_examples(event)
        elif event.kind == Kinds.CLOSURE.name:
            self.steps += 1
            self._blocks.append((event.seconds or 0.0, 1))
        elif event.kind in (Kinds.SAVE.name, Kinds.RESTORE.name):
            seconds = round(event.seconds or 0.0, 4)
            self.later.append({"k": event.kind, "t": wall(event.start_s), "s": seconds, "path": event.name})

    def _note_examples(self, event: Event) -> None:
        examples = examples_in(event.result)
        # A program that is started again skips batches up to where it was, and an island replays what it has missed:
        # those of one iterator that come before any program runs, but for the last one, are trained on by nobody here.
        if self._first is None:
            self._examples += examples
        else:
            self._first[id(event.subject)] = examples

    def _note_step(self, event: Event) -> None:
        program = cast("Program", event.subject)
        self.dispatched = program, event.result
        if not (program.donated or program.donated_leaves):
            return
        now = event.start_s + (event.seconds or 0.0)
        view: View | None = getattr(program, "view", None)
        if view is not None and view.number != self._views.number:
            self.later.append(self._views.come(view, event))
        began, steps = self._block
        self.steps += 1
        # The time of compiling is no time of a step.
        if self.steps == 1 or self._compiled:
            self._block, self._compiled = (now, 0), False
        elif steps + 1 == _BLOCK_STEPS or now - began >= _BLOCK_S:
            self._blocks.append((now - began, steps + 1))
            self._views.usual_s = (now - began) / (steps + 1)
            self._block = now, 0
        else:
            self._block = began, steps + 1

    def note_compiling(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """Notes an event of JAX's, if a program was compiled for the thread that trains."""
        if event == _COMPILED and threading.get_ident() == self.thread:
            self._compiled = True

    def _note_other(self, phase: str, event: Event) -> None:
        """Notes that an event begins or ends that is no place of the thread that trains."""
        if event.kind == Kinds.METRICS.name and phase == "start":
            step, values = event.arguments
            self._metrics.append((step, dict(values)))
        elif event.kind == Kinds.TASK.name and phase == "start":
            self._tasks[event.name] = event.subject
            if self._is_task:
                self.thread = threading.get_ident()
        elif event.kind == Kinds.TASK.name:
            # The next window tells what has become of it.
            self._tasks[event.name] = _Ended(self._tasks[event.name].figures())
        elif event.kind == Kinds.WRITE.name and event.error is None:  # a checkpoint, in a thread of its own
            self.later.append({"k": f"write {phase}", "t": wall(time.monotonic()), "path": event.name})

    # For the thread that looks ------------------------------------------------------------------------------------

    def part(self) -> str | None:
        """The part of the time that Python's place stands for; None if it may be any."""
        place = self.places.place
        return PARTS[place] if place < STEP else None

    def computing(self) -> bool:
        """True if the devices have not finished the last step."""
        dispatched = self.dispatched
        if dispatched is None:
            return False
        program, result = dispatched
        array: Foreign = program.donated[0].stored if program.donated else _first_array(result)
        try:
            if array is not None and not array.is_ready():
                return True
        except RuntimeError:
            return True  # a newer step has taken the array
        # Unless the thread that trains has put another in its place meanwhile.
        if self.dispatched is dispatched:
            self.dispatched = None
        return False

    def fill(self, window: Window) -> None:
        """Moves what was noted into a window."""
        while self._blocks:
            seconds, steps = self._blocks.popleft()
            window.add_steps(seconds / steps, steps)
        steps, examples = self.steps, self._examples
        window.steps += steps - self._told[0]
        window.examples += examples - self._told[1]
        window.last, self._told = steps, (steps, examples)
        while self._metrics:
            step, values = self._metrics.popleft()
            for name, value in values.items():
                if name in window.metrics or len(window.metrics) < _MOST_METRICS:
                    window.metrics[name] = value
            window.metrics["step"] = step

    def position(self) -> dict[str, Json]:
        """The step that the dataset is at, if it knows."""
        state = getattr(self._iterator, "_position", None)
        step = state.get("step") if isinstance(state, dict) else None
        return {} if step is None else {"pos": step}

    def figures(self) -> dict[str, Json]:
        """Counts that the tasks of a cluster with parameter servers keep of themselves."""
        tasks = self._tasks.copy()
        return {"tasks": {name: task.figures() for name, task in tasks.items()}} if tasks else {}

    def forget_ended_tasks(self) -> None:
        """Leaves out tasks that have ended, once a window has told what became of them."""
        for name, task in self._tasks.copy().items():
            if isinstance(task, _Ended):
                self._tasks.pop(name, None)


def _first_array(result: Foreign) -> Foreign:
    return next((leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)), None)
