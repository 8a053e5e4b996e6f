"""`FullyShardedStrategy` over two processes of two devices each: slices on all four, the numbers of one device."""

from __future__ import annotations

import numpy as np
import pytest

import jaxtribute as jd
import sharded_programs as programs
from jaxtribute.errors import ArgumentError
from jaxtribute.testing.shared import SharedRunners
from replicas import one_device


@pytest.mark.slow
def test_training_as_on_one_device(multi_process: SharedRunners) -> None:
    expected = programs.program(one_device(0))
    for found in multi_process(workers=2, devices=2).run(programs.on_this_worker):
        assert (found["replicas"], found["pieces"]) == (4, [12, 12])
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_devices_of_a_cluster_are_not_chosen() -> None:
    resolver = jd.cluster_resolver.SimpleClusterResolver(jd.ClusterSpec({}))
    with pytest.raises(ArgumentError, match=r"beside a cluster_resolver.*HINT"):
        jd.FullyShardedStrategy(["CPU:0"], resolver)
    assert jd.FullyShardedStrategy(cluster_resolver=resolver).cluster_resolver is resolver
