"""Looking at a compiled step: its operations, bytes, memory and collectives."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.planning.cost import Line, StepCost
from jaxtribute._src.addons.planning.holding import holdings
from jaxtribute._src.addons.planning.probes import Wanted
from jaxtribute._src.addons.planning.products import products
from jaxtribute._src.addons.tools.hlo.exchanges import collectives
from jaxtribute._src.addons.tools.hlo.work import costs, passes
from jaxtribute._src.addons.tools.user_scripts import STEPS_AND_INPUT, Finished, run_script
from jaxtribute.errors import ArgumentError, DeviceError, JaxtributeError
from jaxtribute.experimental import AutomaticLayout, Event, Observer, observe
from jaxtribute.extending import Jaxpr, Kinds, Program, Programs
from jaxtribute.typing import Foreign, Leaf, Nest

_HALF = re.compile(r"stablehlo\.(?:dot_general|convolution|dot)\b.*x(?:bf16|f16)>")
# Batches are known by identity, and iterators draw ahead: the step's own is among the last few.
_RECENT = 64
_BENT = 1.25
"""Times the operations that a straight line tells of a larger step, from which on they do not follow one."""


class Step:
    """A step that is about to run: its program, its arguments, and which of these are examples.

    Attributes:
      program: what runs.
      leaves: the arrays of its arguments.
      places: which of them hold one row an example.
      state: the leaves whose memory it takes over (`donate_argnums`), such as parameters in no variable.
      batch: how many examples those are.
      budget: what was chosen for budgets of memory, a line for each loss; empty if there are none.
    """

    def __init__(self, program: Program, leaves: Sequence[Any], drawn: Sequence[Any], budget: str = "") -> None:
        self.program, self.leaves, self.budget = program, list(leaves), budget
        self.state = [self.leaves[place] for place in sorted(program.donated_leaves)]
        self.replicas = program.mesh.size if program.mesh is not None else 1
        # A program of one replica has no mesh; its variables know the devices that they lie on.
        meshes = [v.policy.mesh for v in (*program.donated, *program.kept) if v.policy.mesh is not None]
        self.per_replica = max((mesh.group_size for mesh in meshes), default=1)
        rows = _rows(self.leaves, drawn, program.donated_leaves)
        self.places = tuple(rows)
        self.batch = next(iter(rows.values()), 0)

    def resized(self, rows: int) -> list[Any]:
        """The shapes of the arguments with `rows` examples for each replica."""
        shapes = list(self.leaves)
        for place in self.places:
            leaf = self.leaves[place]
            whole = (rows * self.replicas, *leaf.shape[1:])
            shapes[place] = jax.ShapeDtypeStruct(whole, leaf.dtype, sharding=getattr(leaf, "sharding", None))
        return shapes

    @property
    def trains(self) -> bool:
        """False if it changes nothing, as an evaluation."""
        return bool(self.program.donated or self.state)

    @property
    def layout(self) -> str:
        """The table of the layouts that were chosen from the program, with reasons; empty without an automatic one."""
        variables = (*self.program.donated, *self.program.kept)
        tables: list[str] = []
        # Each strategy once, in the order of the variables.
        for strategy in dict.fromkeys(variable.distribute_strategy for variable in variables):
            chosen = strategy.extended.layouts
            if isinstance(chosen, AutomaticLayout) and chosen:
                tables.append(str(chosen))
        return "\n".join(tables)

    def lower(self, rows: int) -> Any:
        """The program lowered for `rows` examples on each replica.

        Raises:
          ArgumentError: the step is not one program of XLA's.
        """
        if not hasattr(self.program.jitted, "lower"):
            raise ArgumentError(
                f"the step is made of several programs ({type(self.program.jitted).__name__}) and cannot be planned. "
                "HINT: plan it under MirroredStrategy; CentralStorageStrategy moves variables between its programs."
            )
        return self.program.lower(self.resized(rows))

    def traced(self) -> Jaxpr:
        """The program as JAX has traced it, without what nothing uses: gradients of which factors are gathered."""

        def shapes(arrays: Iterable[Any]) -> list[jax.ShapeDtypeStruct]:
            return [jax.ShapeDtypeStruct(np.shape(array), array.dtype) for array in arrays]

        program, gifts = self.program, self.program.donated_leaves
        rest = [leaf for place, leaf in enumerate(self.leaves) if place not in gifts]
        # Of devices that are only described the program is a stand-in around the function that JAX has made.
        jitted = getattr(program.jitted, "jitted", program.jitted)
        state = [[variable.stored for variable in variables] for variables in (program.donated, program.kept)]
        whole = jax.make_jaxpr(jitted)(*map(shapes, (*state, rest)), None, shapes(self.state))
        used, _ = Programs.pruned(whole, Programs.opened(whole).outvars)
        return Programs.opened(used)

    def cost(self, name: str, most: int = 0) -> StepCost:
        """Cost of the step, seen at two sizes of the batch to tell what is fixed.

        Args:
          name: where the step was found.
          most: a global batch that is asked for; its memory on one device is compiled as well.
        """
        rows = max(self.batch // self.replicas, 1)
        fewer = max(rows // 2, 1)
        # At two batch sizes: what is equal in both, such as the update of the weights, is the fixed part.
        lowered = self.lower(rows)
        compiled = lowered.compile()
        seen, devices = [_quantities(compiled)], self.replicas * self.per_replica
        sent = found = collectives(compiled.as_text(), devices)
        exact = fewer < rows
        if exact:
            try:
                smaller = self.lower(fewer).compile()
                seen.append(_quantities(smaller))
                sent = collectives(smaller.as_text(), devices)
            except JaxtributeError:
                raise
            except Exception:  # noqa: BLE001  # whatever a user's function raises for a shape that it does not expect
                exact = False
        low = seen[1] if exact else (0.0, 0.0, 0.0)
        lines = [Line.through(fewer if exact else 0, a, rows, b) for a, b in zip(low, seen[0], strict=True)]
        larger = self._larger(max(most, self.batch), rows) if exact else None
        cost = StepCost(
            name=name,
            batch=self.batch or self.replicas,
            replicas=self.replicas,
            flops=lines[0],
            traffic=lines[1],
            memory=lines[2],
            collectives=found,
            parameters=sum(_on_a_device(v) for v in self.program.donated if v.trainable),
            # Before XLA has compiled it: on CPU that computes 16-bit products in 32 bits.
            half=_HALF.search(lowered.as_text()) is not None,
            exact=exact,
            layout=self.layout,
            budget=self.budget,
            state=holdings((*self.program.donated, *self.program.kept)),
            per_replica=self.per_replica,
            most=None if larger is None else (larger[0], larger[1][2]),
        )
        bends = larger is not None and larger[1][0] > _BENT * cost.flops.at(larger[0])
        # Gradients and sums are as large for any number of rows: what grows with them is made of rows.
        grows = replace(cost, collectives=sent).sent != cost.sent
        return replace(cost, mixes=bends or grows)

    def _larger(self, many: int, rows: int) -> tuple[int, tuple[float, float, float]] | None:
        """A step of `many` examples on each device, if those are more than `rows`, and its quantities."""
        if many <= rows:
            return None
        try:
            return many, _quantities(self.lower(many).compile())
        except JaxtributeError:
            raise
        except Exception:  # noqa: BLE001  # as above
            return None

    def wanted(self) -> Wanted:
        """Parts of the step on each device."""
        program = self.program
        compiled = self.lower(max(self.batch // self.replicas, 1)).compile().as_text()
        return Wanted(
            arrays=len(program.donated) + len(program.kept) + len(self.leaves),
            products=products(self.traced()),
            passes=passes(compiled),
            collectives=collectives(compiled, self.replicas) if self.replicas > 1 else (),
        )


def _on_a_device(variable: Variable) -> int:
    """Bytes of a variable on each device of a replica, which its layout may split it over."""
    mesh, split = variable.policy.mesh, 1
    for names in variable.policy.layout:
        for name in names if isinstance(names, tuple) else (names,):
            split *= mesh.group.get(name, 1) if mesh is not None and name is not None else 1
    return variable.size * variable.dtype.itemsize // split


def _rows(leaves: Sequence[Any], drawn: Sequence[Any], state: Container[int]) -> dict[int, int]:
    """The leaves that hold examples, with their numbers of rows: those drawn from a dataset, or split, or alike.

    Args:
      leaves: the arguments' arrays.
      drawn: what was drawn from datasets.
      state: places of leaves that hold no examples.
    """
    # An example is where a batch is, so arrays are compared by identity: two may hold the same numbers.
    ids = set(map(id, drawn))
    counts: dict[int, int] = {}
    found: dict[int, int] = {}
    split: dict[int, int] = {}
    for place, leaf in enumerate(leaves):
        if getattr(leaf, "ndim", 0) and place not in state:
            counts[place] = leaf.shape[0]
            if id(leaf) in ids:
                found[place] = leaf.shape[0]
            if not _replicated(leaf):
                split[place] = leaf.shape[0]
    # Best evidence first: drawn from a dataset, split over the replicas, as many rows as the first argument.
    if found or split or not counts:
        return found or split
    first = next(iter(counts.values()))
    return {place: count for place, count in counts.items() if count == first}


def _replicated(leaf: Leaf) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return sharding is None or sharding.is_fully_replicated


def _quantities(compiled: Foreign) -> tuple[float, float, float]:
    """Floating-point operations, bytes accessed and bytes of memory on one device."""
    operations, traffic = costs(compiled)
    memory = compiled.memory_analysis()
    # An output that takes over an argument's memory is counted once.
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return operations, traffic, float(held + memory.temp_size_in_bytes)


class Looker(Observer):
    """An observer that looks at one step before it runs.

    Args:
      look: is given the step; what it returns is kept in `found`.
      stop: True to end the script there.

    Attributes:
      found: what `look` returned; None before the first step.
    """

    def __init__(self, look: Callable[[Step], Any], *, stop: bool) -> None:
        self._look, self._stop = look, stop
        self._drawn: deque[Any] = deque(maxlen=_RECENT)
        self._budgets: dict[str, None] = {}
        self._evaluation: Step | None = None
        self.found: Any = None

    def on_start(self, event: Event) -> None:
        """Looks at the first step."""
        if event.kind != Kinds.DISPATCH.name or not isinstance(event.subject, Program) or self.found is not None:
            return
        step = Step(event.subject, event.arguments[0], list(self._drawn), "\n".join(self._budgets))
        if step.trains:
            self.found = self._look(step)
            if self._stop:
                raise Finished
        # What only reads can be looked at when it is known that no training follows.
        elif self._stop and self._evaluation is None and step.batch:
            self._evaluation = step

    def end(self) -> None:
        """Looks at the first evaluation, if the script made no step."""
        if self.found is None and self._evaluation is not None:
            self.found = self._look(self._evaluation)

    def on_end(self, event: Event) -> None:
        """Remembers what was drawn, to know it among the arguments of a step."""
        if event.kind == Kinds.INPUT.name:
            self._drawn.extend(jax.tree.leaves(event.result))
        elif event.kind == Kinds.BUDGET.name and event.result is not None:
            # Each once: a loss may be traced several times.
            self._budgets[str(event.result)] = None


def look_at_script(script: Path, arguments: Sequence[str], look: Callable[[Step], Any]) -> Any:
    """Runs a script up to its first step, gives that to `look`, and ends the script there.

    Of a script that trains nothing, or reads a value before that where nothing runs, it is the first evaluation.

    Raises:
      ArgumentError: there is no such script, or it makes no step.
      Exception: what the script raises.
    """
    looker = Looker(look, stop=True)
    with observe(looker, *STEPS_AND_INPUT, Kinds.BUDGET.name):
        try:
            run_script(script, arguments)
        except DeviceError:
            looker.end()
            if looker.found is None:
                raise
    looker.end()
    if looker.found is None:
        raise ArgumentError(
            f"{script} ended without a step. HINT: a step is a call of a jd.function that changes variables."
        )
    return looker.found


def cost_of(step: Callable[..., Any], *args: Nest, **kwargs: Nest) -> StepCost:
    """Cost of a step on each device; the step is called once, and its changes of variables are kept.

    Args:
      step: a `jd.function` that changes variables.
      args: what it is called with, such as a batch of a distributed dataset.
      kwargs: likewise.

    Raises:
      ArgumentError: it changes no variables, or is not one program of XLA's.
    """
    name = getattr(step, "__name__", "step")
    looker = Looker(lambda found: found.cost(name), stop=False)
    with observe(looker, *STEPS_AND_INPUT, Kinds.BUDGET.name):
        step(*args, **kwargs)
    if looker.found is None:
        raise ArgumentError(
            f"{name} ran no compiled program that changes variables. HINT: decorate it by @jd.function."
        )
    return looker.found
