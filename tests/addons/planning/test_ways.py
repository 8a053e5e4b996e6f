"""Ways to send less between hosts, checked by hand and by what must always hold."""

from dataclasses import replace

import pytest

from jaxtribute._src.addons.planning import report
from jaxtribute._src.addons.planning.cost import StepCost
from jaxtribute._src.addons.planning.holding import Held, Kind
from jaxtribute._src.addons.planning.kinds import Link, link_named
from jaxtribute._src.addons.planning.prediction import predict
from jaxtribute._src.addons.planning.ways import Way, ways
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.errors import ArgumentError
from planning.test_prediction import COST, cluster
from planning.test_report import shown

BYTES = 4000
SUMS = replace(COST, collectives=(Collective("all-reduce", (BYTES,)),), parameters=BYTES)
SLOW = Link("slow", 2.0, 0.0, shared=True)


def found(cost: StepCost = SUMS, hosts: int = 2, devices: int = 1, link: Link = SLOW) -> dict[str, Way]:
    here = cluster(hosts, devices, link)
    return {one.lines: one for one in ways(cost, here, predict(cost, here))}


def test_synchronous_steps_and_sums_in_a_small_type() -> None:
    each = found()
    one, half = each["as planned"], each['wire="bfloat16"']
    # 32 examples of 50 operations at half of 100 a second, and what a host of two sends: as much as there is.
    assert (one.step, one.sent) == pytest.approx((32 + BYTES / 2, BYTES))
    assert one.busy == pytest.approx(BYTES / 2 / one.step)
    assert one.rate == pytest.approx(64 / one.step)
    assert (half.step, half.sent) == pytest.approx((32 + BYTES / 4, BYTES / 2))
    assert each['wire="int8"'].sent == pytest.approx(BYTES / 4 * (1 + 2 / 256))


def test_islands_send_all_changes_to_all_others_now_and_then() -> None:
    for hosts in (2, 3):
        each = found(hosts=hosts)
        alone = predict(SUMS, cluster(hosts, 1, SLOW)).compute
        meeting = (hosts - 1) * BYTES / 2.0
        assert each["sync_every=10"].step == pytest.approx(alone + meeting / 10)
        assert each["sync_every=100"].sent == pytest.approx((hosts - 1) * BYTES / 100)
        # A hundred steps take longer than the bytes of int4, about an eighth: nobody waits for them.
        assert each['sync_every=100, wire="int4", overlap_steps=99'].step == pytest.approx(alone)
        rest = meeting / 4 * (0.5 + 2 / 64) - 9 * alone
        assert each['sync_every=10, wire="int4", overlap_steps=9'].step == pytest.approx(alone + max(rest, 0) / 10)


def test_devices_of_a_host_add_up_first() -> None:
    each = found(devices=4)
    mine = predict(SUMS, cluster(2, 4, SLOW))
    within = mine.collectives - BYTES / 2
    assert each["as planned"].step == pytest.approx(mine.step)
    assert each["sync_every=10"].step == pytest.approx(mine.compute + within + BYTES / 2 / 10)


def test_none_where_there_is_nothing_to_gain() -> None:
    assert not found(hosts=1)
    assert not found(link=Link("fast", 1e6, 0.0))
    assert not found(replace(SUMS, collectives=(Collective("all-gather", (BYTES,)),)))
    # Variables in slices, or over the devices of a replica, are not whole on an island.
    held = Held((1000,), "float32", BYTES, Kind("plain"), Kind("sharded"))
    sliced = replace(SUMS, state=(held,))
    for cost in (sliced, replace(SUMS, per_replica=2, replicas=1, collectives=())):
        lines = found(cost, devices=2)
        assert lines
        assert not any("sync_every" in line for line in lines)


def test_the_table() -> None:
    here = cluster(2, 1, SLOW)
    text = shown(report.ways_table(here, ways(SUMS, here, predict(SUMS, here))))
    assert "Ways to send less over slow, on 2 devices: predicted, not run" in text
    assert len([line for line in text.splitlines() if "sync_every=" in line]) == 6


@pytest.mark.parametrize(
    ("text", "rate", "latency", "shared"),
    [
        ("20Mbit/s,10ms/host", 2.5e6, 0.01, True),
        ("2.5MB/s", 2.5e6, 1e-5, False),
        ("1 Gbit/s, 50us", 1.25e8, 5e-5, False),
        ("ethernet-1g", 1.25e8, 5e-5, True),
    ],
)
def test_slow_links(text: str, rate: float, latency: float, shared: bool) -> None:
    link = link_named(text)
    assert (link.rate, link.latency, link.shared) == (pytest.approx(rate), pytest.approx(latency), shared)


def test_units_that_are_not_known_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no link is called '20Kbit/s'"):
        link_named("20Kbit/s")
