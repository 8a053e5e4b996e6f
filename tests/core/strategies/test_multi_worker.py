"""`MultiWorkerMirroredStrategy` as far as one process shows it; several are in `tests/multiprocess`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest

import jaxtribute as jd
from jaxtribute._src.core.collectives.summation import AutoSum, ExchangeSum
from jaxtribute._src.core.strategies.multi_worker import (
    LOCAL_OPERATIONS,
    NETWORK_BYTES,
    NETWORK_OPERATIONS,
    PACKED_BYTES,
    MultiWorkerOps,
    worker_mesh,
)
from jaxtribute.errors import ArgumentTypeError, ClusterError, ClusterSpecError


def resolver(**environ: str) -> jd.cluster_resolver.TFConfigClusterResolver:
    return jd.cluster_resolver.TFConfigClusterResolver(environ=environ)


def test_the_only_worker() -> None:
    known = resolver()
    strategy = jd.MultiWorkerMirroredStrategy(known)
    assert strategy.cluster_resolver is known
    assert strategy.num_replicas_in_sync == 8
    assert strategy.extended.input_agreements() is None


def test_the_older_arguments() -> None:
    strategy = jd.experimental.MultiWorkerMirroredStrategy(
        jd.experimental.CommunicationImplementation.NCCL, cluster_resolver=resolver()
    )
    assert isinstance(strategy, jd.MultiWorkerMirroredStrategy)


def test_options_of_another_kind() -> None:
    options: Any = {"timeout_seconds": 3}
    with pytest.raises(ArgumentTypeError, match=r"timeout_seconds.*dict.*HINT"):
        jd.MultiWorkerMirroredStrategy(resolver(), options)


def test_a_cluster_without_a_task() -> None:
    spec = jd.ClusterSpec({"worker": ["127.0.0.1:1", "127.0.0.1:2"]})
    with pytest.raises(ClusterSpecError, match="HINT"):
        jd.MultiWorkerMirroredStrategy(jd.cluster_resolver.SimpleClusterResolver(spec))


def test_small_arrays_travel_together() -> None:
    mesh = jd.MultiWorkerMirroredStrategy(resolver()).extended.mesh
    plain, hinted = jd.experimental.CommunicationOptions(), jd.experimental.CommunicationOptions(bytes_per_pack=50)
    assert MultiWorkerOps(plain, True, True).summation(mesh, None) == AutoSum(PACKED_BYTES)
    assert MultiWorkerOps(hinted, True, True).summation(mesh, plain) == AutoSum(50)
    assert MultiWorkerOps(plain, True, True).summation(mesh, hinted) == AutoSum(50)


def test_cpu_workers_exchange_arrays_unless_a_ring_is_asked_for() -> None:
    def mesh(platform: str, peers: Any) -> Any:
        return SimpleNamespace(devices=[SimpleNamespace(platform=platform)], peers=peers, group={})

    plain, ring = (jd.experimental.CommunicationOptions(implementation=kind) for kind in ("AUTO", "RING"))
    here, between, ringed = (MultiWorkerOps(*of, True) for of in ((plain, True), (plain, False), (ring, True)))
    assert here.summation(mesh("cpu", object()), None) == ExchangeSum(PACKED_BYTES, computes=LOCAL_OPERATIONS)
    between_machines = ExchangeSum(PACKED_BYTES, NETWORK_BYTES, NETWORK_BYTES, NETWORK_OPERATIONS)
    assert between.summation(mesh("cpu", object()), None) == between_machines
    assert here.summation(mesh("gpu", object()), None) == AutoSum(PACKED_BYTES)
    assert here.summation(mesh("cpu", None), None) == AutoSum(PACKED_BYTES)
    assert ringed.summation(mesh("cpu", object()), plain) == AutoSum(PACKED_BYTES)
    assert here.summation(mesh("cpu", object()), ring) == AutoSum(PACKED_BYTES)


def test_processors_that_differ_compute_no_sum_of_others() -> None:
    mesh: Any = SimpleNamespace(devices=[SimpleNamespace(platform="cpu")], peers=object(), group={})
    for one_machine in (True, False):
        ops = MultiWorkerOps(jd.experimental.CommunicationOptions(), one_machine, False)
        assert ops.summation(mesh, None).operations_per_byte == 0


def test_replicas_are_ordered_by_worker_and_workers_must_have_equally_many() -> None:
    def device(process: int, ident: int) -> Any:
        # Not CPUs, whose Gloo would be asked to connect.
        return SimpleNamespace(process_index=process, id=ident, platform="gpu", client=None)

    cluster: Any = SimpleNamespace(workers=2, names=("worker 0 (a:1)", "worker 1 (b:1)"))
    mesh = worker_mesh(cluster, [device(1, 9), device(0, 3), device(1, 7), device(0, 2)])
    assert [(one.process_index, one.id) for one in mesh.devices] == [(0, 2), (0, 3), (1, 7), (1, 9)]
    assert mesh.peers is cluster
    with pytest.raises(ClusterError, match=r"'worker 0 \(a:1\)': 1, 'worker 1 \(b:1\)': 2.*HINT"):
        worker_mesh(cluster, [device(1, 9), device(0, 3), device(1, 7)])
    assert worker_mesh(None, jax.devices()[:2]).peers is None
