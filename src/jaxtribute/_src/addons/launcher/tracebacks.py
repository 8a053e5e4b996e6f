"""The last traceback in a process's output, and the message of its error, however many lines that has."""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEAD = b"Traceback (most recent call last):"
_GROUP = b"  + Exception Group " + _HEAD
_CHAINED = (b"During handling of the above", b"The above exception was")
_AFTER = re.compile(
    rb"[WEIF]\d{4} |\[Gloo\]|jaxtribute( launch)?: |Exception ignored |Fatal Python error|terminate called|\*\*\* "
    rb"|\S+:\d+: \w*Warning: "
)
"""Beginnings of lines that are none of a message: those of C++, of Python's end, warnings and words of this library."""
_MOST_LINES = 60
"""Number of lines of a message that are kept: what comes after it is not always known for what it is."""
_MOST_LETTERS = 8000
_NOTE_OF_JAX = re.compile(r"(?m)^(?P<margin>\s*(\| )?)-{20}\n(?P=margin)For simplicity, JAX has removed .*\n?")
"""The note that JAX adds to errors of traced functions: of its own frames, and none of the error's."""
_WARNING = re.compile(rb"\S.*?:\d+: \w*Warning: ")


def last_traceback(lines: Sequence[bytes]) -> str:
    """Finds the last traceback, with those of the exceptions that led to it; empty if there is none.

    Args:
      lines: of the output. The first one of a traceback may follow what has not ended, as a progress bar does not.
    """
    starts = [index for index, line in enumerate(lines) if line.endswith(_HEAD) and not line.endswith(b"| " + _HEAD)]
    # A head of a group that stands in another group is a part of that.
    starts = [
        index for index in starts if not lines[index].endswith(b"Group " + _HEAD) or lines[index].endswith(_GROUP)
    ]
    if not starts:
        return ""
    # An exception raised while another was handled: the first one is where it began.
    first = last = starts[-1]
    for index in reversed(starts[:-1]):
        if not any(line.startswith(_CHAINED) for line in lines[index:last]):
            break
        first = last = index
    head = _GROUP if lines[first].endswith(_GROUP) else _HEAD
    found = [head, *lines[first + 1 : _end(lines, starts[-1])]]
    return b"\n".join(found).decode(errors="replace")


def message(traceback: str) -> str:
    """The error that a traceback ends with: all lines of its message and notes; of a group, its errors in a line."""
    lines = _NOTE_OF_JAX.sub("", traceback).rstrip("\n").split("\n")
    start = max((index for index, line in enumerate(lines) if line.endswith(_HEAD.decode())), default=-1)
    if start >= 0 and lines[start] == _GROUP.decode():
        # All its lines are indented, those of frames deeper than those of errors.
        found = [match[1] for line in lines if (match := re.fullmatch(r"\s*\| (\S.*)", line))]
        return "; ".join(one for one in found if not one.endswith(_HEAD.decode()))[:_MOST_LETTERS]
    start += 1
    while start < len(lines) - 1 and lines[start].startswith(" "):
        start += 1
    return "\n".join(lines[start:])


def heading(traceback: str) -> str:
    """The first line of that, by which an error can be told from others."""
    return message(traceback).partition("\n")[0]


def last_word(lines: Sequence[bytes]) -> bytes:
    """Finds the last line that says something, which a warning does not: neither its text nor the source below it."""
    end = len(lines)
    while end:
        start = _start_of_warning(lines, end)
        if start == end and lines[end - 1].strip():
            return lines[end - 1]
        end = min(start, end - 1)
    return b""


def _start_of_warning(lines: Sequence[bytes], end: int) -> int:
    """Number of the line where the warning begins that ends before a line; that line itself, if none does."""
    if _WARNING.match(lines[end - 1]):
        return end - 1
    # The source is indented by two. The text above it may have several lines.
    if lines[end - 1].startswith(b"  "):
        for start in range(end - 2, max(-1, end - _MOST_LINES), -1):
            if _WARNING.match(lines[start]):
                return start
            if lines[start].startswith(b"  "):
                break
    return end


def _end(lines: Sequence[bytes], start: int) -> int:
    """Number of the line after a traceback."""
    end = start + 1
    if lines[start].endswith(_GROUP):
        while end < len(lines) and re.match(rb"\s+[|+]", lines[end]):
            end += 1
        return end
    # The frames are indented; the first line of the error is not, while others of its message may be.
    while end < len(lines) and lines[end].startswith(b" "):
        end += 1
    end = min(end + 1, len(lines))
    most, letters = min(len(lines), end + _MOST_LINES - 1), 0
    last = end
    while end < most and not _AFTER.match(lines[end]):
        letters += len(lines[end])
        if letters > _MOST_LETTERS:
            break
        end += 1
        if lines[end - 1].strip():
            last = end  # blank lines belong to a message only if it goes on
    return last
