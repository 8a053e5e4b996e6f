"""The drawings of the documentation: `PYTHONPATH=tests python -m visualize.draw` writes them into docs/img/."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jd
from jaxtribute._src.addons.visualize.svg import COLOURS, Canvas

IMAGES = Path(__file__).parents[3] / "docs" / "img"
NAMES = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


def values() -> str:
    """A mirrored value and a per-replica one."""
    strategy = jd.MirroredStrategy(NAMES)
    batch = next(iter(strategy.experimental_distribute_dataset([np.zeros((8, 3), np.float32)])))
    return strategy.visualize({"Mirrored": strategy.place(jnp.zeros((3, 2))), "PerReplica": batch}).svg()


def placement() -> str:
    """A model with a metric, and an optimizer whose slots are split."""
    strategy = jd.MirroredStrategy(NAMES)
    with strategy.scope():
        kernel = jd.Variable(jnp.zeros((64, 256)), name="kernel")
        bias = jd.Variable(jnp.zeros(256), name="bias")
        hits = jd.Variable(
            0.0,
            name="hits",
            synchronization=jd.VariableSynchronization.ON_READ,
            aggregation=jd.VariableAggregation.SUM,
        )
        optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [kernel], shard_update=True)
    return strategy.visualize([kernel, bias, hits, optimizer]).svg()


def reading() -> str:
    """A dataset whose last batch the replicas share unevenly."""
    strategy = jd.MirroredStrategy(NAMES)
    examples = strategy.experimental_make_numpy_dataset(np.zeros((1437, 64), np.float32))
    return strategy.visualize(examples.batch(64)).svg()


def step() -> str:
    """What goes into a compiled step and what comes out, with a lane for each of two replicas."""
    canvas = Canvas("A compiled step: state goes in and comes out, the replicas meet where gradients are added up")
    canvas.text(16, 28, "One call of a jd.function over strategy.run, compiled", size=15, bold=True)
    for row, replica in enumerate((0, 1)):
        y = 60 + 130 * row
        canvas.text(16, y + 10, f"replica {replica}", bold=True)
        _chain(canvas, y + 20, replica, ["its part of the batch", "forward, backward", "", "update"])
    canvas.box(452, 56, 136, 234, COLOURS[3], edge=True)
    canvas.text(520, 170, "all-reduce", bold=True, middle=True)
    canvas.text(520, 190, "gradients", size=12, middle=True)
    canvas.text(
        16, 326, "Variables go in donated, and come out in the same memory. Within a lane everything is local.", size=12
    )
    return canvas.svg()


def _chain(canvas: Canvas, y: float, replica: int, boxes: Sequence[str]) -> None:
    for place, text in enumerate(boxes):
        x = 16 + place * 218
        if text:
            canvas.box(x, y + 10, 168, 44, COLOURS[replica], edge=True)
            canvas.text(x + 84, y + 37, text, size=12, middle=True)
        if place + 1 < len(boxes):
            start = x + 168 if text else x + 136
            canvas.arrow(start + 6, y + 32, 16 + (place + 1) * 218 - 6)
    canvas.text(16 + 3 * 218 + 84, y + 72, "new variables, loss", size=12, ink=0.7, middle=True)
    canvas.text(16 + 218 + 84, y + 72, "with the variables", size=12, ink=0.7, middle=True)


DRAWINGS: dict[str, Callable[[], str]] = {
    "values.svg": values,
    "placement.svg": placement,
    "reading.svg": reading,
    "step.svg": step,
}


def main() -> None:
    """Writes all drawings."""
    IMAGES.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (IMAGES / name).write_text(draw() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
