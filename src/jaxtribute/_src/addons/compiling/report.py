"""A compiled step as text, as a table over sizes and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from jaxtribute._src.addons.compiling.step import CompiledStep
from jaxtribute._src.addons.planning.report import layout_text
from jaxtribute._src.addons.tools import tables
from jaxtribute._src.addons.tools.tables import bytes_text, seconds_text

HOW = """\
Predicted, not run. Instructions follow each other as the compiler has ordered them. Collectives that run beside others,
as rings over the chip's links, count as far as they are waited for. The compiler of TPUs tells the cycles of most
instructions; all others take their operations at half of the chip's 16-bit rate or their bytes at 0.7 of the memory's
bandwidth, whichever takes longer. All else is the compiler's own; that of GPUs tells no operations and bytes, which are
counted in its program, operations of products and convolutions only."""
_NAMES = {
    "variables": "variables",
    "slots": "slots and other state",
    "others": "arguments, constants",
    "padding": "padding of these",
    "results": "results, undonated state",
    "scratch": "activations and scratch",
    "code": "the program",
}


def as_dict(step: CompiledStep) -> dict[str, Any]:
    """A `CompiledStep` as values that JSON can hold, without the program's text."""
    exchanged: list[dict[str, Any]] = []
    for one in step.collectives:
        among = step.topology.among(one, step.devices)
        # Between hosts it is as slow as their link.
        link = among.link if among.hosts > 1 else among.device.link
        exchanged.append(
            {
                "kind": one.kind,
                "bytes": one.nbytes,
                "times": one.times,
                "asynchronous": one.asynchronous,
                "arrays": len(one.parts),
                "devices": among.size,
                "hosts": among.hosts,
                "link": link.name,
            }
        )
    return {
        "topology": step.topology.name,
        "chip": step.topology.chip.name,
        "devices": len(step.topology.devices),
        "hosts": step.topology.hosts,
        "replicas": step.replicas,
        "batch": step.batch,
        "trains": step.step.trains,
        "memory": asdict(step.held) | {"total": step.held.total, "chip": step.topology.chip.memory},
        "state": step.state,
        "donated": step.donated,
        "copied": list(step.copied),
        "collectives": exchanged,
        "host_transfers": step.host,
        "flops": step.flops,
        "bytes_accessed": step.traffic,
        "open_loops": step.open_loops,
        "compute": step.compute,
        "told": step.timing.told,
        "hidden": step.timing.hidden,
        "exposed": step.timing.exposed,
        "step": step.estimate,
        "compile_seconds": step.seconds,
        "layout": step.layout,
        "budget": step.budget,
        "advice": list(step.advice),
    }


def text(one: dict[str, Any]) -> str:
    """The compiler's figures of a step, in some lines.

    Args:
      one: what `as_dict` made of it.
    """
    memory, rows = one["memory"], one["batch"] // one["replicas"]
    lines = [
        f"Compiled for {one['topology']}, {one['devices']:,} device(s) on {one['hosts']:,} host(s); nothing has run.",
        f"A batch of {one['batch']:,}: {rows:,} on each of {one['replicas']:,} replica(s).",
        *(
            []
            if one["trains"]
            else ["An evaluation: before a step that changes variables, the script ends or needs a value."]
        ),
        "",
        f"Memory on each device: {bytes_text(memory['total'])} of {bytes_text(memory['chip'])}",
    ]
    for key, name in _NAMES.items():
        lines.append(f"  {name:26}{bytes_text(memory[key]):>12}")
    if one["copied"]:
        shown = ", ".join(one["copied"][:5])
        lines.append(f"  {len(one['copied'])} variable(s) are copied, as old and new value need memory each: {shown}")
    elif one["trains"]:
        lines.append("  Every variable's new value takes over the memory of the old one.")
    lines += ["", f"Collectives: {_collectives(one['collectives'])}"]
    lines.append(
        f"Each device computes {one['flops'] / 1e9:,.3g} GFLOP and touches {bytes_text(one['bytes_accessed'])}; "
        f"{one['host_transfers']} transfer(s) to or from the host."
    )
    if one["open_loops"]:
        lines.append(
            f"{one['open_loops']} loop(s) whose number of turns depends on values: what they do counts once, and the "
            "step takes longer by their further turns."
        )
    lines.append(
        f"Predicted step: {seconds_text(one['step'])}; computing {seconds_text(one['compute'])} "
        f"({one['told'] / one['compute']:.0%} of it by the compiler's cycles), waiting for collectives "
        f"{seconds_text(one['exposed'])}, and {seconds_text(one['hidden'])} of them beside computing."
    )
    lines += [one["budget"]] if one["budget"] else []
    lines += ["", "What would make it faster:", *(f"- {line}" for line in one["advice"])] if one["advice"] else []
    return "\n".join([*lines, "", HOW]) + layout_text(one["layout"])


def _collectives(found: Sequence[dict[str, Any]]) -> str:
    if not found:
        return "none"
    # A model of many layers has hundreds that differ in their bytes only.
    counts: Counter[tuple[str, bool, int, str]] = Counter()
    sums: Counter[tuple[str, bool, int, str]] = Counter()
    for each in found:
        key = each["kind"], each["asynchronous"], each["devices"], each["link"]
        counts[key] += each["times"]
        sums[key] += each["times"] * each["bytes"]
    parts: list[str] = []
    for key, count in counts.items():
        kind, beside, devices, link = key
        asynchronous = "asynchronous " if beside else ""
        parts.append(f"{count} {asynchronous}{kind} of {bytes_text(sums[key])} among {devices:,} over {link}")
    return ", ".join(parts)


def table(found: Sequence[dict[str, Any]], mine: str) -> Table:
    """A line for each number of devices; a refusal of its compiler in place of figures.

    Args:
      found: what `as_dict` made of each step, or its name and the refusal.
      mine: the topology that was asked for, which is marked.
    """
    headings = "topology,devices,batch,memory each,compute,collectives waited for,step,compiled in"
    result = tables.table("Each compiled", headings.split(","))
    for one in found:
        style = "bold" if one["topology"] == mine else ""
        name = tables.marked(one["topology"], one["topology"] == mine)
        if "refusal" in one:
            result.add_row(name, f"{one['devices']:,}", "", one["short"], style=style or "dim")
            continue
        result.add_row(
            name,
            f"{one['devices']:,}",
            f"{one['batch']:,}",
            bytes_text(one["memory"]["total"]),
            seconds_text(one["compute"]),
            seconds_text(one["exposed"]),
            seconds_text(one["step"]),
            f"{one['compile_seconds']:.1f} s",
            style=style,
        )
    return result
