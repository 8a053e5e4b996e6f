"""The outcomes of a search as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from jaxtribute._src.addons.fitting.candidates import TOO_LARGE, Outcome
from jaxtribute._src.addons.tools import tables
from jaxtribute._src.addons.tools.tables import bytes_text, seconds_text

SHOWN = 5
NONE_HINT = "HINT: use more devices, fewer examples (--batch), 16-bit numbers, or a scan over equal layers."
HEADINGS = "way of training,on each,memory each,update,examples/s,what takes the time"


def table(found: Sequence[Outcome], memory: float, name: str, tried: int) -> Table:
    """A line for each of the best.

    Args:
      found: those that fit, the fastest first.
      memory: bytes that each device has.
      name: the devices.
      tried: how many were tried, those that do not fit too.
    """
    shown = f"The best {SHOWN} of {len(found)}" if len(found) > SHOWN else "All"
    title = f"{shown} that fit {name}, of {tried} tried: predicted, not run"
    result = tables.table(title, HEADINGS.split(","))
    for one in found[:SHOWN]:
        result.add_row(
            str(one.candidate),
            f"{one.rows:,}",
            f"{bytes_text(one.memory)} ({one.memory / memory:.0%})",
            seconds_text(one.seconds),
            f"{1 / one.each:,.0f}",
            one.limit,
            style="bold" if one is found[0] else "",
        )
    return result


def lines_text(best: Outcome, asked: int, saved: str = "") -> str:
    """The lines to write for the best one.

    Args:
      best: what was found.
      asked: examples of the script's own batch.
      saved: the file that it was saved in; empty for none.
    """
    lines = ["The lines to write for the first:", *(f"    {line}" for line in best.lines(asked))]
    if saved:
        layout = ", layout=..." if best.candidate.per_replica > 1 and best.has_layout else ""
        lines += ["or", f'    strategy = jd.experimental.Automatic("{saved}"{layout})']
        lines += [f"    {line}" for line in best.lines_besides(asked)]
    return "\n".join(lines)


def end_text(answer: Mapping[str, Any], found: Sequence[Outcome]) -> str:
    """Tells how much was compiled, by what, and what did not fit or could not be."""
    text = f"{answer['compiled']} program(s) compiled in {answer['seconds']:.0f} s, "
    text += f"by {'its own compiler' if not answer['analytic'] else 'the compiler of this machine'}."
    if answer["analytic"]:
        whose = "rough ones" if answer["topology"].startswith("cpu:") else f"the makers' of {answer['topology']}"
        text += f" The rates are {whose}: {answer['analytic']}."
    if answer["ended"]:
        text += " Not all of them in the time that was given."
    # What does not fit is the rule where a model is large; what cannot be is for whoever reads to mend.
    large = [str(one.candidate) for one in found if one.refusal.startswith(TOO_LARGE)]
    text += f"\nDo not fit: {'; '.join(large)}." if large else ""
    others = [one for one in found if not one.fits and not one.refusal.startswith(TOO_LARGE)]
    return "\n".join([text, *(f"Cannot be: {one.candidate}: {one.refusal}" for one in others)])
