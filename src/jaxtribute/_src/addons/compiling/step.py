"""`CompiledStep`: what the real compiler says of a training step."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

import jax

from jaxtribute import Variable
from jaxtribute._src.addons.compiling.topologies import Topology
from jaxtribute._src.addons.planning.inspection import Step
from jaxtribute._src.addons.planning.prediction import COMPUTE, MEMORY, collective_time
from jaxtribute._src.addons.tools.hlo.exchanges import Collective, collectives
from jaxtribute._src.addons.tools.hlo.schedule import Rates, Timing, timing
from jaxtribute._src.addons.tools.hlo.work import costs, open_loops
from jaxtribute._src.addons.tools.sizes import bytes_on_each
from jaxtribute.errors import ArgumentError, JaxtributeError
from jaxtribute.typing import Device, Foreign, Leaf

_ALIASES = re.compile(r"input_output_alias=\{ (?P<pairs>.*?) \}, ")
_ALIASED = re.compile(r"\{(?P<output>\d+)\}: \(\d+")
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED:\s*(?P<what>[^\n]*)")
_SIZES = re.compile(r"\((?P<needed>[\d.]+)(?P<unit>[KMG])\) exceeds available HBM \((?P<there>[\d.]+)G\)")
_HOST = re.compile(
    r" (?:outfeed|infeed|send|recv)\(|MoveToHost|MoveToDevice|S\(5\)[^\n]*? (?:copy|slice|dynamic-[\w-]*slice)-start\("
)
_KERNEL = re.compile(r'custom_call_target="tpu_custom_call"(?![^\n]*"cost_estimate")')
_SPLIT = (
    "HINT: split them: jd.FullyShardedStrategy(), or replicas of several devices (devices_per_replica=2, "
    'layout="auto"); or use 16-bit numbers, or more devices.'
)
_HINT = (
    'HINT: bound what the backward pass keeps: jd.value_and_grad(..., memory="auto"), or, for all losses and Keras, '
    'jd.config.set_memory_budget("auto"); use fewer examples on each device, 16-bit numbers, or a strategy that '
    "splits variables."
)
_KERNEL_S = 1.8e-6
"""Seconds that a kernel of a GPU takes at least: those of small steps took 1.1 to 1.9 us on an H100 (JAX 0.11)."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class DoesNotFitError(JaxtributeError, MemoryError):
    """A step needs more memory on a device than there is, as its compiler has found."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on the fullest device.

    Attributes:
      variables: trained variables that the step changes, as they are stored there.
      slots: the other state that it changes: optimizer slots, counters, statistics, arguments of `donate_argnums`.
      others: variables that it only reads, and all other arguments.
      padding: what the device's layout adds to all of those.
      results: results and new state that take memory of their own: what was not donated.
      scratch: activations, gathered values and whatever else lives within the step.
      code: the program.
    """

    variables: int
    slots: int
    others: int
    padding: int
    results: int
    scratch: int
    code: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.variables + self.slots + self.others + self.padding + self.results + self.scratch + self.code


@dataclass(frozen=True)
class CompiledStep:
    """A step as its compiler has made it; nothing has run.

    Attributes:
      topology: what it was compiled for.
      devices: those of its devices that the step runs on, in the program's order.
      replicas: how many replicas there are.
      batch: examples in the global batch, the same number on each replica; at least one on each.
      held: bytes on each device.
      state: bytes of the variables, and arguments of `donate_argnums`, that the step changes, on each device.
      donated: bytes of state and results whose memory is that of an argument, as the compiler counts them.
      copied: names of variables whose new value does not take over the memory of the old one.
      collectives: in the order of the program.
      host: how often the program exchanges data with the host.
      flops: floating-point operations of each device.
      traffic: bytes that operations of each device read and write.
      open_loops: loops whose number of turns depends on values: what they do counts once.
      seconds: how long tracing and compiling took.
      layout: the table of an automatic layout of the variables; empty if there is none.
      budget: what was chosen for budgets of memory; empty if there are none.
      step: the step itself.
      text: the compiled program.
    """

    topology: Topology
    devices: tuple[Device, ...] = field(repr=False)
    replicas: int
    batch: int
    held: Held
    state: int
    donated: int
    copied: tuple[str, ...]
    collectives: tuple[Collective, ...]
    host: int
    flops: float
    traffic: float
    open_loops: int
    seconds: float
    layout: str
    budget: str
    step: Step = field(repr=False)
    text: str = field(repr=False)

    def __str__(self) -> str:
        """Returns what the compiler says, in some lines, as `jaxtribute plan --topology` prints it."""
        from jaxtribute._src.addons.compiling.report import as_dict, text  # which reads steps

        return text(as_dict(self))

    @cached_property
    def timing(self) -> Timing:
        """The time of a step along the program's schedule; see `Rates` for what its parts are taken to need."""
        return self._timing(shortest=False)

    @cached_property
    def advice(self) -> tuple[str, ...]:
        """Changes that would make the step faster, and by how much at most, a line each."""
        from jaxtribute._src.addons.compiling.advice import advice  # which traces the step once more

        exchange = rates_of(self.topology, self.devices).exchange
        found = advice(self.step, self.topology.chip, self.timing, self.seconds, exchange)
        silent = len(_KERNEL.findall(self.text))
        if silent:
            found += (f"{silent} kernel(s) of Pallas tell no cost_estimate: only their bytes are counted.",)
        return found

    @property
    def shortest(self) -> Timing:
        """The time of a step in which conditions take their shorter branches, as where gradients are only added up."""
        return self._timing(shortest=True)

    def _timing(self, *, shortest: bool) -> Timing:
        found = timing(self.text, len(self.devices), rates_of(self.topology, self.devices), shortest=shortest)
        launch = self.topology.chip.launch
        found.step, found.compute = found.step + launch, found.compute + launch
        return found

    @property
    def compute(self) -> float:
        """Seconds of computing."""
        return self.timing.compute

    @property
    def estimate(self) -> float:
        """Seconds of a step: computing, and the collectives as far as nothing runs beside them."""
        return self.timing.step


def rates_of(topology: Topology, devices: Sequence[Device]) -> Rates:
    """The rates of each of a program's devices, with the time of a collective among them."""
    chip = topology.chip
    return Rates(
        clock=chip.clock,
        operations=COMPUTE * chip.half,
        kernels=COMPUTE * chip.half,
        traffic=MEMORY * chip.bandwidth,
        host=chip.host,
        launch=0.0 if chip.clock else _KERNEL_S,
        exchange=lambda one: collective_time(one, topology.among(one, devices)),
    )


def compile_step(step: Step, topology: Topology, rows: int | None = None) -> CompiledStep:
    """Compiles a step for the devices that its variables lie on.

    Args:
      step: the step, of a program on the topology's devices.
      topology: those devices.
      rows: examples on each replica; None for those of the batch.

    Raises:
      ArgumentError: the step's strategy is not on the topology.
      DoesNotFitError: it needs more memory than a device has.
    """
    devices = _devices(step, topology)
    rows = max(step.batch // step.replicas, 1) if rows is None else rows
    start = time.perf_counter()
    # Outside of what is caught: an error of the user's own function is theirs.
    lowered = step.lower(rows)
    try:
        compiled = lowered.compile(compiler_options=dict(topology.options))
    except jax.errors.JaxRuntimeError as error:
        raise _too_large(error, topology, step, rows) from error
    seconds = time.perf_counter() - start
    text = compiled.as_text()
    flops, traffic = costs(compiled)
    memory = compiled.memory_analysis()
    program, held = step.program, _held(step, rows, memory)
    if held.total > topology.chip.memory:  # the compiler of GPUs says nothing
        raise _over(held, topology, step, rows)
    # Donation is a permission. Which outputs did take over an input's memory stands in the program's first line.
    aliased = _aliased_outputs(text)
    return CompiledStep(
        topology=topology,
        devices=devices,
        replicas=step.replicas,
        batch=rows * step.replicas,
        held=held,
        state=_changed(step),
        donated=memory.alias_size_in_bytes,
        copied=tuple(v.name for place, v in enumerate(program.donated) if place not in aliased),
        collectives=collectives(text, len(devices)),
        host=len(_HOST.findall(text)),
        flops=flops,
        traffic=traffic,
        open_loops=open_loops(text),
        seconds=seconds,
        layout=step.layout,
        budget=step.budget,
        step=step,
        text=text,
    )


def _devices(step: Step, topology: Topology) -> tuple[Device, ...]:
    """The devices of a topology that a step runs on.

    Raises:
      ArgumentError: its variables are on others.
    """
    placed: set[Device] = set()
    # A variable of no strategy is brought to the program's devices before it runs; the others must lie there.
    for variable in (*step.program.donated, *step.program.kept):
        if variable.policy.mesh is not None or step.program.mesh is None:
            placed |= variable.stored.devices()
    if not placed <= set(topology.devices):
        raise ArgumentError(
            f"the step's variables are on {sorted(map(str, placed))[:4]}, not on {topology.name}. HINT: make them "
            "in the scope of a strategy such as jd.MirroredStrategy(), after compiling has begun."
        )
    if step.program.mesh is not None:
        return step.program.mesh.devices
    # One replica on several devices has no mesh of replicas.
    return tuple(device for device in topology.devices if device in placed) or topology.devices[:1]


def state_of(step: Step) -> int:
    """Bytes on each device that a step needs besides what its loss keeps: state, arguments and gradients."""
    program = step.program
    gradients = _shares(variable for variable in program.donated if variable.trainable)
    return _changed(step) + _shares(program.kept) + gradients


def _changed(step: Step) -> int:
    """Bytes on each device of the state that a step changes."""
    return _shares(step.program.donated) + sum(map(_share, step.state))


def _share(array: Leaf) -> int:
    """Bytes of an array on each device."""
    return bytes_on_each(array.shape, array.dtype, getattr(array, "sharding", None))


def _shares(variables: Iterable[Variable]) -> int:
    """Bytes of variables on each device, as they are stored."""
    return sum(_share(variable.stored) for variable in variables)


def _held(step: Step, rows: int, memory: Foreign) -> Held:
    program = step.program
    variables = _shares(variable for variable in program.donated if variable.trainable)
    slots = _changed(step) - variables
    others = _shares(program.kept) + sum(map(_share, step.resized(rows))) - sum(map(_share, step.state))
    return Held(
        variables=variables,
        slots=slots,
        others=others,
        # The compiler counts arguments with the padding of their tiles, the arrays' shapes are without.
        padding=max(memory.argument_size_in_bytes - variables - slots - others, 0),
        results=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        scratch=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
    )


def _aliased_outputs(text: str) -> set[int]:
    """The outputs of a compiled program that take over the memory of an input."""
    found = _ALIASES.search(text.partition("\n")[0])
    return {int(pair["output"]) for pair in _ALIASED.finditer(found["pairs"])} if found else set()


def _refusal(topology: Topology, step: Step, rows: int, what: str) -> DoesNotFitError:
    """The error of a program that needs more memory than there is, with what would help."""
    state = state_of(step)
    # However little a backward pass keeps, that is too much.
    alone = f" Variables, slots and gradients alone take {state / _UNITS['G']:.2f} GiB of each."
    more = f"{alone} {_SPLIT}" if state > topology.chip.memory else f" {_HINT}"
    return DoesNotFitError(f"a step of {rows * step.replicas:,} examples does not fit on {topology.name}: {what}{more}")


def _over(held: Held, topology: Topology, step: Step, rows: int) -> DoesNotFitError:
    """The error of a program that the compiler has made, and that needs more memory than there is."""
    parts = ", ".join(f"{key} {value / _UNITS['G']:.2f}" for key, value in asdict(held).items() if value)
    needed, there = held.total / _UNITS["G"], topology.chip.memory / _UNITS["G"]
    what = f"each device needs {needed:.2f} GiB ({parts}) and has {there:.2f}; {needed - there:.2f} GiB are missing."
    return _refusal(topology, step, rows, what)


def _too_large(error: Exception, topology: Topology, step: Step, rows: int) -> Exception:
    """The error of a program that does not fit, with the compiler's figures; any other error as it is."""
    found = _OUT_OF_MEMORY.search(str(error))
    if found is None:
        return error
    missing = ""
    sizes = _SIZES.search(str(error))
    if sizes is not None:
        needed = float(sizes["needed"]) * _UNITS[sizes["unit"]] / _UNITS["G"]
        missing = f" {needed - float(sizes['there']):.2f} GiB are missing, before what lies there between steps."
    return _refusal(topology, step, rows, found["what"] + missing)
