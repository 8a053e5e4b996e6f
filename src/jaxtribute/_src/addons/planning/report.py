"""Predictions as a table, as JSON and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxtribute._src.addons.planning.cost import StepCost
from jaxtribute._src.addons.planning.prediction import Cluster, Epoch, Prediction
from jaxtribute._src.addons.planning.ways import Way
from jaxtribute._src.addons.tools import tables
from jaxtribute._src.addons.tools.tables import bytes_text, seconds_text
from jaxtribute.errors import ArgumentError, MissingLibraryError


def cost_text(cost: StepCost) -> str:
    """Cost of the step, in a line or two."""
    rows, exchanged = -(-cost.batch // cost.replicas), cost.exchanged()
    computed = f"{cost.flops.at(rows) / 1e9:,.3g} GFLOP"
    touched, held = bytes_text(cost.traffic.at(rows)), bytes_text(cost.memory.at(rows))
    sent, times = bytes_text(cost.sent), sum(one.times for one in exchanged)
    groups = f" of {cost.per_replica} devices" if cost.per_replica > 1 else ""
    each = "Each device" if groups else "Each"
    text = (
        f"{cost.name}: batch {cost.batch:,} on {cost.replicas} replica(s){groups}. {each} computes {computed}, touches "
        f"{touched},\nholds {held} and exchanges "
    )
    text += f"{sent} in {times} collective(s)." if cost.replicas > 1 else "nothing with other replicas."
    if cost.replicas == 1 and exchanged:
        text += (
            f" More replicas are planned under {cost.planned_under},\nwhere they all-reduce {sent} of gradients in a "
            "step; their memory is rather told too large. HINT: for exact figures plan the script under that strategy."
        )
    if cost.within:
        inner = bytes_text(sum(one.times * one.nbytes for one in cost.within))
        text += f" Within its replica it exchanges {inner} in {sum(one.times for one in cost.within)} more."
    if not cost.exact:
        text += "\nIt was seen at this batch size only, so all of it is taken to grow with the examples."
    text += f"\n{cost.budget}" if cost.budget else ""
    return text + layout_text(cost.layout)


def layout_text(table: str) -> str:
    """The table of an automatic layout, beneath other lines; nothing if there is none."""
    return f"\n\nThe automatic layout on the devices of each replica:\n{table}" if table else ""


def table(cluster: Cluster, curve: Sequence[Prediction]) -> Table:
    """A line for each number of devices; that of the cluster itself is marked."""
    title = (
        f"{cluster.hosts} host(s) of {cluster.devices} {cluster.device.name}, {cluster.device.link.name} within, "
        f"{cluster.link.name} between: predicted, not run"
    )
    headings = "devices,batch,on each,compute,collectives,step,examples/s,efficiency,memory each,"
    result = tables.table(title, headings.split(","))
    for one in curve:
        notes = [] if one.fits else ["does not fit"]
        notes += [f"{one.idle:,} idle"] if one.idle else []
        # Idle replicas are the reason for empty places, and told already.
        notes += [f"{1 - one.filled:.0%} of the places empty"] if one.filled < 0.995 and not one.idle else []
        mine = one.devices == cluster.size
        result.add_row(
            tables.marked(f"{one.devices:,}", mine),
            f"{one.batch:,}",
            f"{one.rows:,}",
            seconds_text(one.compute),
            seconds_text(one.collectives),
            seconds_text(one.step),
            f"{one.rate:,.0f}",
            f"{one.efficiency:.0%}",
            bytes_text(one.memory),
            ", ".join(notes),
            style="bold" if mine else "" if one.fits else "dim",
        )
    return result


def ways_table(cluster: Cluster, found: Sequence[Way]) -> Table:
    """A line for each way to send less between the hosts."""
    title = f"Ways to send less over {cluster.link.name}, on {cluster.size:,} devices: predicted, not run"
    result = tables.table(title, ["way", "step", "examples/s", "a host sends a step", "link in use"])
    result.columns[0].justify = "left"
    for one in found:
        sent = bytes_text(one.sent)
        result.add_row(one.lines, seconds_text(one.step), f"{one.rate:,.0f}", sent, f"{one.busy:.0%}")
    return result


_WELL_USED = 0.8
"""The efficiency from which on devices count as well used."""


def summary_text(curve: Sequence[Prediction], cost: StepCost) -> str:
    """A line on how many devices a step needs, with how many it is fastest, and how many it uses well.

    Args:
      curve: predictions for growing numbers of devices.
      cost: what the step costs.
    """
    if cost.mixes:
        return (
            "The work for an example grows with the batch, as where each row meets those of all replicas. Except for "
            f"{cost.batch:,} examples on {cost.replicas} replica(s) these figures take it as constant: time and memory "
            "may be far higher. HINT: --topology v5e:4x4 (h100:1x8, ...) compiles the step for each number of devices."
        )
    guess = ""
    if max(one.rows for one in curve) > cost.known_rows:
        guess = (
            f" Memory for more than {cost.known_rows:,} examples on a device is a guess, which may be much too low. "
            "HINT: plan the script itself with this --batch, or give it a larger batch."
        )
    return _summary(curve) + guess


def _summary(curve: Sequence[Prediction]) -> str:
    fitting = [one for one in curve if one.fits]
    if not fitting:
        return "It fits on none of these numbers of devices."
    if len(fitting) == len(curve):
        text = "It fits on every number of devices above."
    else:
        text = f"The smallest number of devices above on which it fits: {fitting[0].devices:,}."
    fastest = max(fitting, key=attrgetter("rate"))
    text += f" The most examples a second: {fastest.rate:,.0f}, on {fastest.devices:,}."
    used = [one.devices for one in fitting if one.efficiency >= _WELL_USED]
    return text + (f" At an efficiency of {_WELL_USED:.0%} or more: up to {used[-1]:,}." if used else "")


def epoch_text(whole: Epoch, examples: int) -> str:
    """Time of a pass, and the form of its last step."""
    text = f"An epoch of {examples:,} examples: {whole.steps:,} steps, {seconds_text(whole.seconds)}"
    if whole.last is not None:
        last = whole.last
        text += f"; the last of {last.batch:,} examples, {last.rows:,} on each device"
        text += f", {last.idle:,} devices with none" if last.idle else ""
    return text + "."


def as_dict(one: Prediction) -> dict[str, Any]:
    """The prediction as values that JSON can hold."""
    return asdict(one) | {"step": one.step, "rate": one.rate, "filled": one.filled}


def check_fits(one: Prediction, cluster: Cluster) -> None:
    """Refuses what cannot fit.

    Raises:
      ArgumentError: the fullest device needs more memory than it has.
    """
    if one.fits:
        return
    raise ArgumentError(
        f"a step of {one.batch:,} examples on {one.devices:,} devices needs {bytes_text(one.memory)} on each, and a "
        f"{cluster.device.name} has {bytes_text(cluster.device.memory)}. HINT: bound what the backward pass "
        'keeps: jd.config.set_memory_budget("auto"); use a smaller batch, more devices, '
        "16-bit numbers, or a strategy that splits variables or optimizer state."
    )


def plot(curve: Sequence[Prediction], cluster: Cluster, path: Path) -> None:
    """Draws the scaling curve: examples a second, and efficiency, over the number of devices.

    Args:
      curve: predictions for growing numbers of devices.
      cluster: what they are for.
      path: a file that matplotlib can write, such as `.png` or `.svg`.

    Raises:
      MissingLibraryError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import ScalarFormatter
    except ImportError as error:
        raise MissingLibraryError(
            "drawing the scaling curve needs matplotlib, not installed. HINT: pip install -e '.[plot]' in a clone."
        ) from error
    # Without pyplot, which may want a display, and keeps every figure.
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    rates, shares = figure.subplots(1, 2)
    devices = list(map(attrgetter("devices"), curve))
    first = curve[0]
    rates.plot(devices, [first.rate / first.devices * count for count in devices], "--", color="0.6", label="ideal")
    rates.plot(devices, list(map(attrgetter("rate"), curve)), "o-", markersize=3, label="predicted")
    rates.set(xscale="log", yscale="log", xlabel="devices", ylabel="examples a second")
    rates.legend(frameon=False)
    shares.plot(devices, [100 * one.efficiency for one in curve], "o-", markersize=3, label="efficiency")
    shares.plot(devices, [100 * one.filled for one in curve], ":", color="0.4", label="places filled")
    shares.set(xscale="log", ylim=(0, 105), xlabel="devices", ylabel="%")
    shares.legend(frameon=False)
    for axes in (rates, shares):
        axes.set_xscale("log", base=8)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.grid(alpha=0.3)
        axes.axvline(cluster.size, color="tab:red", linewidth=0.8)
    figure.suptitle(f"{cluster.device.name}, {cluster.devices} a host, {cluster.link.name} between: predicted, not run")
    figure.savefig(path, dpi=150)
