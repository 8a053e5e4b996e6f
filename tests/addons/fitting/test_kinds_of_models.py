"""The first choice for models of all kinds, by the compilers of accelerators that are not there."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from samples import ALL_CASES

sys.path.insert(0, str(Path(__file__).parents[3]))

from benchmarks.fitted import KINDS, TOPOLOGIES, row
from benchmarks.fitted_by_hand import by_hand

COMPILERS = {"v": "libtpu", "h": "jax_cuda12_plugin"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not ALL_CASES, reason="JAXTRIBUTE_ALL_CASES is not set")
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_choice_fits_and_is_near_the_best_of_all_and_of_those_by_hand(kind: str, topology: str) -> None:
    if find_spec(COMPILERS[topology[0]]) is None:
        pytest.skip(f"the compiler for {topology} is missing: make compilers")
    found = row(kind, topology, None, every=True)
    assert found["choice"]
    assert found["ratio"] <= 1.1, found["ways"]
    assert found["programs"] <= 25
    careful = by_hand(kind, topology)
    assert found["step"] <= 1.05 * careful["step"], careful["ways"]
