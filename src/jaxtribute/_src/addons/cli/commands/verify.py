"""`jaxtribute verify`: is the distributed step the step of one device, and if not, where does it part from it?"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from pathlib import Path

from jaxtribute._src.addons.cli.numbers import whole

HELP = "run a program and check that its distributed steps are those of one device; say where they are not"
_AGAIN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in python -m")
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a Python program that trains")
    # Python counts them as required in its message.
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments").required = False
    parser.add_argument(
        "--again",
        type=whole,
        default=_AGAIN,
        metavar="N",
        help=f"end the program after N calls of verified steps, and some seconds, without a new one ({_AGAIN}); 0 runs "
        "it to its end",
    )
    parser.epilog = (
        "Options of the command stand before SCRIPT; what follows it is the script's own. Exit status: 0 if every step "
        "that was seen is right, 1 if one differs for batches that it has, "
        "2 if one could not be verified or the program fails, 3 if the program was ended before all of its functions "
        "ran, or a step changes nothing that is trained, or makes it NaN, or differs, for no known reason, where "
        "replicas have no rows."
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the program, verifies its steps, and reports."""
    from jaxtribute.config import set_logical_cpu_devices
    from jaxtribute.errors import ConfigError, JaxtributeError

    # Of several replicas it can be seen what of a batch falls to each; a program may ask for another number.
    if "JAXTRIBUTE_CPU_DEVICES" not in os.environ:
        with contextlib.suppress(ConfigError):  # JAX runs already, in a program that calls this
            set_logical_cpu_devices(2)
    from jaxtribute._src.addons.tools.user_scripts import check_program
    from jaxtribute._src.addons.verify.doubts import HIDDEN, OPEN, WRONG
    from jaxtribute._src.addons.verify.report import text
    from jaxtribute._src.addons.verify.verdict import Verdict
    from jaxtribute._src.addons.verify.watching import ScriptError, verify_script

    def report(verdict: Verdict) -> None:
        sys.stdout.write(f"{text(verdict)}\n   (verified in {verdict.seconds:.1f} s)\n\n")
        sys.stdout.flush()

    try:
        verdicts, ended, unseen = verify_script(
            arguments.script, arguments.arguments, report, arguments.again or None, module=arguments.module
        )
    except ScriptError as failed:
        _show(failed.__cause__, check_program(arguments.script, module=arguments.module))
        wrong = any(verdict.wrong for verdict in failed.verdicts)
        sys.stderr.write(
            f"\njaxtribute verify: the program has FAILED: what is said above, of {len(failed.verdicts)} step(s), is "
            "not all of it. HINT: run it by itself first.\n"
        )
        return WRONG if wrong else OPEN
    except JaxtributeError as error:
        sys.stderr.write(f"jaxtribute verify: {error}\n")
        return OPEN
    if not verdicts:
        sys.stderr.write(
            f"jaxtribute verify: {arguments.script} ran no step. HINT: a step is a call of strategy.run, or of a "
            "jd.function that calls it.\n"
        )
        return OPEN
    if ended:
        later = f"; {', '.join(unseen)} have not run" if unseen else ""
        sys.stdout.write(f"\nThe program was ended there, to save time{later}. HINT: --again 0 runs it to its end.\n")
    if any(verdict.wrong for verdict in verdicts):
        return WRONG
    if any(verdict.findings and not verdict.asynchronous for verdict in verdicts):
        sys.stdout.write(
            "\nAll batches so far divided by the replicas of this run, for which the steps are right. HINT: for a "
            "smaller last batch, or on another number of devices, they are not: write what stands at INSTEAD, or have "
            "batches that divide by every number of devices that you use, with drop_remainder=True.\n"
        )
    # Only now: whether a result is state, or is reduced outside of the step, later calls have told.
    return min((verdict.status for verdict in verdicts if verdict.status), default=HIDDEN if unseen else 0)


def _show(error: BaseException | None, file: str) -> None:
    """Prints an error as Python does, from the program's own lines on."""
    if error is None:
        return
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != file:
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames or error.__traceback__)
