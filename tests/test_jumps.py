"""Jumps that CPython leaves out of the `with` or `try` around them: what a signal's handler raises there skips it."""

import dis
import sys
from collections.abc import Generator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import jaxtribute as jd

GUARDED = """
    addons/keras/scheduling addons/launcher/family addons/launcher/launch addons/launcher/node
    addons/messaging/transport addons/parameter_servers/engines/engine addons/parameter_servers/engines/ray_engine
    addons/parameter_servers/engines/ray_node addons/parameter_servers/engines/server
    addons/preemption/agreement addons/preemption/handler addons/parameter_servers/scheduling/closure_queue
    addons/parameter_servers/scheduling/closures addons/parameter_servers/scheduling/coordinator
    addons/parameter_servers/scheduling/dispatcher addons/parameter_servers/scheduling/remote_value
    addons/parameter_servers/scheduling/starting addons/parameter_servers/server/client
    addons/parameter_servers/server/saves addons/parameter_servers/variables/access
    addons/parameter_servers/variables/variable addons/tracking/sidecar core/checkpoint/background
    core/checkpoint/checkpoint core/checkpoint/committing core/checkpoint/files core/checkpoint/leaves
    core/checkpoint/manager core/checkpoint/owner
    core/checkpoint/restoring core/cluster/runtime core/cluster/waiting core/execution/eager
    core/execution/interrupts core/execution/rendezvous core/folders core/values/stored
"""
"""Files whose functions hold locks, or leave something half done, in the main thread, where signals raise."""
ELSEWHERE = {
    "Dispatcher._serve",
    "Dispatcher._turn",
    "Dispatcher._settle_unread",
    "Dispatcher._pause_s",
    "LocalNode.run",
}
"""Functions of them that run in a thread of their own alone, or in a loop that takes signals: there none raises."""


@pytest.mark.parametrize("file", GUARDED.split())
def test_nothing_leaves_a_lock_held_where_a_loop_goes_back(file: str) -> None:
    """CPython leaves some jumps out of the `with` or `try` around their loop: what a handler raises there skips it."""
    path = Path(jd.__file__).parent / "_src" / f"{file}.py"
    code = compile(path.read_text(), str(path), "exec")
    found = [one for function in functions_in(code) for one in unprotected(function)]
    assert [one for one in found if one.partition(" ")[0] not in ELSEWHERE] == []


def test_an_unprotected_jump_is_found() -> None:
    source = "def f(lock, xs):\n  with lock:\n    for x in xs:\n      if x:\n        return x\n    return 0"
    found = [one for function in functions_in(compile(source, "f.py", "exec")) for one in unprotected(function)]
    assert len(found) == (sys.version_info[:2] == (3, 13))


def functions_in(code: CodeType) -> Generator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from functions_in(constant)


def unprotected(code: CodeType) -> list[str]:
    """The loops within a `with` or `try` that go back by a jump for which no handler of exceptions is in force."""
    bytecode: Any = dis.Bytecode(code)
    operations = {one.offset: one for one in bytecode}
    entries = bytecode.exception_entries
    inside = [entry for entry in entries if operations[entry.target].opname == "PUSH_EXC_INFO"]
    found: list[str] = []
    for one in operations.values():
        covered = any(entry.start <= one.offset < entry.end for entry in entries)
        if one.opname.startswith("JUMP_BACKWARD") and not covered:
            for handler in {entry.target for entry in inside}:
                start = min(entry.start for entry in inside if entry.target == handler)
                end = max(entry.end for entry in inside if entry.target == handler)
                if start <= one.argval < one.offset < end:
                    found.append(f"{code.co_qualname} at {one.offset}")
    return found
