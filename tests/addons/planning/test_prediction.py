"""Predictions, checked by hand and by what must always hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.planning.cost import Line, StepCost
from jaxtribute._src.addons.planning.kinds import DEVICES, Device, Link
from jaxtribute._src.addons.planning.prediction import (
    COMPUTE,
    MEMORY,
    Cluster,
    collective_time,
    epoch,
    predict,
    roofline,
    sizes,
)
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.errors import ArgumentError

INNER, OUTER = Link("inner", 100.0, 0.0), Link("outer", 10.0, 0.0)
DEVICE = Device("device", half=200.0, single=100.0, bandwidth=10.0, memory=1000.0, link=INNER, launch=0.0)
COST = StepCost("step", 64, 2, Line(0, 50), Line(0, 0), Line(100, 10), (), parameters=0, half=False)


def cluster(hosts: int, devices: int, outer: Link = OUTER) -> Cluster:
    return Cluster(DEVICE, hosts, devices, outer)


def test_computing_is_bound_by_operations_or_by_memory() -> None:
    assert roofline(COST, DEVICE, 2) == pytest.approx(100 / (COMPUTE * 100))
    assert roofline(replace(COST, half=True), DEVICE, 2) == pytest.approx(100 / (COMPUTE * 200))
    assert roofline(replace(COST, traffic=Line(70, 0)), DEVICE, 2) == pytest.approx(70 / (MEMORY * 10))
    assert roofline(COST, replace(DEVICE, launch=9.0), 2) == pytest.approx(2 + 9)


@pytest.mark.parametrize(
    ("kind", "hosts", "devices", "expected"),
    [
        ("all-reduce", 1, 4, 2 * 3 / 4 * 400 / 100),
        ("all-gather", 1, 4, 3 / 4 * 400 / 100),
        ("reduce-scatter", 1, 4, 3 / 4 * 400 / 100),
        ("all-reduce", 8, 1, 2 * 7 / 8 * 400 / 10),
        ("all-reduce", 8, 4, 2 * 3 / 4 * 400 / 100 + 2 * 7 / 8 * 100 / 10),
        ("collective-permute", 1, 4, 400 / 100),
        ("collective-permute", 2, 4, 400 / 10),
        ("all-reduce", 1, 1, 0.0),
    ],
)
def test_collectives(kind: str, hosts: int, devices: int, expected: float) -> None:
    assert collective_time(Collective(kind, (300, 100)), cluster(hosts, devices)) == pytest.approx(expected)


def test_latency_grows_with_the_logarithm_and_a_shared_link_is_shared() -> None:
    slow = replace(OUTER, latency=1.0)
    empty = Collective("all-reduce", (0,))
    assert collective_time(empty, cluster(8, 1, slow)) == pytest.approx(2 * 3)
    shared = replace(OUTER, shared=True)
    one = Collective("all-reduce", (400,))
    apart = collective_time(one, cluster(8, 4)) - collective_time(one, cluster(1, 4))
    assert collective_time(one, cluster(8, 4, shared)) - collective_time(one, cluster(1, 4)) == pytest.approx(4 * apart)


def test_a_batch_that_the_devices_do_not_divide() -> None:
    one = predict(COST, cluster(1, 4), batch=5)
    assert (one.rows, one.idle, one.batch) == (2, 1, 5), "2, 2, 1 and none"
    assert one.filled == pytest.approx(5 / 8)
    assert one.compute == pytest.approx(2 * 50 / 50)
    assert one.efficiency == pytest.approx(5 / 8), "nothing is exchanged; the rest is left over"
    assert one.rate == pytest.approx(5 / 2)


def test_more_devices_than_examples() -> None:
    one = predict(COST, cluster(512, 8), batch=64)
    assert (one.rows, one.idle) == (1, 4096 - 64)


def test_a_batch_for_each_device() -> None:
    one = predict(COST, cluster(2, 4), batch=7, weak=True)
    assert (one.batch, one.rows, one.idle, one.filled) == (56, 7, 0, 1.0)
    assert one.efficiency == pytest.approx(1.0)


def test_memory_is_what_the_fullest_device_holds() -> None:
    assert predict(COST, cluster(1, 1), batch=90).fits
    full = predict(COST, cluster(1, 1), batch=91)
    assert full.memory == pytest.approx(1010)
    assert not full.fits
    assert predict(COST, cluster(1, 2), batch=91).fits


def test_what_was_measured_counts_more_than_rates() -> None:
    one = predict(COST, cluster(1, 2), batch=10, measured=lambda rows: 3.0 + rows)
    assert one.compute == 8.0
    assert one.efficiency == pytest.approx(13 / 8 / 2)


def test_replicas_of_several_devices_make_up_the_cluster() -> None:
    within = Collective("all-reduce", (400,), groups=((0, 1),))
    between = Collective("all-reduce", (800,), groups=((0, 2),))
    cost = replace(COST, per_replica=2, collectives=(within, between))
    assert (cost.within, cost.exchanged()) == ((within,), (between,))
    one = predict(cost, cluster(1, 8), batch=64)
    assert (one.devices, one.replicas, one.rows, one.idle) == (8, 4, 16, 0)
    # Seen with 32 examples on a replica, so half of its activations travel within it.
    inner = collective_time(within, cluster(1, 2)) / 2
    assert one.collectives == pytest.approx(inner + collective_time(between, cluster(1, 8)))
    alone = predict(cost, cluster(1, 2), batch=64)
    assert (alone.rows, alone.efficiency) == (64, pytest.approx(1.0))
    assert alone.collectives == pytest.approx(4 * inner)
    with pytest.raises(ArgumentError, match=r"3 devices make up no whole replicas of 2\. HINT"):
        predict(cost, cluster(1, 3))


def test_an_epoch_ends_with_what_is_left() -> None:
    full = predict(COST, cluster(1, 4), batch=8)
    whole = epoch(COST, cluster(1, 4), full, 21)
    assert whole.last is not None
    assert (whole.steps, whole.last.batch, whole.last.rows, whole.last.idle) == (3, 5, 2, 1)
    assert whole.seconds == pytest.approx(2 * full.step + whole.last.step)
    assert epoch(COST, cluster(1, 4), full, 16).last is None


@given(
    st.sampled_from(list(DEVICES.values())),
    st.integers(1, 5000),
    st.integers(1, 600),
    st.integers(1, 16),
    st.integers(0, 10**9),
)
def test_what_always_holds(device: Device, batch: int, hosts: int, devices: int, nbytes: int) -> None:
    cost = replace(COST, flops=Line(1e6, 1e9), collectives=(Collective("all-reduce", (nbytes,)),))
    one = predict(cost, Cluster(device, hosts, devices, OUTER), batch=batch)
    assert one.devices == hosts * devices
    assert (one.rows - 1) * one.devices < batch <= one.rows * one.devices
    assert 0 < one.filled <= 1
    assert 0 < one.efficiency <= 1 + 1e-9
    assert one.step >= one.compute > 0
    if batch > one.devices:
        assert (
            one.rate <= batch / predict(cost, Cluster(device, 1, 1, OUTER), batch=batch).compute * one.devices * 1.001
        )


@pytest.mark.parametrize(("hosts", "devices", "batch"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_below_one(hosts: int, devices: int, batch: int) -> None:
    with pytest.raises(ArgumentError, match="HINT: all must be at least 1"):
        predict(COST, cluster(hosts, devices), batch=batch)


def test_clusters_of_other_sizes_and_the_steps_of_a_curve() -> None:
    assert cluster(64, 8).size == 512
    assert cluster(64, 8).with_size(4) == cluster(1, 4)
    assert cluster(64, 8).with_size(24) == cluster(3, 8)
    assert sizes(64, 8) == [1, 2, 4, 8, 16, 32, 64]
    assert sizes(16, 3) == [1, 2, 3, 6, 12]
    assert sizes(2, 8) == [1, 2]
    assert sizes(4, 1) == [1, 2, 4]
