"""All measurements of a strategy's devices, as tables and as JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
from rich.console import Group, RenderableType
from rich.text import Text

from jaxtribute import Strategy
from jaxtribute._src.addons.bench import collective_rate, rates
from jaxtribute._src.addons.bench.collective_rate import CollectiveRate
from jaxtribute._src.addons.bench.rates import CheckpointRate, InputRate, StepRate
from jaxtribute._src.addons.tools.tables import bytes_text, table

PARTS = ("collectives", "step", "input", "checkpoint")
"""One thing that can be measured."""

_SIZES = tuple(1 << power for power in range(10, 27, 2))
_QUICK_SIZES = (1 << 10, 1 << 18)


@dataclass
class Report:
    """The figures of one measurement.

    Attributes:
      where: the devices, in words.
      notes: what was left out, and why.
    """

    where: str
    collectives: list[CollectiveRate] = field(default_factory=list[CollectiveRate])
    step: list[StepRate] = field(default_factory=list[StepRate])
    input: list[InputRate] = field(default_factory=list[InputRate])
    checkpoint: list[CheckpointRate] = field(default_factory=list[CheckpointRate])
    notes: list[str] = field(default_factory=list[str])

    def as_dict(self) -> dict[str, Any]:
        """The report as values that JSON can hold; seconds and bytes."""
        return {
            "where": self.where,
            "jax": jax.__version__,
            "collectives": _figures(self.collectives, "rate"),
            "step": _figures(self.step, "overhead"),
            "input": _figures(self.input, "rate"),
            "checkpoint": list(map(asdict, self.checkpoint)),
            "notes": self.notes,
        }

    def __rich__(self) -> RenderableType:
        blocks: list[RenderableType] = [Text(self.where, "bold")]
        if self.collectives:
            headings = "collective,size,time,bare,ratio,bandwidth"
            blocks.append(table("\nCollectives", headings.split(","), map(_of_collective, self.collectives)))
        if self.step:
            headings = "variables,time,bare jax.jit,the library's"
            blocks.append(table("\nA step that computes nothing", headings.split(","), map(_of_step, self.step)))
        if self.input:
            headings = "batch,examples/s,bytes,bare device_put"
            blocks.append(table("\nInput from host memory", headings.split(","), map(_of_input, self.input)))
        if self.checkpoint:
            headings = "size,training held up,saved,restored"
            blocks.append(table("\nCheckpoint", headings.split(","), map(_of_checkpoint, self.checkpoint)))
        return Group(*blocks, *(Text(note, "dim") for note in self.notes))


def run(
    strategy: Strategy,
    parts: Sequence[str] = PARTS,
    *,
    quick: bool = False,
    rounds: int = 7,
    directory: Path | None = None,
) -> Report:
    """Measures what `parts` says on a strategy's devices. All workers of a cluster must call it alike.

    Args:
      strategy: whose devices are measured.
      parts: some of `PARTS`.
      quick: few and small sizes, to try it out; its numbers mean little.
      rounds: turns of each measurement, whose median counts.
      directory: where checkpoints are tried; by default a temporary folder, which several machines do not share.
    """
    mesh = strategy.extended.mesh
    processes = mesh.size // len(mesh.local_ids)
    kind = mesh.devices[0].device_kind
    report = Report(f"{type(strategy).__name__}: {mesh.size} x {kind} in {processes} process(es)")
    if "collectives" in parts:
        report.collectives = collective_rate.measure(strategy, _QUICK_SIZES if quick else _SIZES, rounds)
        if mesh.size == 1:
            report.notes.append("One device: there is nothing to exchange.")
    if "step" in parts:
        report.step = rates.measure_step(strategy, (1, 10) if quick else (1, 10, 100, 1000), rounds)
    if "input" in parts:
        batches, sizes = (4, (64,)) if quick else (64, (64, 1024))
        report.input = [rates.measure_input(strategy, batch, batches, rounds) for batch in sizes]
    if "checkpoint" in parts:
        nbytes = 1 << (16 if quick else 28)
        if directory is not None:
            report.checkpoint = [rates.measure_checkpoint(strategy, nbytes, directory, rounds)]
        # Each process would write to a temporary folder of its own.
        elif processes > 1:
            report.notes.append(
                "No checkpoint was tried: several processes need --directory, on a disk that they share."
            )
        else:
            with tempfile.TemporaryDirectory() as folder:
                report.checkpoint = [rates.measure_checkpoint(strategy, nbytes, Path(folder), rounds)]
    return report


def _figures(ones: Sequence[CollectiveRate | StepRate | InputRate], derived: str) -> list[dict[str, Any]]:
    """Figures as they were measured, and the one that follows from them."""
    return [asdict(one) | {derived: getattr(one, derived)} for one in ones]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"


def _of_collective(one: CollectiveRate) -> list[str]:
    ratio, rate = f"{one.seconds / one.bare:.2f}", f"{one.rate / 1e9:.3f} GB/s"
    return [one.kind, bytes_text(one.nbytes), _us(one.seconds), _us(one.bare), ratio, rate]


def _of_step(one: StepRate) -> list[str]:
    return [f"{one.variables:,}", _us(one.seconds), _us(one.bare), _us(one.overhead)]


def _of_input(one: InputRate) -> list[str]:
    bare = "-" if one.bare is None else f"{one.examples / one.bare:,.0f}"
    return [f"{one.batch:,}", f"{one.rate:,.0f}", f"{one.bytes_rate / 1e9:.2f} GB/s", bare]


def _of_checkpoint(one: CheckpointRate) -> list[str]:
    saved, restored = bytes_text(one.nbytes / one.saved), bytes_text(one.nbytes / one.restored)
    return [bytes_text(one.nbytes), f"{one.held * 1e3:.1f} ms", f"{saved}/s", f"{restored}/s"]
