"""Training steps between two machines that a cable of 1 Gbit/s joins: network namespaces of this one, with `tc`.

The kernel's token bucket holds the rate; it adds no delay. Both machines share the cores of the real one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.namespaces import Machine, two_machines

from benchmarks.comparison import TENSORFLOW, TORCH, Comparison, Contender, compare
from benchmarks.peers.jax_steps import WIRE
from benchmarks.suites import DIGITS, LARGE

RATE = "1gbit"
BAR = 0.9
"""Of PyTorch's DistributedDataParallel; arrays travel in their own type."""
SMALL_BAR = 0.65
"""Of PyTorch's DistributedDataParallel, where gradients travel as bfloat16."""
SMALL = f"{WIRE}bfloat16"


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
