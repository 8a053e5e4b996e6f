"""Training steps between two machines that a cable of 1 Gbit/s joins: network namespaces of this one, with `tc`.

The kernel's token bucket holds the rate; it adds no delay. Both machines share the cores of the real one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.namespaces import Machine, two_machines

from benchmarks.comparison import TENSORFLOW, TORCH, Comparison, Contender, Kind, compare
from benchmarks.peers.jax_steps import ELASTIC, WIRE
from benchmarks.suites import DIGITS, LARGE
from jaxtribute._src.addons.launcher.certificates import write_certificates

RATE = "1gbit"
BAR = 0.9
"""Of PyTorch's DistributedDataParallel; arrays travel in their own type."""
SMALL_BAR = 0.65
"""Of PyTorch's DistributedDataParallel, where gradients travel as bfloat16."""
SMALL = f"{WIRE}bfloat16"
OVERLAP_BAR, OVERLAP_DDP_BAR = 0.75, 0.8
"""Of the step of workers and of PyTorch's, for islands, which send gradients while others are still computed."""


def suite(quick: bool) -> list[Comparison]:
    """The digits and the large MLP on two machines with 1 Gbit/s between them."""
    contenders = [
        Contender("jaxtribute"),
        Contender("no-communication", same=False),
        Contender("shard-map-packed"),
        Contender("ddp", TORCH, BAR),
        Contender("tensorflow", TENSORFLOW, BAR),
    ]
    found: list[Comparison] = []
    with two_machines() as machines:
        for machine in machines:
            machine.limit(RATE)
        for problem, batch, steps in ((DIGITS, 256, 48), (LARGE, 128, 4)):
            name = f"{problem}, batch {batch}, 2 machines, 1 Gbit/s"
            arguments = ["--problem", problem, "--batch", str(batch), "--devices", "1"]
            steps, rounds = (4, 2) if quick else (steps, 11)
            found.append(compare(name, arguments, contenders, steps=steps, rounds=rounds, workers=2, machines=machines))
        found.append(small_wire(quick, machines))
        found += overlapped(quick, machines)
    return found


def small_wire(quick: bool, machines: Sequence[Machine]) -> Comparison:
    """A large batch, of whose gradients factors are not much smaller: as bfloat16, as by default, and by DDP."""
    contenders = [Contender(SMALL), Contender("jaxtribute"), Contender("ddp", TORCH, SMALL_BAR)]
    arguments = ["--problem", LARGE, "--batch", "512", "--devices", "1"]
    name = f"{LARGE}, batch 512, 2 machines, 1 Gbit/s, bfloat16 between them"
    steps, rounds = (2, 2) if quick else (4, 5)
    # What is rounded on the way makes losses differ in the third digit.
    return compare(
        name, arguments, contenders, steps=steps, rounds=rounds, workers=2, machines=machines, tolerance=1e-2
    )


def overlapped(quick: bool, machines: Sequence[Machine]) -> list[Comparison]:
    """Islands beside workers, whose gradients are sent when all are there, and DDP, which sends them in buckets."""
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        kind = Kind(env=tuple(write_certificates(os.urandom(32), Path(folder)).items()))
        contenders = [Contender(ELASTIC, kind), Contender("jaxtribute", bar=OVERLAP_BAR)]
        contenders.append(Contender("ddp", TORCH, OVERLAP_DDP_BAR))
        for problem, batch in (("transformer-12", 16), (LARGE, 512)):
            arguments = ["--problem", problem, "--batch", str(batch), "--devices", "1"]
            name = f"{problem}, batch {batch}, 2 machines, {RATE}, islands"
            steps, rounds = (2, 2) if quick else (4, 7)
            found.append(compare(name, arguments, contenders, steps=steps, rounds=rounds, workers=2, machines=machines))
    return found
