"""Profiles of CPUs, GPUs and TPUs, as far as they are read."""

from types import SimpleNamespace
from typing import Any

import pytest

from jaxtribute._src.addons.profiling.timeline import INPUT_MARK, WINDOW, Operation, innermost, timeline


def event(name: str, start: float, stop: float, **stats: Any) -> Any:
    return SimpleNamespace(name=name, start_ns=start, duration_ns=stop - start, stats=list(stats.items()))


def plane(name: str, **lines: list[Any]) -> Any:
    return SimpleNamespace(
        name=name, lines=[SimpleNamespace(name=line.replace("_", " "), events=e) for line, e in lines.items()]
    )


def host(*events: Any) -> Any:
    return plane("/host:CPU", python=[event(WINDOW, 100, 200), *events])


def test_logical_cpu_devices_share_threads() -> None:
    threads = plane(
        "/host:CPU",
        first=[
            event("dot.1", 110, 120, hlo_op="dot.1", device_ordinal=0),
            event("end: dot.1", 120, 121, hlo_op="dot.1", device_ordinal=0),
            event("all-reduce", 120, 150, hlo_op="all-reduce", device_ordinal=1),
            event("Rendezvous", 125, 140),
        ],
        second=[event("dot.1", 115, 119, hlo_op="dot.1", device_ordinal=1)],
    )
    found = timeline([host(event(INPUT_MARK, 101, 105)), threads])
    assert found.window == (100, 200)
    assert found.inputs == [(101, 105)]
    assert found.devices == {
        "CPU:0": [Operation("dot.1", ((110, 120),))],
        "CPU:1": [Operation("all-reduce", ((120, 150),)), Operation("dot.1", ((115, 119),))],
    }


def test_streams_of_a_gpu_and_nothing_else_of_its_plane() -> None:
    gpu = plane(
        "/device:GPU:0",
        **{
            "Stream #7(Compute)": [event("kernel_1", 110, 120, hlo_op="fusion.3"), event("memset", 120, 121)],
            "Stream #9(NCCL)": [event("ncclDevKernel_AllReduce", 130, 140)],
            "XLA Modules": [event("jit_step", 100, 200)],
        },
    )
    operations = timeline([host(), gpu]).devices["GPU:0"]
    assert [(one.name, one.collective) for one in operations] == [
        ("fusion.3", False),
        ("memset", False),
        ("ncclDevKernel_AllReduce", True),
    ]


def test_operations_of_a_tpu() -> None:
    tpu = plane("/device:TPU:0", XLA_Ops=[event("all-gather.2", 110, 120)], Steps=[event("0", 100, 200)])
    assert timeline([host(), tpu]).devices == {"TPU:0": [Operation("all-gather.2", ((110, 120),))]}


def test_what_ran_outside_the_window_is_left_out() -> None:
    early = plane("/host:CPU", first=[event("dot", 10, 20, hlo_op="dot", device_ordinal=0)])
    assert timeline([host(), early]).devices == {"CPU:0": []}


def test_a_loop_does_not_hide_what_runs_in_it() -> None:
    events = [(0.0, 100.0, "while"), (10.0, 20.0, "dot"), (12.0, 15.0, "call"), (30.0, 60.0, "all-reduce.3")]
    found = {one.name: one.spans for one in innermost(events)}
    assert found == {
        "while": ((0, 10), (20, 30), (60, 100)),
        "dot": ((10, 12), (15, 20)),
        "call": ((12, 15),),
        "all-reduce.3": ((30, 60),),
    }


@pytest.mark.parametrize(
    "name", ["all-reduce.1", "reduce-scatter", "all-gather-start", "ncclKernel", "all-to-all", "psum.7"]
)
def test_collectives_are_known_by_their_names(name: str) -> None:
    assert Operation(name, ()).collective


@pytest.mark.parametrize("name", ["dot.1", "reduce_fusion", "reduce-window", "gather", "copy_psum"])
def test_other_operations_are_not(name: str) -> None:
    assert not Operation(name, ()).collective
