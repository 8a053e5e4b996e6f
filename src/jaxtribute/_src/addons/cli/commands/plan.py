"""`jaxtribute plan`: how long a step takes on a cluster, and whether it fits."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from jaxtribute._src.addons.planning.calibration import Comparison
    from jaxtribute._src.addons.planning.cost import StepCost

HELP = "predict a training step's time, memory and scaling on devices that are not there"

_WIDE = 160
"""Columns of a table that goes to a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    add = parser.add_argument
    add("step", type=Path, metavar="SCRIPT", help="a Python program that trains, or STEP.json that --save wrote")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments; {devices} becomes their number")
    add(
        "--topology",
        metavar="NAME",
        help="compile for these TPUs or GPUs, such as v5e:4x4 or h100:2x8, with the real compiler",
    )
    add("--fit", action="store_true", help="with --topology: search for the ways to train that fit and are fastest")
    add("--budget", metavar="BYTES", help="with --fit: what a step may take of each device, such as 12GiB (all)")
    add("--most-batch", type=int, metavar="N", help="with --fit: how large the global batch may become (as it is)")
    add("--hosts", type=int, default=1, metavar="N", help="hosts (1)")
    add("--devices", type=int, default=8, metavar="N", help="devices of each host (8)")
    add("--device-kind", metavar="KIND", help="what they are, such as h200 or tpu-v5e; see --list")
    add("--link", default="infiniband-ndr", metavar="LINK", help="between hosts: a name, or 50GB/s,5us; see --list")
    add("--batch", type=int, metavar="N", help="examples in the global batch (the script's)")
    add("--shapes", action="store_true", help="give variables no memory: for models larger than this machine")
    add("--weak", action="store_true", help="keep the batch for each device, so that the global one grows with them")
    add("--examples", type=int, metavar="N", help="examples in an epoch, to tell how long one takes")
    add("--seconds", type=float, metavar="S", help="with --topology: begin no program later (45 s; with --fit 480)")
    add("--most", type=int, default=4096, metavar="N", help="how far the table goes (4096 devices)")
    add("--calibrate", action="store_true", help="measure this machine, and predict beside what is measured")
    add("--local", default="1,2,4,8", metavar="N,...", help="numbers of devices of this machine for --calibrate")
    add("--workers", type=int, default=1, metavar="N", help="for --calibrate: N processes of one device each as well")
    add("--save", type=Path, metavar="FILE", help="write what the step costs, to plan with it elsewhere")
    add("--plot", type=Path, metavar="FILE", help="draw the scaling curve; needs jaxtribute[plot]")
    add("--json", action="store_true", help="print everything as JSON")
    add("--list", action=_List, nargs=0, help="list the kinds of devices and links, and end")
    parser.epilog = (
        "Options of the command stand before SCRIPT; what follows it is the script's own. "
        "Exit status: 0, 1 if the step does not fit, 2 for anything else that is wrong."
    )


COMPILING_S = 1800.0
"""Seconds after which a compiler is given up."""


class _List(argparse.Action):
    """Prints the tables and ends, as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from jaxtribute._src.addons.planning.kinds import DEVICES, LINKS

        for device in DEVICES.values():
            rates = f"{device.half / 1e12:,.0f} TFLOP/s of 16 bits, {device.bandwidth / 1e12:.2f} TB/s"
            sys.stdout.write(f"{device.name:16}{rates}, {device.memory / 1e9:.0f} GB\n")
        for link in LINKS.values():
            shared = " shared by a host's devices" if link.shared else " for each device"
            sys.stdout.write(f"{link.name:16}{link.rate / 1e9:g} GB/s{shared}, {link.latency * 1e6:g} us\n")
        parser.exit()


def run(arguments: argparse.Namespace) -> int:
    """Looks at the step, calibrates if asked, and prints what is to be expected."""
    from jaxtribute.errors import JaxtributeError

    try:
        _check_options(arguments)
        if arguments.fit:
            return _fit(arguments)
        return _compile(arguments) if arguments.topology else _plan(arguments)
    except JaxtributeError as error:
        sys.stderr.write(f"jaxtribute plan: {error}\n")
        return 2


def _check_options(arguments: argparse.Namespace) -> None:
    """Refuses names that nothing has, and --shapes where it would say nothing; before the script runs.

    Raises:
      ArgumentError: the command runs steps, compiles for described devices, or reads what was saved; or no kind of
        device or link has that name.
    """
    from jaxtribute._src.addons.planning.kinds import device_named, link_named
    from jaxtribute.errors import ArgumentError

    if arguments.device_kind:
        device_named(arguments.device_kind)
        link_named(arguments.link)
    others = {
        "--calibrate, which runs the step": arguments.calibrate,
        "--topology, which gives variables no memory anyway": arguments.topology and not arguments.fit,
        f"{arguments.step}, which was saved": arguments.step.suffix == ".json",
    }
    present = [other for other, there in others.items() if there]
    if arguments.shapes and present:
        raise ArgumentError(f"--shapes was given with {present[0]}. HINT: leave out one of the two.")


def _fit(arguments: argparse.Namespace) -> int:
    """Searches for the best ways to train the script, and prints them with the lines to write."""
    from rich.console import Console

    from jaxtribute._src.addons.fitting import report
    from jaxtribute._src.addons.fitting.asking import SECONDS, fit
    from jaxtribute._src.addons.memory.amounts import AUTO, checked
    from jaxtribute.errors import ArgumentError

    if arguments.step.suffix == ".json":
        raise ArgumentError(f"--fit runs a script, and {arguments.step} is not one. HINT: give the script.")
    if not arguments.topology:
        raise ArgumentError("--fit was given without --topology. HINT: --fit --topology v5e:4x4, h100:1x8 or cpu:8.")
    budget = None if arguments.budget is None else checked(arguments.budget)
    if budget == AUTO:
        raise ArgumentError("--budget auto says nothing. HINT: --budget 12GiB, or leave it out for all of the memory.")
    found = fit(
        arguments.step,
        arguments.arguments,
        arguments.topology,
        budget=budget if isinstance(budget, int) else None,
        batch=arguments.batch,
        most_batch=arguments.most_batch,
        seconds=SECONDS if arguments.seconds is None else arguments.seconds,
    )
    ranked, answer = found.ranked, found.answer
    if arguments.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    console = Console(quiet=arguments.json)
    if not console.is_terminal:
        console.width = _WIDE
    if ranked:
        if arguments.save is not None:
            found.save(arguments.save)
        shown = report.table(ranked, answer["memory"], answer["topology"], len(found.found))
        console.print(shown, highlight=False)
        saved = str(arguments.save or "")
        console.print(f"\n{report.lines_text(ranked[0], answer['batch'], saved)}", highlight=False, markup=False)
    console.print(f"\n{report.end_text(answer, found.found)}", highlight=False, markup=False)
    if not ranked:
        sys.stderr.write(f"jaxtribute plan: none of what was tried fits {answer['topology']}. {report.NONE_HINT}\n")
    return 0 if ranked else 1


def _compile(arguments: argparse.Namespace) -> int:
    """Compiles the script's step for accelerators and for more of them, and prints what the compiler says."""
    from rich.console import Console

    from jaxtribute._src.addons.compiling import report
    from jaxtribute._src.addons.compiling.topologies import ENVIRONMENT, check_topology
    from jaxtribute._src.addons.tools.user_scripts import run_module
    from jaxtribute.errors import ArgumentError

    if arguments.step.suffix == ".json" or not arguments.step.is_file():
        raise ArgumentError(f"--topology compiles a script, and {arguments.step} is not one. HINT: give the script.")
    check_topology(arguments.topology)  # so that a wrong name is told before a process is begun
    names = ("topology", "most", "batch", "weak", "seconds")
    arguments.seconds = 45.0 if arguments.seconds is None else arguments.seconds
    settings = json.dumps({name: getattr(arguments, name) for name in names})
    given = [settings, str(arguments.step), *arguments.arguments]
    environment = {"JAX_PLATFORMS": "cpu", **ENVIRONMENT}  # JAX looks for no accelerator
    answer = run_module(
        "jaxtribute._src.addons.compiling.script",
        given,
        1,
        script=arguments.step,
        settings=environment,
        deadline_s=COMPILING_S,
    )
    mine = answer["compiled"]
    # The table also if the step does not fit: other sizes may.
    if arguments.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        console = Console()
        if not console.is_terminal:
            console.width = _WIDE
        if "refusal" not in mine:
            console.print(report.text(mine), highlight=False)
        console.print("", report.table(answer["curve"], mine["topology"]))
        if answer["left_out"]:
            console.print(f"\nNot compiled within {arguments.seconds:g} s: {', '.join(answer['left_out'])}.")
    if "refusal" in mine:
        sys.stderr.write(f"jaxtribute plan: {mine['refusal']}\n")
        return 1
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from jaxtribute._src.addons.planning import report

    cost, comparisons = _known(arguments)
    if arguments.save is not None:
        cost.save(arguments.save)
    answer: dict[str, Any] = {"local": [one.as_dict() for one in comparisons]}
    # JSON is all of the output then; tables would stand in the middle of it.
    console = Console(quiet=arguments.json)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(report.cost_text(cost), highlight=False)
    if comparisons:
        from jaxtribute._src.addons.planning.calibration import table

        console.print("", table(comparisons))
    refusal = _predict(arguments, cost, comparisons, answer, console) if arguments.device_kind else None
    if not arguments.device_kind and not comparisons:
        console.print("\nHINT: --device-kind h200 --hosts 64 predicts a cluster, --calibrate measures this machine.")
    if arguments.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    if refusal:
        sys.stderr.write(f"jaxtribute plan: {refusal}\n")
        return 1
    return 0


def _known(arguments: argparse.Namespace) -> tuple[StepCost, list[Comparison]]:
    from jaxtribute._src.addons.planning.calibration import calibrate, calibrate_processes, script_cost
    from jaxtribute._src.addons.planning.cost import StepCost
    from jaxtribute.errors import ArgumentError

    saved = arguments.step.suffix == ".json"
    if arguments.calibrate:
        if saved:
            raise ArgumentError(f"--calibrate runs a script, and {arguments.step} is not one. HINT: give the script.")
        try:
            counts = sorted(set(map(int, arguments.local.split(","))))
        except ValueError:
            counts = [0]  # refused below
        if counts[0] < 1:
            raise ArgumentError(f"--local {arguments.local!r} is no list of numbers. HINT: --local 1,2,4,8.")
        cost, found = calibrate(arguments.step, arguments.arguments, counts)
        if arguments.workers > 1:
            found.append(calibrate_processes(arguments.step, arguments.arguments, arguments.workers))
        return cost, found
    if saved:
        return StepCost.load(arguments.step), []
    return script_cost(arguments.step, arguments.arguments, shapes=arguments.shapes, most=arguments.batch or 0), []


def _predict(
    arguments: argparse.Namespace,
    cost: StepCost,
    comparisons: list[Comparison],
    answer: dict[str, Any],
    console: Console,
) -> str | None:
    """Prints what is to be expected of a cluster; returns why it cannot be, if so."""
    from jaxtribute._src.addons.planning import report
    from jaxtribute._src.addons.planning.calibration import interpolated, is_here
    from jaxtribute._src.addons.planning.kinds import device_named, link_named
    from jaxtribute._src.addons.planning.prediction import Cluster, Prediction, epoch, predict, sizes
    from jaxtribute._src.addons.planning.ways import ways
    from jaxtribute.errors import ArgumentError

    device = device_named(arguments.device_kind)
    cluster = Cluster(device, arguments.hosts, arguments.devices, link_named(arguments.link))
    measured = interpolated(comparisons) if comparisons and is_here(device) else None
    batch = arguments.batch or cost.batch

    def on(devices: Cluster) -> Prediction:
        return predict(cost, devices, batch=batch, weak=arguments.weak, measured=measured)

    # The cluster itself has a line, though its size may be none of the usual ones.
    sizes_shown = {*sizes(max(arguments.most, cluster.size), cluster.devices), cluster.size}
    counts = sorted([count for count in sizes_shown if count % cost.per_replica == 0])
    mine = on(cluster)
    curve = list(map(on, map(cluster.with_size, counts)))
    console.print("", report.table(cluster, curve))
    console.print(f"\n{report.summary_text(curve, cost)}", highlight=False)
    answer |= {"prediction": report.as_dict(mine), "curve": list(map(report.as_dict, curve)), "mixes": cost.mixes}
    if found := ways(cost, cluster, mine):
        console.print("", report.ways_table(cluster, found))
        answer["ways"] = list(map(asdict, found))
    if arguments.examples:
        whole = epoch(cost, cluster, mine, arguments.examples, measured)
        console.print(f"\n{report.epoch_text(whole, arguments.examples)}", highlight=False)
        answer["epoch"] = {"steps": whole.steps, "seconds": whole.seconds}
    if arguments.plot is not None:
        report.plot(curve, cluster, arguments.plot)
    try:
        report.check_fits(mine, cluster)
    except ArgumentError as error:
        return str(error)
    return None
