"""`jaxtribute verify`: is the distributed step the step of one device, and if not, where does it part from it?"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

HELP = "run a program and check that its distributed steps are those of one device; say where they are not"
WRONG, NOTHING = 1, 2
"""Exit statuses: a step differs; no step could be verified."""
_AGAIN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a Python program that trains")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    parser.add_argument(
        "--again",
        type=int,
        default=_AGAIN,
        metavar="N",
        help=f"end the program after N calls of verified steps, and some seconds, without a new one ({_AGAIN}); 0 runs "
        "it to its end",
    )
    parser.epilog = (
        "Options of the command stand before SCRIPT; what follows it is the script's own. Exit status: 0 if every step "
        "that was seen is right, 1 if one differs for batches that it has, "
        "2 if none could be verified or the program fails."
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the program, verifies its steps, and reports."""
    from jaxtribute.config import set_logical_cpu_devices
    from jaxtribute.errors import ConfigError, JaxtributeError

    # Of several replicas it can be seen what of a batch falls to each; a program may ask for another number.
    if "JAXTRIBUTE_CPU_DEVICES" not in os.environ:
        with contextlib.suppress(ConfigError):  # JAX runs already, in a program that calls this
            set_logical_cpu_devices(2)
    from jaxtribute._src.addons.verify.report import text
    from jaxtribute._src.addons.verify.verifying import Verdict
    from jaxtribute._src.addons.verify.watching import verify_script

    def report(verdict: Verdict) -> None:
        sys.stdout.write(f"\n{text(verdict)}\n   ({verdict.seconds:.1f} s)\n")
        sys.stdout.flush()

    try:
        verdicts, ended = verify_script(arguments.script, arguments.arguments, report, arguments.again or None)
    except JaxtributeError as error:
        sys.stderr.write(f"jaxtribute verify: {error}\n")
        return NOTHING
    if not verdicts:
        sys.stderr.write(
            f"jaxtribute verify: {arguments.script} ran no step. HINT: a step is a call of strategy.run, or of a "
            "jd.function that calls it.\n"
        )
        return NOTHING
    if ended:
        sys.stdout.write("\nThe program was ended there: what it runs later was not looked at (--again 0).\n")
    if not all(verdict.right for verdict in verdicts):
        return WRONG
    if any(verdict.findings and not verdict.asynchronous for verdict in verdicts):
        sys.stdout.write(
            "\nAll batches of this program divided by its replicas so far, for which its steps are right. HINT: for "
            "others they are not; keep drop_remainder=True.\n"
        )
    return 0 if all(verdict.tried for verdict in verdicts) else NOTHING
