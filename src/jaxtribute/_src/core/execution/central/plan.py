"""The stages of a program in two places, compiled, and the copies between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from operator import attrgetter, is_, not_
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from jaxtribute._src.core.collectives.summation import groups, pack, unpack
from jaxtribute._src.core.execution.central.placing import Stage, made_by, place
from jaxtribute._src.core.execution.interrupts import Guard
from jaxtribute._src.core.execution.nests import at
from jaxtribute._src.core.jaxprs.core import ClosedJaxpr, Literal, as_function, aval, opened
from jaxtribute._src.core.jaxprs.walking import piece, variables
from jaxtribute._src.core.types import Device, Leaf, Nest, Numeric
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute._src.core.values.policies.central import on_device
from jaxtribute._src.core.values.variable import Variable

PACKED_BYTES = 1 << 16
"""Values up to this size go up to the replicas in one buffer: above it, copying them costs more than it saves."""

_Key = tuple[Any, Any]
"""A value of the program in one place: on the mesh (True) or on the parameter device (False)."""
_OUTPUT, _PACKED = "output", "packed"
"""In place of a place: the number of an output of the last stage; an upload as that stage has packed it."""


def _keys(values: Sequence[Any], where: bool | str) -> list[_Key]:
    """The keys of several values in one place."""
    return [(value, where) for value in values]


class _Upload:
    """Central values that go up to the mesh together, at the start of each call.

    The last stage of a call has already packed what the next one sends; so long as nobody else writes a variable
    between, that is what goes up. What no call writes stays up.

    Args:
      sources: the inputs of the program that it carries.
      place: their places among the inputs.
      mesh: where they go.
    """

    def __init__(self, sources: Sequence[Any], places: Sequence[int], mesh: ReplicaMesh) -> None:
        self.sources, self.places = list(sources), list(places)
        self._mesh = mesh
        self._pack = jax.jit(pack) if len(sources) > 1 else None
        self._known: list[Any] = []
        self._packed: Any = None
        self._sent: Any = None

    @property
    def packed(self) -> bool:
        """True if it carries several values in one buffer."""
        return self._pack is not None

    def send(self, inputs: Sequence[Any]) -> Any:
        """The values on the mesh, in one buffer if they are several."""
        now = at(inputs, self.places)
        # By identity: a new array means that somebody else has written the variable since the last call.
        if len(self._known) != len(now) or not all(map(is_, now, self._known)):
            self.remember(now, self._pack(now) if self._pack is not None else now[0])
        if self._sent is None:
            self._sent = jax.device_put(self._packed, self._mesh.replicated)
        return self._sent

    def remember(self, arrays: list[Any], packed: Leaf) -> None:
        """Notes the variables' arrays and how they look packed."""
        self._known, self._packed, self._sent = arrays, packed, None


@dataclass(slots=True)
class _Step:
    """One compiled stage: what to move to its place first, what to call it with, and what its results are."""

    run: Callable[..., Sequence[Any]]
    on_mesh: bool
    moves: list[Any]
    inputs: list[Any]
    outputs: list[Any]


class Plan:
    """The stages of a program for one combination of shapes.

    Args:
      closed: the program; its inputs are the written variables, the others and the arguments.
      stages: its stages, parameter device and mesh in turn.
      central: for each input whether it lies on the parameter device.
      count: how many variables are written: the first outputs are their new values.
      tree: the structure of the other outputs.
      mesh: the devices of the replicas.
      device: the parameter device.
    """

    def __init__(
        self,
        closed: ClosedJaxpr,
        stages: Sequence[Stage],
        central: Sequence[bool],
        count: int,
        tree: Nest,
        mesh: ReplicaMesh,
        device: Device,
    ) -> None:
        self._closed, self._mesh, self._device = closed, mesh, device
        self._count, self._tree = count, tree
        jaxpr = opened(closed)
        self._inputs: list[_Key] = list(zip(jaxpr.invars, map(not_, central), strict=True))
        self._uploads = self._make_uploads(stages)
        self._known = set(self._inputs)
        for upload in self._uploads:
            self._known.update(_keys(upload.sources, True))
        # What comes down, or becomes a variable's value, must be whole on every device.
        self._whole = _taken(stages, on_mesh=False).union(variables(jaxpr.outvars[:count]))
        self._steps = [self._step(stage) for stage in stages[:-1] if stage.eqns]
        self._fresh: list[int] = []
        self._next: list[_Upload] = []
        self._steps.append(self._last_step(stages[-1]))
        wanted = [*central[:count], *[None] * tree.num_leaves]
        self._outputs = list(starmap(self._output, enumerate(wanted)))

    def __call__(self, donated: Sequence[Any], kept: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """The variables' new arrays, then the results."""
        inputs = (*donated, *kept, *leaves)
        values: dict[Any, Any] = dict(zip(self._inputs, inputs, strict=True))
        for upload in self._uploads:
            values[upload if upload.packed else (upload.sources[0], True)] = upload.send(inputs)
        for step in self._steps:
            for var in step.moves:
                values[var, step.on_mesh] = self._moved(values[var, not step.on_mesh], step.on_mesh)
            values.update(zip(step.outputs, step.run(*at(values, step.inputs)), strict=True))
        outputs = [values[key] if up is None else self._moved(values[key], up) for key, up in self._outputs]
        for upload in self._next:
            known = at(outputs, upload.places)
            upload.remember(known, values[upload, _PACKED] if upload.packed else known[0])
        return [outputs[: self._count], self._tree.unflatten(outputs[self._count :])]

    def _moved(self, value: Numeric, up: bool) -> Any:
        return jax.device_put(value, self._mesh.replicated) if up else on_device(value, self._device)

    def _make_uploads(self, stages: Sequence[Stage]) -> list[_Upload]:
        """Finds the central values that the mesh needs from the start, and groups those that travel together."""
        needed = _taken(stages, on_mesh=True)
        # Written variables go up in each step, the others once: in one buffer they would all go up in each step.
        written: dict[int, Any] = {}
        only_read: dict[int, Any] = {}
        for number, (var, on_mesh) in enumerate(self._inputs):
            if not on_mesh and var in needed:
                (written if number < self._count else only_read)[number] = var
        uploads: list[_Upload] = []
        for inputs in (written, only_read):
            places, sources = list(inputs), list(inputs.values())
            shapes: list[Any] = list(map(aval, sources))
            for group in groups(shapes, PACKED_BYTES):
                upload = _Upload(at(sources, group), at(places, group), self._mesh)
                uploads.append(upload)
        return uploads

    def _step(self, stage: Stage) -> _Step:
        """Compiles any stage but the last."""
        keys, moves, carried = self._arguments(stage)
        outputs = stage.outputs
        body = as_function(piece(self._closed, stage.inputs, stage.eqns, outputs))

        def run(*arguments: Nest) -> Sequence[Any]:
            values = dict(zip(keys, arguments, strict=True))
            for upload in carried:
                unpacked = unpack(values[upload], list(map(aval, upload.sources)))
                values.update(zip(_keys(upload.sources, True), unpacked, strict=True))
            return body(*at(values, _keys(stage.inputs, stage.on_mesh)))

        results = _keys(outputs, stage.on_mesh)
        self._known.update(results)
        shardings: Any = SingleDeviceSharding(self._device)
        if stage.on_mesh:
            shardings = [self._mesh.replicated if var in self._whole else None for var in outputs]
        jitted = jax.jit(run, out_shardings=shardings)
        return _Step(jitted, stage.on_mesh, moves, keys, results)

    def _arguments(self, stage: Stage) -> tuple[list[Any], list[Any], list[_Upload]]:
        """The keys of a stage's arguments, what must be moved there, and the uploads among them."""
        carriers = self._carriers() if stage.on_mesh else {}
        carried: dict[_Upload, None] = {}
        direct: list[_Key] = []
        moves: list[Any] = []
        for var in stage.inputs:
            if var in carriers:
                carried[carriers[var]] = None
                continue
            key = var, stage.on_mesh
            direct.append(key)
            # Moved once: from then on the value is known in both places.
            if key not in self._known:
                moves.append(var)
                self._known.add(key)
        return [*carried, *direct], moves, list(carried)

    def _carriers(self) -> dict[Any, _Upload]:
        """By value, the upload in whose buffer it goes up."""
        carriers: dict[Any, _Upload] = {}
        for upload in self._uploads:
            if upload.packed:
                carriers.update(dict.fromkeys(upload.sources, upload))
        return carriers

    def _last_step(self, stage: Stage) -> _Step:
        """Compiles the last stage: the new values, in the memory of the old ones, and the next call's uploads."""
        jaxpr = opened(self._closed)
        keys, moves, _ = self._arguments(stage)
        made = {*made_by(stage.eqns), *jaxpr.constvars}
        # An output that an earlier stage has made, or that is an input as it came, is taken from there.
        fresh = [i for i, atom in enumerate(jaxpr.outvars) if isinstance(atom, Literal) or atom in made]
        self._fresh = fresh
        self._next = [upload for upload in self._uploads if set(fresh).issuperset(upload.places)]
        packed = list(filter(attrgetter("packed"), self._next))
        body = as_function(piece(self._closed, stage.inputs, stage.eqns, at(jaxpr.outvars, fresh)))

        def run(*arguments: Nest) -> Sequence[Any]:
            results = body(*arguments)
            new = dict(zip(fresh, results, strict=True))
            return [*results, *(pack(at(new, upload.places)) for upload in packed)]

        sent = {self._inputs[i] for i in fresh if i < self._count}
        # Only the last stage may take over the old values' memory: earlier ones are not the last to read them.
        places = tuple(i for i, key in enumerate(keys) if key in sent)
        jitted = jax.jit(run, donate_argnums=places, out_shardings=SingleDeviceSharding(self._device))
        return _Step(jitted, False, moves, keys, [*_keys(fresh, _OUTPUT), *_keys(packed, _PACKED)])

    def _output(self, place: int, central: bool | None) -> tuple[Any, bool | None]:
        """Finds an output, and decides if it must be moved: up, down or not at all."""
        if place in self._fresh:
            key, on_mesh = (place, _OUTPUT), False
        else:
            var = opened(self._closed).outvars[place]
            on_mesh = (var, True) in self._known
            # A value that was moved is in both places. It is taken from where it is wanted, if it is there.
            if on_mesh and central and (var, False) in self._known:
                on_mesh = False
            key = (var, on_mesh)
        # Results lie where the replicas run, as those of every other strategy.
        wanted = True if central is None else not central
        return key, None if on_mesh == wanted else wanted


def _taken(stages: Sequence[Stage], *, on_mesh: bool) -> set[Any]:
    """The values that the stages in one of the two places take."""
    taken: set[Any] = set()
    for stage in stages:
        if stage.on_mesh == on_mesh:
            taken.update(stage.inputs)
    return taken


Body = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]


class CentralProgram:
    """Stands in for a `jax.jit` of `body`, and runs it in two places.

    The values of the variables that the replicas read go up, replicated; reduced values come down; the new values
    of the variables are computed once, on the parameter device, in the memory of the old ones.

    Args:
      body: a function of the written variables' arrays, the others' arrays and the arguments.
      donated: the variables that it writes.
      kept: the variables that it only reads.
      mesh: the devices of the replicas.
      parameter_device: the device of the central variables.
    """

    def __init__(
        self,
        body: Body,
        donated: Sequence[Variable],
        kept: Sequence[Variable],
        mesh: ReplicaMesh,
        parameter_device: Device,
    ) -> None:
        self._body, self._mesh, self._device = body, mesh, parameter_device
        self._central = [variable.policy.parameter_device is not None for variable in (*donated, *kept)]
        self._count = len(donated)
        self._plans: dict[Any, Plan] = {}

    def __call__(self, donated: Sequence[Any], kept: Sequence[Any], leaves: Sequence[Any], guard: Guard) -> list[Any]:
        """The variables' new arrays, then the results, as `body` gives them."""
        guard.tell()  # several programs, with Python between them
        key = tuple((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False), _is_split(leaf)) for leaf in leaves)
        # By shapes, as `jax.jit` would; and by what is split, for a split argument binds operations to the mesh.
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(donated, kept, leaves)
        return plan(donated, kept, leaves)

    def _plan(self, donated: Sequence[Any], kept: Sequence[Any], leaves: Sequence[Any]) -> Plan:
        closed, shapes = jax.make_jaxpr(self._body, return_shape=True)(donated, kept, leaves)
        tree = jax.tree.structure(shapes[-1])
        central = [*self._central, *[False] * len(leaves)]
        split = [*[False] * len(self._central), *map(_is_split, leaves)]
        state = [*self._central[: self._count], *[False] * tree.num_leaves]
        stages = place(closed.jaxpr, central, split, state)
        return Plan(closed, stages, central, self._count, tree, self._mesh, self._device)


def _is_split(leaf: Leaf) -> bool:
    return isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1 and not leaf.is_fully_replicated
