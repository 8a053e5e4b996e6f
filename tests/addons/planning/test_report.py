"""Tables, plots and refusals."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from jaxtribute._src.addons.planning import report
from jaxtribute._src.addons.planning.prediction import epoch, predict
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.errors import ArgumentError, MissingLibraryError
from planning.test_prediction import COST, cluster

pytest.importorskip("matplotlib.font_manager")  # looks for fonts when it is first imported, by a process of its own

EXCHANGING = replace(COST, collectives=(Collective("all-reduce", (4000,)),))


def shown(what: object) -> str:
    console = Console(width=150, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_the_table_has_a_line_for_each_number_of_devices() -> None:
    here = cluster(4, 2)
    curve = [predict(EXCHANGING, here.with_size(count), batch=90) for count in (1, 2, 8, 128)]
    lines = [" ".join(line.split()) for line in shown(report.table(here, curve)).splitlines()]
    assert lines[0] == "4 host(s) of 2 device, inner within, outer between: predicted, not run"
    assert lines[1] == "devices batch on each compute collectives step examples/s efficiency memory each"
    assert lines[2] == "1 90 90 90.00 s 0.0 us 90.00 s 1 100% 1.0 KB"
    assert lines[4].startswith("> 8 90 12 ")  # the cluster that was asked for
    assert lines[5].endswith("38 idle")


def test_what_does_not_fit_is_marked_and_refused() -> None:
    here = cluster(1, 1)
    one = predict(EXCHANGING, here, batch=91)
    assert "does not fit" in shown(report.table(here, [one]))
    with pytest.raises(
        ArgumentError, match=r"needs 1.0 KB on each, and a device has 1.0 KB. HINT: bound what the backward pass"
    ):
        report.check_fits(one, here)
    report.check_fits(predict(EXCHANGING, here, batch=9), here)


def test_how_many_devices_are_needed() -> None:
    here = cluster(4, 2)
    curve = [predict(EXCHANGING, here.with_size(count), batch=90) for count in (1, 2, 8)]
    none = [replace(one, fits=False) for one in curve]
    cost = replace(EXCHANGING, most=(90, 420.0))
    assert report.summary_text(none, cost) == "It fits on none of these numbers of devices."
    text = report.summary_text([none[0], *(replace(one, fits=True) for one in curve[1:])], cost)
    assert text.startswith("The smallest number of devices above on which it fits: 2. The most examples a second: ")
    every = report.summary_text([replace(one, fits=True) for one in curve], cost)
    assert every.startswith("It fits on every number of devices above.")
    assert ", on 2." in every
    assert " At an efficiency of 80% or more: up to " in every
    assert "guess" not in every
    assert "Memory for more than 89 examples on a device is a guess" in report.summary_text(
        curve, replace(cost, most=(89, 420.0))
    )
    mixed = report.summary_text(curve, replace(cost, mixes=True))
    assert mixed.startswith("The work for an example grows with the batch")
    assert "Except for 64 examples on 2 replica(s)" in mixed
    assert "It fits" not in mixed


def test_the_cost_in_words() -> None:
    text = report.cost_text(EXCHANGING)
    assert text.startswith("step: batch 64 on 2 replica(s). Each computes 1.6e-06 GFLOP, touches 0 B,")
    assert "holds 420 B and exchanges 4.0 KB in 1 collective(s)." in text
    assert "all of it is taken to grow" in report.cost_text(replace(EXCHANGING, exact=False))


def test_an_epoch_in_words() -> None:
    full = predict(COST, cluster(1, 4), batch=8)
    text = report.epoch_text(epoch(COST, cluster(1, 4), full, 21), 21)
    assert (
        text
        == "An epoch of 21 examples: 3 steps, 6.00 s; the last of 5 examples, 2 on each device, 1 devices with none."
    )
    assert report.epoch_text(epoch(COST, cluster(1, 4), full, 16), 16) == "An epoch of 16 examples: 2 steps, 4.00 s."


def test_json() -> None:
    one = report.as_dict(predict(COST, cluster(1, 4), batch=8))
    assert one["devices"] == 4
    assert one["step"] == one["compute"] + one["collectives"]
    assert {"rate", "filled", "efficiency", "fits", "idle"} <= set(one)


def test_the_curve_is_drawn(tmp_path: Path) -> None:
    here = cluster(4, 2)
    report.plot([predict(EXCHANGING, here.with_size(n), batch=64) for n in (1, 8, 64)], here, tmp_path / "curve.svg")
    drawn = (tmp_path / "curve.svg").read_text()
    assert drawn.count("<path") > 10


def test_drawing_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingLibraryError, match=r"HINT: pip install -e '\.\[plot\]'"):
        report.plot([], cluster(1, 1), tmp_path / "curve.svg")


def test_collectives_of_a_loop_count_as_often_as_it_turns() -> None:
    looped = replace(COST, replicas=2, collectives=(Collective("all-gather", (1000,), times=8),))
    assert "exchanges 8.0 KB in 8 collective(s)" in report.cost_text(looped)
