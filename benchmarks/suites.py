"""The suites of training steps: problems, contenders and bars."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison import (
    BIG_POOL,
    KERAS,
    LIBRARY,
    PLAIN,
    PLAIN_TUNED,
    TENSORFLOW,
    TORCH,
    Comparison,
    Contender,
    Row,
    compare,
)
from benchmarks.harness import Peer

DIGITS, LARGE = "64-256-256-10", "784-2048-2048-10"


def _by_hand(devices: int, bar: float | None = None) -> list[Contender]:
    """Hand-written JAX in a process with the library's settings; the library is to be as fast as the best."""
    bar = bar or (1.03 if devices == 1 else 1.0)
    kinds = ["named-sharding"] if devices == 1 else ["named-sharding", "shard-map"]
    return [Contender(kind, LIBRARY, bar) for kind in kinds]


def _step(
    problem: str, batch: int, devices: int, contenders: Sequence[Contender], steps: int, quick: bool, rounds: int = 21
) -> Comparison:
    arguments = ["--problem", problem, "--batch", str(batch), "--devices", str(devices)]
    name = f"{problem}, batch {batch}, {devices} device{'s' if devices > 1 else ''}"
    return compare(name, arguments, contenders, steps=16 if quick else steps, rounds=2 if quick else rounds)


def dispatch(quick: bool) -> list[Comparison]:
    """A tiny model, 4-4, whose step is almost all dispatch, on 1 to 32 devices."""
    found: list[Comparison] = []
    steps = {1: 3200, 32: 64}
    for devices in (1, 4) if quick else (1, 2, 4, 8, 32):
        contenders = [Contender("jaxtribute"), *_by_hand(devices), Contender("jaxtribute-16")]
        if devices <= 8:
            contenders += [Contender("tensorflow", TENSORFLOW, 1 / 3), Contender("tensorflow-16", TENSORFLOW)]
        if devices == 1:
            contenders.append(Contender("torch", TORCH))
        found.append(_step("4-4", 32, devices, contenders, steps.get(devices, 320), quick))
    return found


def digits(quick: bool) -> list[Comparison]:
    """The digits MLP, 64-256-256-10, on 1 to 32 devices."""
    found: list[Comparison] = []
    for devices in (1, 4) if quick else (1, 2, 4, 8, 32):
        contenders = [Contender("jaxtribute"), *_by_hand(devices)]
        if devices <= 8:
            bars = (1 / 1.3, 1.0) if devices > 1 else (None, None)
            contenders += [
                Contender("tensorflow", TENSORFLOW, bars[0]),
                Contender("tensorflow-16", TENSORFLOW, bars[1]),
                Contender("keras.distribution", KERAS),
            ]
        if devices == 1:
            contenders.append(Contender("torch", TORCH))
        found.append(_step(DIGITS, 256, devices, contenders, 64 if devices < 32 else 32, quick))
    return found


def large(quick: bool) -> list[Comparison]:
    """The 784-2048-2048-10 MLP on 1 to 8 devices, also against JAX in a process with its default settings."""
    found: list[Comparison] = []
    for devices in (2,) if quick else (1, 2, 4, 8):
        contenders = [Contender("jaxtribute"), *_by_hand(devices)]
        contenders.append(Contender("tensorflow", TENSORFLOW, 1 / 1.4 if devices > 1 else None))
        if devices == 1:
            contenders.append(Contender("torch", TORCH))
        else:
            contenders += [Contender("jaxtribute-sharded"), Contender("jaxtribute-whole")]
            if devices <= 4:  # with more, JAX's own settings may hang
                contenders.append(Contender("shard-map", PLAIN, 1 / 1.6))
        found.append(_step(LARGE, 128, devices, contenders, 4, quick, 9))
    return found


def conv(quick: bool) -> list[Comparison]:
    """A small conv net on 1, 2 and 4 devices."""
    return _model("conv", 64, 32, quick)


def transformer(quick: bool) -> list[Comparison]:
    """A transformer block on 1, 2 and 4 devices."""
    return _model("transformer", 16, 8, quick)


def _model(name: str, batch: int, steps: int, quick: bool) -> list[Comparison]:
    found: list[Comparison] = []
    for devices in (2,) if quick else (1, 2, 4):
        contenders = [Contender("jaxtribute"), *_by_hand(devices), Contender("tensorflow", TENSORFLOW)]
        if devices == 1:
            contenders.append(Contender("torch", TORCH))
        found.append(_step(name, batch, devices, contenders, steps, quick, 11))
    return found


def packing(quick: bool) -> list[Comparison]:
    """100 small variables on 4 devices against one collective a variable."""
    contenders = [
        Contender("jaxtribute"),
        Contender("named-sharding", LIBRARY, 0.2),
        Contender("shard-map"),
        Contender("shard-map-packed", LIBRARY, 1.0),
        Contender("tensorflow", TENSORFLOW),
    ]
    return [_step("small-100", 64, 4, contenders, 48, quick)]


def workers(quick: bool) -> list[Comparison]:
    """2 and 4 processes of one device on the digits and the large MLP, against JAX by hand, PyTorch and TensorFlow."""
    found: list[Comparison] = []
    for count in (2,) if quick else (2, 4):
        for problem, batch, bar, steps in ((DIGITS, 256, 1 / 1.2, 48), (LARGE, 128, 1 / 1.3, 8)):
            others = bar if count == 2 else None
            contenders = [
                Contender("jaxtribute"),
                Contender("shard-map-packed", LIBRARY, 1.05),
                Contender("shard-map-packed", PLAIN_TUNED, 1.05),
                Contender("shard-map", PLAIN),
                Contender("named-sharding", PLAIN),
                Contender("ddp", TORCH, others),
                Contender("tensorflow", TENSORFLOW, others),
            ]
            arguments = ["--problem", problem, "--batch", str(batch), "--devices", "1"]
            rounds = 2 if quick else 11 if count == 2 else 7
            name = f"{problem}, batch {batch}, {count} processes"
            steps = 4 if quick else steps
            found.append(compare(name, arguments, contenders, steps=steps, rounds=rounds, workers=count))
    return found


def causes(quick: bool) -> list[Comparison]:
    """Where the time of a step on 2 processes goes: the same step with one thing changed at a time."""
    found: list[Comparison] = []
    for problem, batch, steps in ((DIGITS, 256, 48), (LARGE, 128, 4)):
        contenders = [
            Contender("jaxtribute"),
            Contender("no-communication", same=False),
            Contender("jaxtribute-no-loss", same=False),
            Contender("jaxtribute-ring"),
            Contender("shard-map-packed"),
            Contender("shard-map"),
            Contender("jaxtribute", BIG_POOL),
            Contender("shard-map-packed", PLAIN_TUNED),
            Contender("shard-map-packed", PLAIN),
            Contender("ddp", TORCH),
            Contender("torch", TORCH, same=False),
        ]
        arguments = ["--problem", problem, "--batch", str(batch), "--devices", "1"]
        steps, rounds = (4, 2) if quick else (steps, 11)
        comparison = compare(
            f"{problem}, batch {batch}, 2 processes", arguments, contenders, steps=steps, rounds=rounds, workers=2
        )
        medians = (row.median for row in comparison.rows)
        own, alone, no_loss, ring, packed, single, pool, plain_tuned, plain, ddp, torch = medians
        parts = {
            "computation and update, no communication": alone,
            "communication": own - alone,
            "of which the message of the loss": own - no_loss,
            "saved by exchanges in pairs and factors of products instead of Gloo's ring": ring - own,
            "saved by packing small gradients": single - packed,
            "saved by XLA's pool of as many threads as cores, against 8": pool - own,
            "saved by the allocator": plain - plain_tuned,
            "the library's threads and settings, beside the same step in bare JAX": packed - plain_tuned,
            "PyTorch: what communication adds to computation and update": ddp - torch,
        }
        comparison.notes = [f"{name}: {seconds * 1e3:.2f} ms" for name, seconds in parts.items()]
        found.append(comparison)
    return found


def memory(quick: bool) -> list[Comparison]:
    """Peak memory of a step over 400 MB of parameters, as a multiple of the parameters."""
    del quick
    peer = Peer("benchmarks.memory", [])
    try:
        peak, _ = peer.steps("sgd", 3)
        created, _ = peer.steps("creation", 0)
        bare, _ = peer.steps("parameters", 0)
    finally:
        peer.close()
    rows = [
        Row("jaxtribute: peak of 3 steps", peak, peak, peak, "bytes"),
        Row("jaxtribute: peak of making the variables", created, created, created, "bytes"),
        Row("the parameters alone", bare, bare, bare, "bytes", ratio=peak / bare, bar=2.2),
    ]
    return [Comparison("SGD over 400 MB, one device", rows)]
