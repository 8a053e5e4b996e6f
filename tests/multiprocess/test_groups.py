"""Replicas of several devices over two processes of four devices each: within one process, and over both."""

from __future__ import annotations

import numpy as np
import pytest

import grouped_programs
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.errors import ProcessFailedError
from samples import chosen


@pytest.mark.slow
@pytest.mark.parametrize(("each", "kind"), chosen([2, 4, 8], ["mirrored", "sharded"]))
def test_training_as_on_one_device(kind: str, each: int, multi_process: SharedRunners) -> None:
    workers = multi_process(workers=2, devices=4).run(grouped_programs.on_this_worker, (kind, each, "compiled"))
    for found in workers:
        assert found["replicas"] == 8 // each
        assert found["pipelines"] == (2 if each <= 4 else 1)
        np.testing.assert_allclose(found["losses"], grouped_programs.by_hand(2), rtol=1e-5, atol=1e-6)
        assert found["parts"][0] == 12 * 16 // (each if kind == "mirrored" else 8)
    _, variables, _ = grouped_programs.train(grouped_programs.grouped(1, 1), epochs=2)
    for found in workers:
        for value, variable in zip(found["values"], variables, strict=True):
            np.testing.assert_allclose(value, variable.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "each"), [("mirrored", 8), ("sharded", 4)])
def test_an_automatic_layout_is_the_same_for_all(kind: str, each: int, multi_process: SharedRunners) -> None:
    workers = multi_process(workers=2, devices=4).run(grouped_programs.on_this_worker, (kind, each, "automatic"))
    for found in workers:
        np.testing.assert_allclose(found["losses"], grouped_programs.by_hand(2), rtol=1e-5, atol=1e-6)
        assert found["layouts"] == workers[0]["layouts"]
        assert found["parts"][0] == 12 * 16 // 8


@pytest.mark.slow
@pytest.mark.parametrize("each", [2, 8])
def test_replicas_run_no_python_of_their_own(each: int, multi_process: SharedRunners) -> None:
    with pytest.raises(ProcessFailedError, match=rf"{each} devices over several workers.*HINT: call strategy.run in a"):
        multi_process(workers=2, devices=4).run(grouped_programs.on_this_worker, ("mirrored", each, "lockstep"))
