"""Recording a profile of some steps of a script."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import jax
import jax.profiler

from jaxtribute._src.addons.launcher.environment import TF_CONFIG, rank_of_this_process
from jaxtribute._src.addons.profiling.breakdown import Breakdown, break_down
from jaxtribute._src.addons.profiling.timeline import INPUT_MARK, WINDOW, read_timeline
from jaxtribute._src.addons.tools.user_scripts import STEPS_AND_INPUT, Finished, run_script, training_step
from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import Event, Observer, observe
from jaxtribute.extending import Kinds, Program

_SETTLE = 2
"""Steps that are recorded and not counted: starting a recording makes the first ones slow."""


class Recorder(Observer):
    """Lets `skip` steps pass, records `steps` and ends the script.

    Args:
      directory: where the profile is written.
      steps: how many steps are measured.
      skip: how many go before, among them those that compile.

    Attributes:
      directory: the same; of one of several workers a folder in it, once the recording has begun.
    """

    def __init__(self, directory: Path, steps: int, skip: int) -> None:
        self.directory = directory
        self._steps, self._skip = steps, skip
        self.seen = 0
        self._window: jax.profiler.TraceAnnotation | None = None
        self._waiting = threading.local()
        self.recording = False
        self.compiled = 0
        """Functions that were traced, and so compiled, within the steps that are measured."""

    def on_start(self, event: Event) -> None:
        """Starts the recording before the first step that is recorded; marks a wait for input."""
        if event.kind == Kinds.INPUT.name:
            if self._window is not None:
                # A mark belongs to the thread that sets it, and a program may draw in several.
                self._waiting.mark = jax.profiler.TraceAnnotation(INPUT_MARK)
                self._waiting.mark.__enter__()
        elif self.seen == self._skip and not self.recording and training_step(event) is not None:
            self._start()

    def on_end(self, event: Event) -> None:
        """Counts a step; begins and ends the window of those that are measured."""
        if event.kind == Kinds.TRACE.name:
            self.compiled += self._window is not None
            return
        if event.kind == Kinds.INPUT.name:
            mark = getattr(self._waiting, "mark", None)
            if mark is not None:
                self._waiting.mark = None
                mark.__exit__(None, None, None)
            return
        step = training_step(event)
        if step is None or event.error is not None:
            return
        self.seen += 1
        if self.seen == self._skip + _SETTLE:
            _wait(step.program, event.result)
            # The devices may be some steps behind: they catch up, so that the window holds its own steps alone.
            self._window = jax.profiler.TraceAnnotation(WINDOW)
            self._window.__enter__()
        if self.seen == self._skip + _SETTLE + self._steps and self._window is not None:
            _wait(step.program, event.result)
            self._window.__exit__(None, None, None)
            # Stopped here, as a `finally` of the script could still run for long, and be recorded.
            self.stop()
            raise Finished

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it would slow Python down, and so the steps
        options.host_tracer_level = 2
        # JAX names files after the machine, and those of two workers on one would be the same.
        if jax.process_count() > 1:
            self.directory /= f"worker-{jax.process_index()}"
        elif TF_CONFIG in os.environ:  # as of an island, which JAX takes for the only process
            self.directory /= f"worker-{rank_of_this_process()}"
        jax.profiler.start_trace(str(self.directory), create_perfetto_trace=True, profiler_options=options)
        self.recording = True

    def stop(self) -> None:
        """Ends the recording, if one is under way, and writes its files."""
        if self.recording:
            self.recording = False
            jax.profiler.stop_trace()


def record(
    script: Path, arguments: Sequence[str] = (), *, directory: Path, steps: int = 5, skip: int = 3
) -> tuple[Breakdown, Path]:
    """Runs a script until some of its steps are recorded.

    A step is a call of a `jd.function` that changes variables, or takes over arguments (`donate_argnums`). The script
    is ended after the last one.

    Args:
      script: a Python program.
      arguments: its arguments.
      directory: where the profile goes; of several workers each has a folder in it, such as `worker-1`.
      steps: how many steps are measured.
      skip: how many go before.

    Returns:
      Where the time went, and the directory of the files: `*.xplane.pb` for TensorBoard's profile plugin and XProf,
      `perfetto_trace.json.gz` for Perfetto.

    Raises:
      ArgumentError: no such script, a number below 1, or a script that ends before it has made enough steps.
      Exception: what the script raises.
    """
    if steps < 1 or skip < 1:
        raise ArgumentError(f"steps={steps}, skip={skip}: both must be at least 1. HINT: the first step compiles.")
    recorder = Recorder(directory, steps, skip)
    try:
        with observe(recorder, *STEPS_AND_INPUT, Kinds.TRACE.name):
            finished = run_script(script, arguments)
    finally:
        recorder.stop()
    if not finished:
        raise ArgumentError(
            f"{script} ended after {recorder.seen} steps, and {skip} + {_SETTLE} + {steps} are needed. A step is a "
            "call of a jd.function that changes variables. HINT: ask for fewer with --steps and --skip."
        )
    files = sorted(recorder.directory.glob("plugins/profile/*/*.xplane.pb"))
    return replace(break_down(read_timeline(files[-1]), steps), compiled=recorder.compiled), files[-1].parent


def _wait(program: Program, result: object) -> None:
    # A step may return nothing, and change variables only.
    jax.block_until_ready((result, list(map(attrgetter("stored"), program.donated))))
