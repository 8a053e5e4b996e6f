"""Islands that train alone and meet now and then, over a cable of 20 Mbit/s: two network namespaces of this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.namespaces import Machine, two_machines

from benchmarks.comparison import LIBRARY, TORCH, Comparison, Contender, Kind, Row, compare
from benchmarks.harness import Group
from benchmarks.peers.jax_steps import LOCAL
from benchmarks.suites import DIGITS, LARGE
from jaxtribute._src.addons.launcher.certificates import write_certificates

RATE = "20mbit"
EVERY = 50
"""Steps between two meetings."""
NEVER = 1_000_000
BAR = 0.2
"""Of a synchronous step."""
BYTES_BAR = {"": 1.05 / EVERY, "-int8": 0.28 / EVERY}
"""Of the bytes of synchronous steps, by the wire."""
ALONE_BAR = 1.05
"""Of the same steps without any exchange."""
OVERLAP = 48
"""Steps that changes have to travel."""


def suite(quick: bool) -> list[Comparison]:
    """Islands that meet after 50 steps, beside synchronous workers: seconds and bytes a step."""
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder, two_machines() as machines:
        kind = Kind(env=tuple(write_certificates(os.urandom(32), Path(folder)).items()))
        for machine in machines:
            machine.limit(RATE)
        # A synchronous step of the large model takes a second, and one of DDP ten.
        for problem, batch, rounds, most, wire in ((DIGITS, 256, 5, EVERY, "int8"), (LARGE, 128, 2, 2, "int4")):
            arguments = ["--problem", problem, "--batch", str(batch), "--devices", "1"]
            name = f"{problem}, batch {batch}, 2 islands that meet after {EVERY} steps, {RATE}"
            found.append(seconds(name, arguments, kind, machines, 1 if quick else rounds, most))
            found.append(sent(f"{name}: bytes a step", arguments, kind, machines))
            name = f"{name}; changes travel for {OVERLAP} of them"
            found.append(overlapped(name, arguments, kind, machines, 1 if quick else rounds + 2, wire))
    return found


def seconds(
    name: str, arguments: Sequence[str], kind: Kind, machines: Sequence[Machine], rounds: int, most: int
) -> Comparison:
    """Seconds a step, over turns that hold as many meetings as steps ask for; synchronous ones take at most `most`."""
    contenders = [
        Contender(f"{LOCAL}{EVERY}", kind, same=False),
        Contender(f"{LOCAL}{EVERY}-int8", kind, same=False),
        Contender(f"{LOCAL}{NEVER}", kind, ALONE_BAR, same=False),
        Contender("jaxtribute", bar=BAR, most_steps=most),
        Contender("ddp", TORCH, BAR, most_steps=most),
    ]
    return compare(
        name, arguments, contenders, steps=EVERY, rounds=rounds, workers=2, machines=machines, check_steps=EVERY
    )


def overlapped(
    name: str, arguments: Sequence[str], kind: Kind, machines: Sequence[Machine], rounds: int, wire: str
) -> Comparison:
    """Seconds a step where changes travel in a small type while islands go on, beside steps without any exchange."""
    contenders = [
        Contender(f"{LOCAL}{EVERY}-{wire}-overlap{OVERLAP}", kind, same=False),
        Contender(f"{LOCAL}{NEVER}", kind, ALONE_BAR, same=False),
        Contender(f"{LOCAL}{EVERY}-{wire}", kind, same=False),
    ]
    return compare(
        name, arguments, contenders, steps=2 * EVERY, rounds=rounds, workers=2, machines=machines, check_steps=EVERY
    )


def sent(name: str, arguments: Sequence[str], kind: Kind, machines: Sequence[Machine]) -> Comparison:
    """Bytes that a machine sends a step, its headers included."""
    rows: list[Row] = []
    for contender, runs_in in ((f"{LOCAL}{EVERY}", kind), (f"{LOCAL}{EVERY}-int8", kind), ("jaxtribute", LIBRARY)):
        steps = EVERY if contender.startswith(LOCAL) else 4
        peers = Group(2, runs_in.module, [*arguments, "--contender", contender], dict(runs_in.env), machines=machines)
        try:
            peers.steps(contender, steps)
            before = machines[0].sent_bytes()
            peers.steps(contender, steps)
            count = (machines[0].sent_bytes() - before) / steps
        finally:
            peers.close()
        rows.append(Row(contender, count, count, count, "bytes"))
    for row in rows[:-1]:
        row.ratio, row.bar = row.median / rows[-1].median, BYTES_BAR["-int8" if row.name.endswith("-int8") else ""]
    return Comparison(name, rows, ["ratios are to the synchronous step's"])
