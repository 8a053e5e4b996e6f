"""`FullyShardedStrategy` over two processes of two devices each: slices on all four, the numbers of one device."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
import sharded_programs as programs
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.errors import ArgumentError
from replicas import one_device


@pytest.mark.slow
def test_training_as_on_one_device(multi_process: SharedRunners) -> None:
    expected = programs.program(one_device(0))
    for found in multi_process(workers=2, devices=2).run(programs.on_this_worker):
        assert (found["replicas"], found["pieces"]) == (4, [12, 12])
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_scattered_sums(multi_process: SharedRunners) -> None:
    """Of every kind of number, with and without padding; Gloo's reduce-scatter has a deadline of its own."""
    rng = np.random.default_rng(3)
    arrays: dict[str, Any] = {
        f"{np.dtype(dtype)}{shape}": rng.integers(-3, 4, size=shape).astype(dtype)
        for dtype in (np.float32, np.float16, jnp.bfloat16, np.int32, np.int8, np.uint8, np.complex64)
        for shape in ((), (3,), (5, 7), (64, 4))
    }
    workers = multi_process(workers=2, devices=2).run(programs.scattered_sums, args=(arrays,))
    for name, array in arrays.items():
        size = -(-array.size // 4) * 4
        expected = np.zeros(size, array.dtype)
        expected[: array.size] = (array * array.dtype.type(10)).reshape(-1)
        np.testing.assert_array_equal(np.concatenate([one["sums"][name] for one in workers]), expected, err_msg=name)
    assert {tuple(one["kinds"]) for one in workers} == {("all_to_all",)}


def test_devices_of_a_cluster_are_not_chosen() -> None:
    resolver = jd.cluster_resolver.SimpleClusterResolver(jd.ClusterSpec({}))
    with pytest.raises(ArgumentError, match=r"beside a cluster_resolver.*HINT"):
        jd.FullyShardedStrategy(["CPU:0"], resolver)
    assert jd.FullyShardedStrategy(cluster_resolver=resolver).cluster_resolver is resolver
