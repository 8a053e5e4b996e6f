"""The all-reduce of a float32 array across 2 processes: the library's against a bare `jax.lax.psum`, and PyTorch's."""

from __future__ import annotations

from benchmarks.comparison import TORCH, Comparison, Contender, compare

SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "64 MB": 64 << 20}


def suite(quick: bool) -> list[Comparison]:
    """The all-reduce of 1 KB, 1 MB and 64 MB across 2 processes against a bare jax.lax.psum."""
    found: list[Comparison] = []
    for name, size in SIZES.items():
        contenders = [
            Contender("jaxtribute-all-reduce", bar=None),
            Contender("psum", bar=1 / 0.95),
            Contender("gloo-all-reduce", TORCH),
        ]
        steps = max(4, min(64, (64 << 20) // size))
        arguments = ["--problem", f"vector-{size // 4}", "--batch", "2", "--devices", "1"]
        rounds = 2 if quick else 15
        steps = 4 if quick else steps
        found.append(compare(f"{name}, 2 processes", arguments, contenders, steps=steps, rounds=rounds, workers=2))
    return found
