"""The models of `benchmarks.fitted` by hand: `jax.jit`, `NamedSharding` and donated state, laid out in seven ways.

    python -m benchmarks.fitted_by_hand [--kind mlp] [--topology v5e:4x4] [--fitted FILE ...] [--json FILE]

Compiles, and runs nothing; the time of each step is predicted as that of the library's is. Needs the compilers of the
topologies (`make compilers`). With what `benchmarks.fitted --json` wrote, its first choice stands beside the best way.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

from benchmarks.fitted import DEADLINE_S, SCRIPT, arguments_of, told
from jaxtribute._src.addons.compiling.step import rates_of
from jaxtribute._src.addons.compiling.topologies import ENVIRONMENT, Topology, topology_named
from jaxtribute._src.addons.tools.hlo.schedule import timing
from jaxtribute._src.addons.tools.user_scripts import run_module

LARGE_BYTES = 1 << 16
"""Size of arrays that are split."""
AXIS = "devices"
WHOLE = PartitionSpec()
Place: TypeAlias = Callable[[Any], PartitionSpec]
"""Gives the sharding of an array."""


class Ways:
    """Where a careful user puts arrays on some devices.

    Args:
      devices: how many there are.
      shapes: those of the parameters, in the order of the layers.
    """

    def __init__(self, devices: int, shapes: Iterable[tuple[int, ...]]) -> None:
        self._devices = devices
        self._turns: dict[tuple[int, ...], int] = {}
        for shape in shapes:
            if len(shape) > 1:
                self._turns.setdefault(shape, len(self._turns))

    def all(self) -> Iterator[tuple[str, Place, Place, bool]]:
        """Gives names, the places of parameters and of slots, and whether the batch is split."""
        first, last, turns = self._by(lambda axes: axes[0]), self._by(lambda axes: axes[-1]), self._in_turn
        yield "whole", _whole, _whole, True
        yield "slots in slices", _whole, last, True
        for name, place in (("first axis", first), ("last axis", last)):
            yield f"{name}, batch split", place, place, True
            yield f"{name}, batch whole", place, place, False
        yield "last and first axis in turn, batch whole", turns, turns, False

    def _by(self, choose: Callable[[list[int]], int]) -> Place:
        """Splits large arrays along the axis that is chosen of those that can be divided."""

        def place(array: Any) -> PartitionSpec:
            axes = [axis for axis, size in enumerate(array.shape) if size and size % self._devices == 0]
            if not axes or np.prod(array.shape) * 4 < LARGE_BYTES:
                return WHOLE
            return PartitionSpec(*[None] * choose(axes), AXIS)

        return place

    def _in_turn(self, array: Any) -> PartitionSpec:
        """Splits the columns of one matrix and the rows of the next, as Megatron does; the same shapes alike."""
        columns = self._turns.get(array.shape, 0) % 2 == 0
        return self._by(lambda axes: axes[-1] if columns else axes[0])(array)


def _whole(_: Any) -> PartitionSpec:
    return WHOLE


@dataclass(frozen=True)
class Step:
    """A step by hand.

    Attributes:
      call: gives, for the three nests and the arrays of a batch, the nests anew and the loss.
      params: shapes of what is trained.
      slots: shapes of the optimizer's state.
      others: shapes of what else changes.
      data: shapes of the batch.
      order: shapes of what is trained, in the order of the layers.
    """

    call: Callable[..., Any]
    params: Any
    slots: Any
    others: Any
    data: Any
    order: Sequence[tuple[int, ...]]


def _of_losses(losses: Callable[..., Any], params: Any, data: Any, order: Sequence[tuple[int, ...]] = ()) -> Step:
    """The step for what gives each example's loss."""
    transform = optax.adamw(1e-3)

    def call(params: Any, slots: Any, others: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda params: losses(params, *data).mean())(params)
        updates, slots = transform.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, others, value

    order = order or [one.shape for one in jax.tree.leaves(params)]
    return Step(call, params, jax.eval_shape(transform.init, params), (), data, order)


def _of_nnx(make: Callable[[], Any], losses: Callable[..., Any], data: Any) -> Step:
    from flax import nnx

    graph, params, rest = nnx.split(nnx.eval_shape(make), nnx.Param, ...)
    step = _of_losses(lambda params, *data: losses(nnx.merge(graph, params, {}), *data), nnx.to_pure_dict(params), data)
    assert not jax.tree.leaves(rest), "a model with other state than parameters"
    return step


def _of_equinox(make: Callable[[], Any], losses: Callable[..., Any], data: Any) -> Step:
    import equinox

    params, static = equinox.partition(equinox.filter_eval_shape(make), lambda leaf: hasattr(leaf, "shape"))
    return _of_losses(lambda params, *data: losses(equinox.combine(params, static), *data), params, data)


def _of_keras(net: Any, data: Any) -> Step:
    def call(params: Any, slots: Any, others: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, after = net.stateless_call(params, others[0], x, training=True)
            right = jnp.sum(jnp.argmax(logits, -1) == y)
            return jnp.mean(net.loss(y, logits)), (after, others[1] + right, others[2] + len(y))

        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        params, slots = net.optimizer.stateless_apply(slots, gradients, params)
        return params, slots, others, value

    net.optimizer.build(net.trainable_variables)
    held = net.trainable_variables, net.optimizer.variables, net.non_trainable_variables
    params, slots, others = ([_shape(one) for one in nest] for nest in held)
    counter = jax.ShapeDtypeStruct((), jnp.float32)
    return Step(call, params, slots, (others, counter, counter), data, [one.shape for one in params])


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, jnp.dtype(array.dtype))


def step_of(kind: str, models: Any) -> Step:
    """The step of a kind of model.

    Args:
      kind: its name.
      models: the module that has the models.
    """
    if kind == models.KERAS:
        return _of_keras(models.keras_model(), [_shape(one) for one in models.images(models.BATCH)])
    problem = models.KINDS[kind](models.BATCH)
    data = [_shape(one) for one in problem.data]
    if isinstance(problem, models.Plain):
        params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in problem.shapes.items()}
        return _of_losses(problem.losses, params, data, [*problem.shapes.values()])
    return (_of_nnx if kind == "nnx" else _of_equinox)(problem.make, problem.losses, data)


def seconds(step: Step, target: Topology, params: Place, slots: Place, *, split: bool) -> float:
    """What a step is predicted to take."""
    mesh = Mesh(target.devices, (AXIS,))

    def placed(nest: Any, where: Place) -> Any:
        def put(one: Any) -> Any:
            return jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=NamedSharding(mesh, where(one)))

        return jax.tree.map(put, nest)

    state = placed(step.params, params), placed(step.slots, slots), placed(step.others, _whole)
    data = placed(step.data, lambda _: PartitionSpec(AXIS) if split else WHOLE)
    places = *jax.tree.map(lambda one: one.sharding, state), NamedSharding(mesh, WHOLE)
    lowered = jax.jit(step.call, donate_argnums=(0, 1, 2), out_shardings=places).lower(*state, *data)
    text = lowered.compile(compiler_options=dict(target.options)).as_text() or ""
    return timing(text, len(target.devices), rates_of(target, target.devices)).step + target.chip.launch


def compiled(kind: str, topology: str) -> dict[str, float | str]:
    """What a step takes in each way, or why it cannot be compiled."""
    spec = importlib.util.spec_from_file_location("fitted_models", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    models = sys.modules["fitted_models"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    step, target = step_of(kind, models), topology_named(topology)
    found: dict[str, float | str] = {}
    for name, params, slots, split in Ways(len(target.devices), step.order).all():
        try:
            found[name] = seconds(step, target, params, slots, split=split)
        except jax.errors.JaxRuntimeError as error:
            found[name] = str(error).partition("\n")[0]
    return found


def by_hand(kind: str, topology: str) -> dict[str, Any]:
    """The ways of a kind of model on a topology, in a process of its own, and the best of them."""
    settings = {"JAX_PLATFORMS": "cpu", **ENVIRONMENT}
    asked = ["--compile", kind, topology]
    ways = run_module("benchmarks.fitted_by_hand", asked, 1, script=SCRIPT, settings=settings, deadline_s=DEADLINE_S)
    best, step = min(((way, one) for way, one in ways.items() if isinstance(one, float)), key=lambda one: one[1])
    return {"model": kind, "topology": topology, "ways": ways, "best": best, "step": step}


def main() -> None:
    """Prints a line for each, and a table."""
    parser = arguments_of(__doc__)
    parser.add_argument("--fitted", type=Path, nargs="*", default=[], help="what benchmarks.fitted --json wrote")
    parser.add_argument("--compile", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        sys.stdout.write("\n" + json.dumps(compiled(*options.compile)) + "\n")
        return
    fitted = {(one["model"], one["topology"]): one for file in options.fitted for one in json.loads(file.read_text())}

    def beside(kind: str, topology: str) -> dict[str, Any]:
        found, choice = by_hand(kind, topology), fitted.get((kind, topology), {})
        if "step" in choice:
            found |= {"choice": choice["choice"], "ratio": choice["step"] / found["step"]}
        return found

    table = Table("model", "topology", "best way by hand", "step", "first choice", "of that by hand")
    for one in told(options, beside):
        ratio = f"{one['ratio']:.3f}" if "ratio" in one else ""
        step = f"{one['step'] * 1e6:,.0f} us"
        table.add_row(one["model"], one["topology"], one["best"], step, one.get("choice", ""), ratio)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
