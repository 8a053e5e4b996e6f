"""Records of what this worker does, written by a thread that looks some two to fifty times a second.

The thread that trains only notes where it is: some five microseconds for a step and its input. The one that looks asks
whether the devices compute, which is a useful step whatever Python does meanwhile, and else what Python waits for.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, cast

import jax

from jaxtribute._src.addons.launcher.environment import RESTART
from jaxtribute._src.addons.live import machine
from jaxtribute._src.addons.live.files import Lines, Tail, now_file, read_now, worker_file, write_now
from jaxtribute._src.addons.live.looks import OUTSIDE, PARTS, PLACES, STEP, Pace, Places, divided
from jaxtribute._src.addons.live.windows import Window, length_after
from jaxtribute.experimental import Event, Observer
from jaxtribute.extending import Kinds, count, examples_in, located, subscribe
from jaxtribute.typing import Foreign, Json

if TYPE_CHECKING:
    from jaxtribute.extending import Program

_TELL_S, _USE_S = 0.3, 0.9
_GAP_S = 1.0
_BLOCK_STEPS, _BLOCK_S = 16, 0.25
"""Times of steps are means over so many steps, or over as few as take so long. Every 16th call waits for the devices on
CPU, the others only hand their step over."""
_NAMED = (Kinds.SAVE.name, Kinds.RESTORE.name, Kinds.WAIT.name, Kinds.CLOSURE.name)
_OBSERVED = (*PLACES, Kinds.WRITE.name, Kinds.METRICS.name, Kinds.TASK.name)
"""The kinds of events that a recorder observes."""
_COMPILES = (
    "/jax/_src/compiler.py",
    "/jax/_src/interpreters/mlir.py",
    "/jax/_src/interpreters/partial_eval.py",
)
_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event of a program that was compiled, or loaded from its cache."""
_MOST_METRICS = 64
_MOST_TEXT = 20_000


@dataclass(frozen=True)
class _Ended:
    """The last figures of a task that has ended."""

    last: dict[str, Json]

    def figures(self) -> dict[str, Json]:
        """Returns them."""
        return self.last


class Recorder(Observer):
    """An observer that writes what it sees into the folder of a run.

    Args:
      directory: the run's folder, made if need be.
      rank: this worker's.
      role: of the process, one of those that files are named by.

    Raises:
      OSError: the folder cannot be written to.
    """

    def __init__(self, directory: Path, rank: int, role: str = "worker") -> None:
        self.run_folder = str(directory.absolute())
        self._is_task = role != "worker"
        self._now = now_file(directory, rank, role)
        self._path = worker_file(directory, rank, role)
        self._again = self._path.exists() or bool(count(RESTART, 0))
        self._lines = Lines(self._path)
        self._keep_last_window()
        self._base = time.time() - time.monotonic()
        self._inside: list[Event] = []
        """The events that have begun and not ended in the thread that trains."""
        self._places = Places(time.monotonic())
        self._thread = threading.main_thread().ident
        self._dispatched: tuple[Program, Foreign] | None = None
        """The last program and its result, until the devices have computed that."""
        self._steps = self._examples = 0
        self._block, self._block_steps = time.monotonic(), 0
        self._blocks: list[tuple[float, int]] = []
        self._metrics: dict[str, float] = {}
        self._later: deque[dict[str, Json]] = deque()
        """Records of other threads, which wait for no disk."""
        self._iterator: Foreign = None
        self._tasks: dict[str, Foreign] = {}
        """Tasks of a cluster with parameter servers that run here."""
        self._windows = 0
        self._window = self._new_window(self._wall(time.monotonic()))
        self._seen: dict[tuple[int, str], float] = {}
        """Findings of the looks in this window, for the seconds from `_before`, where it began."""
        self._before = self._places.at(0.0)
        self._told = (0, 0)
        self._devices: list[jax.Device] = []
        self._used: dict[str, Json] = {}
        self._used_at = -_USE_S
        self._compiling: dict[Foreign, bool] = {}
        self._compiled = False
        """True if the thread that trains has compiled a program since the last step."""
        self._failed = False
        self._stop = threading.Event()
        self._looker = threading.Thread(target=self._look, name="jaxtribute-live", daemon=True)
        self._lines.write({"k": "start", "t": self._wall(time.monotonic()), "rank": rank} | machine.description())

    def start(self) -> None:
        """Starts to observe, until the program ends."""
        self._leave = subscribe(self, *_OBSERVED)
        jax.monitoring.register_event_duration_secs_listener(self._note_compiling)
        self._shown = sys.excepthook
        sys.excepthook = self._note_exception
        atexit.register(self.close)
        # A child has the observer and the file, and must not write there as if it were this worker.
        os.register_at_fork(after_in_child=self._stop.set)
        self._looker.start()

    def close(self) -> None:
        """Writes what is left and the end; further calls do nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._leave()
        jax.monitoring.unregister_event_duration_listener(self._note_compiling)
        if self._looker.is_alive():
            self._looker.join()
        atexit.unregister(self.close)
        # Somebody may have put a hook on top of this one, and calls it.
        if sys.excepthook == self._note_exception:
            sys.excepthook = self._shown
        try:
            self._divide(time.monotonic())
            self._write_window(self._window)
            self._lines.write({"k": "end", "t": self._wall(time.monotonic()), "failed": self._failed})
            self._now.unlink(missing_ok=True)
        except OSError:
            pass  # the run's folder is full or gone, and the program has ended anyway
        self._lines.close()

    # Of the thread that trains -----------------------------------------------------------------------------------

    def on_start(self, event: Event) -> None:
        """Notes that the thread that trains is in an event; that is the thread that has dispatched a step last."""
        place = PLACES.get(event.kind)
        if place is None:
            self._note_other("start", event)
        elif threading.get_ident() == self._thread:  # threads that read ahead or write checkpoints hold nobody up
            self._inside.append(event)
            if place < self._places.place:
                self._places.go(place, event.start_s)
        elif place == STEP and event.kind == Kinds.DISPATCH.name:
            self._thread = threading.get_ident()
            self._inside[:] = [event]
            self._places.go(place, event.start_s)

    def on_end(self, event: Event) -> None:
        """Notes that the thread that trains has left an event, and what that has come to."""
        inside = self._inside
        if inside and inside[-1] is event:
            inside.pop()
        elif event in inside:
            inside.remove(event)
        else:
            self._note_other("end", event)
            return
        place = min([PLACES[one.kind] for one in inside]) if inside else OUTSIDE
        if place != self._places.place:
            self._places.go(place, event.start_s + (event.seconds or 0.0))
        if event.error is not None:
            return
        if event.kind == Kinds.DISPATCH.name:
            self._note_step(event)
        elif event.kind == Kinds.INPUT.name:
            self._iterator = event.subject
            self._examples += examples_in(event.result)
        elif event.kind == Kinds.CLOSURE.name:
            self._steps += 1
            self._blocks.append((event.seconds or 0.0, 1))
        elif event.kind in (Kinds.SAVE.name, Kinds.RESTORE.name):
            seconds = round(event.seconds or 0.0, 4)
            self._later.append({"k": event.kind, "t": self._wall(event.start_s), "s": seconds, "path": event.name})

    def _note_step(self, event: Event) -> None:
        program = cast("Program", event.subject)
        self._dispatched = program, event.result
        if not (program.donated or program.donated_leaves):
            return
        now = event.start_s + (event.seconds or 0.0)
        self._steps += 1
        self._block_steps += 1
        # The time of compiling is no time of a step.
        if self._steps == 1 or self._compiled:
            self._block, self._block_steps, self._compiled = now, 0, False
        elif self._block_steps == _BLOCK_STEPS or now - self._block >= _BLOCK_S:
            self._blocks.append((now - self._block, self._block_steps))
            self._block, self._block_steps = now, 0

    def _note_compiling(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED and threading.get_ident() == self._thread:
            self._compiled = True

    def _note_other(self, phase: str, event: Event) -> None:
        """Notes that an event begins or ends that is no place of the thread that trains."""
        if event.kind == Kinds.METRICS.name and phase == "start":
            self._note_metrics(*event.arguments)
        elif event.kind == Kinds.TASK.name and phase == "start":
            self._tasks[event.name] = event.subject
            if self._is_task:
                self._thread = threading.get_ident()
        elif event.kind == Kinds.TASK.name:
            self._tasks[event.name] = _Ended(
                self._tasks[event.name].figures()
            )  # the next window tells what has become of it
        elif event.kind == Kinds.WRITE.name and event.error is None:  # a checkpoint, in a thread of its own
            self._later.append({"k": f"write {phase}", "t": self._wall(time.monotonic()), "path": event.name})

    def _note_metrics(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            if name in self._metrics or len(self._metrics) < _MOST_METRICS:
                self._metrics[name] = value
        self._metrics["step"] = step

    def _note_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._shown(kind, error, trace)
        text = "".join(traceback.format_exception(kind, error, trace))[-_MOST_TEXT:]
        self._failed = True
        with suppress(OSError):  # it stands on the program's output
            self._lines.write({"k": "fail", "t": self._wall(time.monotonic()), "trace": text})

    # Of the thread that looks ------------------------------------------------------------------------------------

    def _wall(self, moment: float) -> float:
        """Seconds since 1970 of a moment of the monotonic clock, which nobody sets while the program runs."""
        return round(self._base + moment, 3)

    def _look(self) -> None:
        last = told = time.monotonic()
        pace, before = Pace(), (OUTSIDE, "other")
        while True:
            length = pace.pause_s()
            time.sleep(length)  # a third of the work of waiting for the event
            if self._stop.is_set():
                return
            now = time.monotonic()
            try:
                # What is seen began somewhere between the looks: each has half of the time. A thread that could not
                # run would have looked after its pause.
                gap = now - last >= _GAP_S
                found = self._places.place, self._bucket_of_gap() if gap else self._bucket()
                self._places.look(now)
                turn = last + (length if gap else now - last) / 2
                self._account(before, self._base + last, self._base + turn)
                self._account(found, self._base + turn, self._base + now)
                if now - told > _TELL_S:
                    told = now
                    self._tell(now)
            except OSError as error:
                sys.stderr.write(f"jaxtribute: the run is no longer recorded in {self._now.parent}: {error}\n")
                return
            pace.saw(found[1])
            last, before = now, found

    def _bucket_of_gap(self) -> str:
        """The part of a time in which this thread did not run: a call that holds Python up, or a stopped process."""
        return self._part() or "other"

    def _bucket(self) -> str:
        """The part of the time that this moment belongs to."""
        if self._again and not self._steps:
            return "recovery"
        if self._computing():
            return "step"
        part = self._part()
        if part is not None:
            return part
        if self._is_compiling():
            return "compile"
        return PARTS[self._places.place]

    def _part(self) -> str | None:
        place = self._places.place
        return PARTS[place] if place < STEP else None

    def _computing(self) -> bool:
        """True if the devices have not finished the last step."""
        dispatched = self._dispatched
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
        if self._dispatched is dispatched:
            self._dispatched = None
        return False

    def _is_compiling(self) -> bool:
        frame = sys._current_frames().get(self._thread or 0)  # pyright: ignore[reportPrivateUsage]
        while frame is not None:
            code = frame.f_code
            # Known by the code itself: a look goes through many frames, many times a second, and paths compare slowly.
            found = self._compiling.get(code)
            if found is None:
                found = self._compiling[code] = code.co_filename.endswith(_COMPILES)
            if found:
                return True
            frame = frame.f_back
        return False

    def _account(self, found: tuple[int, str], start: float, stop: float) -> None:
        """Adds a time to what was found in it, a place and a part, in one window or several."""
        while stop >= self._window.start + self._window.length:
            edge = self._window.start + self._window.length
            self._seen[found] = self._seen.get(found, 0.0) + max(0.0, edge - start)
            after = self._divide(edge - self._base)
            self._write_window(self._window)
            self._window, self._seen, self._before = self._new_window(edge), {}, after
            start = max(start, edge)
        self._seen[found] = self._seen.get(found, 0.0) + stop - start

    def _divide(self, moment: float) -> list[float]:
        """Divides the window's time until a moment among its parts; returns the seconds in each place until then."""
        after = self._places.at(moment)
        self._window.buckets = divided(self._seen, self._before, after)
        return after

    def _new_window(self, moment: float) -> Window:
        length = length_after(self._windows)
        return Window(moment // length * length, length, last=self._steps)

    def _fill(self, window: Window) -> None:
        """Moves what the thread that trains has noted into a window."""
        blocks, self._blocks = self._blocks, []
        for seconds, steps in blocks:
            window.add_steps(seconds / steps, steps)
        steps, examples = self._steps, self._examples
        window.steps += steps - self._told[0]
        window.examples += examples - self._told[1]
        window.last, self._told = steps, (steps, examples)
        metrics, self._metrics = self._metrics, {}
        window.metrics |= metrics

    def _write_window(self, window: Window) -> None:
        self._write_later()
        self._fill(window)
        self._windows += 1
        self._lines.write(window.record() | self._usage() | self._position() | self._figures())
        for name, task in self._tasks.copy().items():
            if isinstance(task, _Ended):
                self._tasks.pop(name, None)

    def _write_later(self) -> None:
        while self._later:
            self._lines.write(self._later.popleft())

    def _usage(self) -> dict[str, Json]:
        if not self._devices and self._steps:
            self._devices = jax.local_devices()  # a step has run, so this starts no backend
            self._lines.write({"k": "devices", "devices": list(map(str, self._devices))})
        now = time.monotonic()
        if now - self._used_at >= _USE_S:
            self._used_at, self._used = now, machine.usage(self._devices)
        return self._used

    def _position(self) -> dict[str, Json]:
        state = getattr(self._iterator, "_position", None)
        step = state.get("step") if isinstance(state, dict) else None
        return {} if step is None else {"pos": step}

    def _figures(self) -> dict[str, Json]:
        """Counts that the tasks of a cluster with parameter servers keep of themselves."""
        tasks = self._tasks.copy()
        return {"tasks": {name: task.figures() for name, task in tasks.items()}} if tasks else {}

    def _tell(self, now: float) -> None:
        """Replaces the small file that says what this worker does now."""
        self._write_later()
        self._divide(now)
        self._fill(self._window)
        inside = list(self._inside)
        bucket = self._bucket()
        waits = [event for event in inside if event.kind == Kinds.WAIT.name]
        first = inside[0] if inside else None
        if first is not None and first.kind == Kinds.CLOSURE.name and waits:
            first = waits[0]
        doing = "python" if first is None else first.kind
        if bucket == "compile":
            doing = "compile"
        elif doing == Kinds.DISPATCH.name or (first is None and bucket == "step"):
            doing = "step"
        record: dict[str, Json] = {
            "t": self._wall(now),
            "event": doing,
            "bucket": bucket,
            "since": None if first is None else self._wall(first.start_s),
            "for": first.name if first is not None and first.kind in _NAMED else "",
            "absent": list(waits[0].arguments) if waits else None,
            "where": located(sys._current_frames().get(self._thread or 0)),  # pyright: ignore[reportPrivateUsage]
            "steps": self._steps,
            "window": self._window.record() | self._usage() | self._position() | self._figures(),
        }
        write_now(self._now, record)

    def _keep_last_window(self) -> None:
        """Puts the last window of a program that was killed among the others."""
        told = read_now(self._now)
        window = None if told is None else told.get("window")
        if isinstance(window, dict):
            written = [record for record in Tail(self._path).new() if record.get("k") == "w"]
            if not written or written[-1].get("t") != window.get("t"):
                self._lines.write(window)
        self._now.unlink(missing_ok=True)


def _first_array(result: Foreign) -> Foreign:
    return next((leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)), None)
