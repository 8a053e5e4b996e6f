"""The four shares of a step, which add up to the whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from jaxtribute._src.addons.profiling.breakdown import Breakdown, Shares, break_down
from jaxtribute._src.addons.profiling.timeline import Operation, Timeline

SPAN = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(lambda pair: (float(min(pair)), float(max(pair))))
OPERATION = st.builds(Operation, st.sampled_from(["dot", "all-reduce"]), st.lists(SPAN, max_size=3).map(tuple))


def text(breakdown: Breakdown) -> str:
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(breakdown)
    return captured.get()


@given(
    st.dictionaries(st.sampled_from(["CPU:0", "CPU:1"]), st.lists(OPERATION, max_size=5)),
    st.lists(SPAN, max_size=4),
    st.integers(1, 5),
)
def test_the_shares_add_up(devices: dict[str, list[Operation]], inputs: list[tuple[float, float]], steps: int) -> None:
    result = break_down(Timeline(devices, (200.0, 900.0), inputs), steps)
    for shares in (result.mean, *result.devices.values()):
        assert shares.step == pytest.approx(700e-9 / steps)
        assert min(shares.compute, shares.collectives, shares.input) >= 0
        assert shares.host >= -1e-15


def test_what_overlaps_counts_once_and_for_the_device() -> None:
    operations = [Operation("dot", ((0, 40),)), Operation("all-reduce", ((30, 60),))]
    result = break_down(Timeline({"GPU:0": operations}, (0, 100), [(50, 80)]), 1)
    expected = Shares(40e-9, 20e-9, 20e-9, 20e-9)
    assert result.mean.compute == pytest.approx(expected.compute), "a collective behind compute is free"
    assert result.mean.collectives == pytest.approx(expected.collectives)
    assert result.mean.input == pytest.approx(expected.input), "a wait behind a collective is free"
    assert result.mean.host == pytest.approx(expected.host)


def test_the_mean_is_over_devices_and_steps() -> None:
    devices = {"CPU:0": [Operation("dot", ((0, 80),))], "CPU:1": [Operation("dot", ((0, 40),))]}
    result = break_down(Timeline(devices, (0, 100), []), 2)
    assert result.mean.compute == pytest.approx(30e-9)
    assert result.devices["CPU:0"].compute == pytest.approx(40e-9)
    assert result.operations == (("dot", pytest.approx(30e-9), False),)


def test_the_table_and_the_json() -> None:
    devices = {f"CPU:{i}": [Operation("dot", ((0, 5e6),)), Operation("all-reduce", ((5e6, 6e6),))] for i in range(2)}
    result = break_down(Timeline(devices, (0, 1e7), [(6e6, 7e6)]), 1)
    table = text(result)
    assert "A step: 10.000 ms, mean of 1" in table
    assert " ".join(table.splitlines()[2].split()) == "mean 5.000 ms 50% 1.000 ms 10% 1.000 ms 10% 3.000 ms 30%"
    assert "CPU:1" in table
    assert "all-reduce  1.000 ms    10%  collective" in table
    data = json.loads(json.dumps(result.as_dict()))
    assert data["step_s"] == pytest.approx(0.01)
    assert data["mean"]["host"] == pytest.approx(0.003)
    assert [one["name"] for one in data["operations"]] == ["dot", "all-reduce"]


def test_a_profile_without_operations() -> None:
    result = break_down(Timeline({}, (0, 0), []), 1)
    assert "No operation was recorded" in text(result)
