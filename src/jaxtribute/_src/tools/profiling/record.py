"""Recording a profile of some steps of a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxtribute._src.execution.program import Program
from jaxtribute._src.tools.profiling.breakdown import Breakdown, break_down
from jaxtribute._src.tools.profiling.timeline import INPUT, WINDOW, read_timeline
from jaxtribute._src.tools.profiling.watch import Finished, run_script, watched
from jaxtribute.errors import ArgumentError

_SETTLE = 2
"""Steps that are recorded and not counted: starting a recording makes the first ones slow."""


class Recorder:
    """Lets `skip` steps pass, records `steps` and ends the script.

    Args:
      directory: where the profile is written.
      steps: how many steps are measured.
      skip: how many go before, among them those that compile.
    """

    def __init__(self, directory: Path, steps: int, skip: int) -> None:
        self._directory = directory
        self._steps, self._skip = steps, skip
        self.seen = 0
        self.draws = 0
        """Batches drawn in the measured steps."""
        self._window: Any = None
        self.recording = False

    def step(self, program: Program, leaves: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Runs a step, and starts and ends the recording around those that count."""
        if self.seen == self._skip:
            self._start()
        result = call()
        self.seen += 1
        if self.seen == self._skip + _SETTLE:
            _wait(program, result)
            self._window = jax.profiler.TraceAnnotation(WINDOW)
            self._window.__enter__()
        if self.seen == self._skip + _SETTLE + self._steps:
            _wait(program, result)
            self._window.__exit__(None, None, None)
            self.stop()
            raise Finished
        return result

    def draw(self, call: Callable[[], Any]) -> Any:
        """Takes a batch, and marks how long that took."""
        if self._window is None:
            return call()
        self.draws += 1
        with jax.profiler.TraceAnnotation(INPUT):
            return call()

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it would slow Python down, and so the steps
        options.host_tracer_level = 2
        jax.profiler.start_trace(str(self._directory), create_perfetto_trace=True, profiler_options=options)
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
      directory: where the profile goes.
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
        with watched(recorder):
            finished = run_script(script, arguments)
    finally:
        recorder.stop()
    if not finished:
        raise ArgumentError(
            f"{script} ended after {recorder.seen} steps, and {skip} + {_SETTLE} + {steps} are needed. A step is a "
            "call of a jd.function that changes variables. HINT: ask for fewer with --steps and --skip."
        )
    files = sorted(directory.glob("plugins/profile/*/*.xplane.pb"))
    return break_down(read_timeline(files[-1]), steps), files[-1].parent


def _wait(program: Program, result: Any) -> None:
    jax.block_until_ready((result, [variable.stored for variable in program.donated]))
