"""Training steps between two machines that a cable of 1 Gbit/s joins: network namespaces of this one, with `tc`.

The kernel's token bucket holds the rate; it adds no delay. Both machines share the cores of the real one.
"""

from __future__ import annotations

from tests.support.namespaces import two_machines

from benchmarks.comparison import TENSORFLOW, TORCH, Comparison, Contender, compare
from benchmarks.suites import DIGITS, LARGE

RATE = "1gbit"
BAR = 0.9
"""Of PyTorch's DistributedDataParallel; arrays travel in their own type."""


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
    return found
