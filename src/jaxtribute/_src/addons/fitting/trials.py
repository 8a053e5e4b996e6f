"""`Trials`: candidates of a script, each compiled; nothing runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import jaxtribute as jd
from jaxtribute._src.addons.compiling.step import CompiledStep, DoesNotFitError, compile_step, state_of
from jaxtribute._src.addons.compiling.topologies import Topology
from jaxtribute._src.addons.fitting.candidates import TOO_LARGE, Candidate, Outcome
from jaxtribute._src.addons.fitting.exchanging import Exchanged, exchanging
from jaxtribute._src.addons.planning.inspection import Step, look_at_script
from jaxtribute._src.addons.tools.hlo.schedule import Timing
from jaxtribute._src.addons.tools.user_scripts import modules_beside, with_devices
from jaxtribute.errors import ArgumentError, JaxtributeError
from jaxtribute.experimental import AutomaticLayout
from jaxtribute.extending import described_devices

_LAYOUTS = 3
"""Programs that are compiled at most to choose a layout of a group of devices."""


class Trials:
    """Runs a script up to its first step with one strategy after the other, and compiles that step.

    Args:
      script: a Python program that trains.
      arguments: its arguments; `{devices}` becomes the number of devices.
      target: the devices.

    Attributes:
      optimizes: False if the script is known to have no `jd.Optimizer`, whose arguments could be others.
    """

    def __init__(self, script: Path, arguments: Sequence[str], target: Topology) -> None:
        self._script, self._target = script, target
        self._arguments = with_devices(arguments, len(target.devices))
        self._layouts: dict[tuple[str, int], dict[str, Any]] = {}
        self._tried = 0  # programs that were compiled for the last candidate
        self.optimizes = True

    def batch(self) -> int:
        """Examples in the script's own global batch.

        Raises:
          ArgumentError: the script makes no strategy that another one can stand for, or no step.
        """
        made, (trains, batch) = self._run(Candidate("MirroredStrategy", 1), 0, lambda step: (step.trains, step.batch))
        if not made.strategies:
            raise ArgumentError(
                f"{self._script} makes no strategy in whose place another one could train. HINT: make one of "
                "jd.MirroredStrategy(), jd.MultiWorkerMirroredStrategy(), jd.FullyShardedStrategy(), jd.TPUStrategy() "
                "or jd.experimental.Automatic()."
            )
        if not trains:
            raise ArgumentError(
                f"{self._script} trains nothing before it ends or needs a value, and nothing runs here. HINT: where "
                "JAXTRIBUTE_SEARCHING stands in the environment, let it begin with a step."
            )
        self.optimizes = bool(made.optimizers)
        return max(batch, 1)

    def __call__(self, candidate: Candidate, most: int) -> Outcome:
        """Compiles the script's step under a candidate.

        Args:
          candidate: the way of training.
          most: programs that may be compiled for it.
        """
        rows, held, self._tried = candidate.rows(len(self._target.devices)), 0, 1

        def look(step: Step) -> CompiledStep:
            nonlocal held
            held = state_of(step)
            return compile_step(step, self._target, rows)

        try:
            made, found = self._run(candidate, min(most - 1, _LAYOUTS), look)
        except DoesNotFitError as error:
            return self._refused(candidate, rows, f"{TOO_LARGE}: {_first(error)}", held)
        except JaxtributeError as error:
            return self._refused(candidate, rows, _first(error), held)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a user's program, under a strategy not its own
            return self._refused(candidate, rows, f"{type(error).__name__}: {_first(error)}", held)
        if candidate.accumulate > 1 and not made.optimizers:
            reason = "the script has no jd.Optimizer, whose gradients could be added up"
            return self._refused(candidate, rows, reason, held)
        return self._outcome(candidate, rows, held, made, found)

    def _refused(self, candidate: Candidate, rows: int, refusal: str, held: int) -> Outcome:
        return Outcome(candidate, rows, refusal, held=held, compiled=self._tried)

    def _outcome(self, one: Candidate, rows: int, held: int, made: Exchanged, found: CompiledStep) -> Outcome:
        timing = Timing()
        timing.add(found.timing, 1)
        if one.accumulate > 1:  # all calls but the last only add their gradients up
            timing.add(found.shortest, one.accumulate - 1)
        waits: dict[str, float] = {}
        for (kind, among), seconds in timing.waits.items():
            waits[f"{kind} among {among}"] = seconds
        return Outcome(
            candidate=one,
            rows=rows,
            memory=found.held.total,
            held=held,
            seconds=timing.step,
            compute=timing.compute,
            waits=waits,
            compiled=self._tried,
            layout=self._layout_of(one) or {},
            own=made.own,
            calls=made.calls,
            sliced=made.sliced,
            topology=self._target.name,
        )

    def _run(self, candidate: Candidate, tries: int, look: Any) -> tuple[Exchanged, Any]:
        known = self._layout_of(candidate)
        layout = None if known is None else jd.LayoutMap({key: tuple(axes) for key, axes in known.items()})
        before = set(sys.modules)
        try:
            with described_devices(self._target.devices), exchanging(candidate, layout, tries) as made:
                try:
                    return made, look_at_script(self._script, self._arguments, look)
                finally:
                    self._remember(candidate, made)
        finally:
            self._forget(before)

    def _remember(self, one: Candidate, made: Exchanged) -> None:
        """Keeps a layout that was chosen, also for what then did not fit: a choice takes several programs.

        If one fits it holds for all strategies, as the devices of a replica share the work alike.
        """
        for strategy in made.strategies:
            layout = strategy.extended.layouts
            if isinstance(layout, AutomaticLayout) and layout.tried:
                self._tried += len(layout.tried)
                if layout.shared:
                    continue  # names do not say how the variables lie, so each run chooses again
                fits = min(each.memory for each in layout.tried) < math.inf
                for_whom = "" if fits else one.strategy
                self._layouts[for_whom, one.per_replica] = {key: list(axes) for key, axes in layout.items()}

    def _layout_of(self, one: Candidate) -> dict[str, Any] | None:
        """The layout that was chosen for the devices of a replica; None if there is none yet."""
        return self._layouts.get(("", one.per_replica)) or self._layouts.get((one.strategy, one.per_replica))

    def _forget(self, before: set[str]) -> None:
        """Takes back what one run of the script leaves for the next: its own modules, names, and programs."""
        # Modules beside the script may make a strategy as they are imported.
        for name in set(modules_beside(self._script)) - before:
            del sys.modules[name]
        keras: Any = sys.modules.get("keras")
        if keras is not None:
            keras.utils.clear_session()  # else a second model's layers have other names
        jax.clear_caches()


def _first(error: BaseException) -> str:
    """The first sentence of an error."""
    text = str(error).strip().split("\n")[0].partition(" HINT:")[0]
    return text if len(text) <= 300 else text[:300] + "..."
