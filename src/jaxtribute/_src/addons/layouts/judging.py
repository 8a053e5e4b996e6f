"""The judge of layouts: the compiler, which says what a program moves and holds where variables lie so."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Sharding

from jaxtribute import Variable
from jaxtribute._src.addons.layouts.automatic import Candidate, Layout
from jaxtribute._src.addons.tools.hlo.exchanges import bytes_moved
from jaxtribute.extending import Capture, Policy, Programs, ReplicaMesh

# What is asked of the compiler is decided before it makes machine code: on CPU most of its time would go there.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def laid_out(policy: Policy, layout: Layout) -> Policy:
    """The policy with another layout, and cut among the replicas as it is."""
    # A copy, as the candidate is only tried, and the variable keeps its policy meanwhile.
    made = copy.copy(policy)
    made.layout = layout
    return made


class Judge:
    """Compiles a traced program for layouts of its variables; nothing runs.

    Args:
      capture: the traced program.
      leaves: the arrays of its arguments.
      mesh: the replicas' devices.
    """

    def __init__(self, capture: Capture, leaves: Sequence[Any], mesh: ReplicaMesh) -> None:
        self._capture, self._mesh, self._leaves = capture, mesh, leaves
        self.known: dict[Any, Candidate] = {}

    def __call__(self, name: str, layouts: Mapping[Variable, Layout]) -> Candidate:
        """Compiles the program with some variables laid out again, the others as they are.

        Args:
          name: names the candidate.
          layouts: the layouts of these variables.
        """
        key = tuple((id(variable), layout) for variable, layout in layouts.items())
        if key not in self.known:
            self.known[key] = self._compiled(name, layouts)
        # Two guesses may come to the same layouts: what is known goes by these, and not by the name.
        return self.known[key]._replace(name=name)

    def _compiled(self, name: str, layouts: Mapping[Variable, Layout]) -> Candidate:
        program, executor = self._capture.closed, self._capture.executor
        variables: list[Variable] = list(executor.inputs)

        def where(variable: Variable) -> Sharding:
            policy = variable.policy
            if variable in layouts:
                policy = laid_out(policy, layouts[variable])
            return policy.where or self._mesh.replicated

        places = [*map(self._place_of_argument, self._leaves), *map(where, variables)]
        atoms = Programs.opened(program).invars
        # Behind arguments and variables come the batches that the function draws by itself.
        places += [self._place_of_batch(Programs.aval(atom).shape) for atom in atoms[len(places) :]]
        inputs = [
            jax.ShapeDtypeStruct(Programs.aval(atom).shape, Programs.aval(atom).dtype, sharding=place)
            for atom, place in zip(atoms, places, strict=True)
        ]
        written: list[Variable] = list(executor.written)
        results = len(Programs.opened(program).outvars) - len(written)
        # Results may lie as the compiler likes; new values of variables must lie as the old ones.
        outputs = [*[None] * results, *map(where, written)]
        first = len(self._leaves)
        # As the real step donates, else the old values would count beside the new ones.
        donated = [first + place for place, variable in enumerate(variables) if variable in executor.written]
        step = jax.jit(Programs.as_function(program), donate_argnums=donated, out_shardings=outputs)
        on_cpu = self._mesh.devices[0].platform == "cpu"
        try:
            compiled = step.lower(*inputs).compile(compiler_options=_QUICK if on_cpu else None)
        except jax.errors.JaxRuntimeError as error:
            # What does not fit is the worst of the candidates, and no reason to end the search.
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return Candidate(name, math.inf, math.inf)
        # Of a program that the compiler does not show nobody knows what it moves, which counts as the worst.
        text = compiled.as_text()
        sent = math.inf if text is None else bytes_moved(text, len(self._mesh.devices))
        return Candidate(name, sent, _memory(compiled))

    def _place_of_argument(self, leaf: Any) -> Sharding:
        sharding = getattr(leaf, "sharding", None)
        whole = self._mesh.replicated
        return sharding if sharding is not None and sharding.device_set == whole.device_set else whole

    def _place_of_batch(self, shape: tuple[int, ...]) -> Sharding:
        # Only what divides evenly can be placed so: another batch is the same on all devices here.
        divided = shape and shape[0] % self._mesh.size == 0
        return self._mesh.split if divided else self._mesh.replicated


def _memory(compiled: Any) -> int:
    """Bytes on each device: arguments, results that take none of their memory, and what lives within the step."""
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return held + memory.temp_size_in_bytes
