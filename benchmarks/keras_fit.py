"""Keras's `fit`, `evaluate` and `predict` on 1,797 examples, from NumPy arrays, on 1, 2 and 4 devices.

A turn is three epochs (or passes) of a classifier of 64-256-256-10 units. Batches of 50 leave a last one of 47, and
four replicas never get equal parts of either: `keras.distribution` refuses that, and Keras on TensorFlow fails when the
first batch is not equal. They are compared on 1,776 examples in batches of 48.

Losses must agree to 1e-4 over the 6 epochs before the clock starts. What becomes of that over 27 epochs is noted
besides, in batches of 50 on four devices and, for a measure of what rounding alone does, on one device by plain Keras
with the examples of each batch in reverse: in exact arithmetic all are equal; in float64 they are to the last digits.
"""

from __future__ import annotations

from benchmarks.comparison import Comparison, Contender, Kind, compare
from benchmarks.harness import Peer

EPOCHS = 3
DRIFT_EPOCHS = 6, 27
PEER = "benchmarks.peers.keras_fit"
ON_JAX = Kind(PEER, env=(("KERAS_BACKEND", "jax"),))
ON_TENSORFLOW = Kind(PEER, "tensorflow", env=(("KERAS_BACKEND", "tensorflow"),), suffix=" (TensorFlow)")


def suite(quick: bool) -> list[Comparison]:
    """Keras's `fit`, `evaluate` and `predict` under a strategy, against plain Keras and `keras.distribution`."""
    rounds = 2 if quick else 11
    found: list[Comparison] = []
    for devices in (4,) if quick else (1, 2, 4):
        for call in ("fit", "evaluate", "predict"):
            if devices == 1:
                batch, others = 50, [Contender("keras", ON_JAX, 1.0)]
            else:
                batch, others = 48, [Contender("keras.distribution", ON_JAX, 0.8)]
            if devices == 4:
                others.append(Contender("keras", ON_TENSORFLOW))
            found.append(
                compare(
                    f"{call}, batch {batch}, {devices} device{'s' if devices > 1 else ''}",
                    ["--call", call, "--batch", str(batch), "--devices", str(devices)],
                    [Contender("jaxtribute", ON_JAX), *others],
                    steps=EPOCHS,
                    rounds=rounds,
                    check_steps=EPOCHS,
                )
            )
    found[0].notes = drift()
    return found


def drift() -> list[str]:
    """Tells how far losses are from those of one device after some epochs, relative."""
    found = [f"losses against Keras on one device after {' and '.join(map(str, DRIFT_EPOCHS))} epochs, relative:"]
    for dtype in ("float32", "float64"):
        peers: dict[str, Peer] = {}
        env = {"KERAS_BACKEND": "jax", "JAX_ENABLE_X64": str(int(dtype == "float64"))}
        for name, devices in (("keras", 1), ("keras-reversed", 1), ("jaxtribute", 4)):
            arguments = ["--call", "fit", "--batch", "50", "--devices", str(devices), "--dtype", dtype]
            peers[name] = Peer(PEER, [*arguments, "--contender", name], env)
        losses: dict[str, list[float]] = {name: [] for name in peers}
        done = 0
        for epochs in DRIFT_EPOCHS:
            for name, peer in peers.items():
                losses[name].append(peer.steps(name, epochs - done)[1])
            done = epochs
        for peer in peers.values():
            peer.close()
        alone = losses.pop("keras")
        for name, values in losses.items():
            apart = [abs(value - expected) / expected for value, expected in zip(values, alone, strict=True)]
            found.append(f"{name}, {dtype}: " + " and ".join(f"{one:.1e}" for one in apart))
    return found
