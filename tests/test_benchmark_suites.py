"""Suites of benchmarks run: whole in their quick form where that takes seconds, or else what they run.

What needs TensorFlow or PyTorch is left out: of those suites the library's own contenders run.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import allreduce, registry, run_steps, scaling, suites  # noqa: E402
from benchmarks.__main__ import measure  # noqa: E402
from benchmarks.comparison import PLAIN, Comparison, Contender, Kind, rows_of  # noqa: E402
from benchmarks.harness import Group, Peer, Result, alternate  # noqa: E402
from benchmarks.peers import host_cost  # noqa: E402

from jaxtribute._src.core.execution.function import Function  # noqa: E402
from samples import ALL_CASES  # noqa: E402

WHOLE = (
    "overhead", "memory", "ledger", "threads", "ragged", "central_storage", "sharded_memory", "checkpoint",
    "automatic_layout",
)  # fmt: skip
"""Suites that take seconds in their quick form. A third of them is run each day."""
STEPS = ("dispatch", "digits", "large", "conv", "transformer", "packing", "workers", "causes", "allreduce")
"""Suites that compare contenders with `compare`: each of these contenders takes some steps of a tiny problem."""
PEERS = {
    "live": ("benchmarks.peers.live", "{folder}"),
    "input": ("benchmarks.input", "--peer"),
    "parameter_server": ("benchmarks.parameter_server", "--serve", "library", "--workers", "1"),
}
"""Suites of one peer of the library, all of whose contenders take a step."""
COMMANDS = {
    "startup": ("benchmarks.peers.first_step", "jaxtribute", "1", "64-256-256-10"),
    "first_epoch": ("benchmarks.peers.first_epoch", "jaxtribute", "mlp"),
    "lockstep": ("benchmarks.lockstep", "--json", "--seconds", "0.05"),
}
"""Suites that start a process for each figure."""
NAMED = {
    "scaling": "its peer and its plan, below",
    "predicted": "its script, by the plan of `scaling`; what calibrates it: tests/addons/planning",
    "run_steps": "its steps, below",
    "budget": "what is kept and computed again: tests/addons/memory",
    "keras_fit": "Keras: tests/addons/models",
    "launch": "starts of workers: tests/addons/launcher",
    "launcher_output": "readers that stall: tests/addons/launcher/test_terminal.py",
    "embeddings": "tables of these kinds: tests/addons/tables, also on two workers",
    "elastic": "its contenders are those of `workers`; kills: tests/addons/elastic",
    "faults": "the same faults: tests/core/cluster",
    "network": "needs the rights of root; its contenders are those of `workers` and `causes`",
    "islands": "needs the rights of root; training of islands: tests/addons/elastic/test_local.py",
    "parameter_server_network": "needs the rights of root; its problems are those of `parameter_server`",
}
"""The other suites, and what of them is tested where."""


def test_each_suite_has_a_test_or_a_reason() -> None:
    found = [*WHOLE, *STEPS, *PEERS, *COMMANDS, *NAMED]
    assert sorted(found) == sorted(registry.names())


def figures(found: Any) -> Iterator[float]:
    """All numbers within lists and dictionaries."""
    if isinstance(found, dict):
        found = [*cast("dict[str, Any]", found).values()]
    if isinstance(found, list):
        for one in cast("list[Any]", found):
            yield from figures(one)
    elif isinstance(found, int | float):
        yield float(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE if ALL_CASES else WHOLE[int(time.time() // 86400) % 3 :: 3])
def test_a_suite_runs_in_its_quick_form(name: str) -> None:
    found = measure(name, quick=True, plots=None)
    assert found
    assert all(map(math.isfinite, figures(found)))
    assert not re.search(r"\bnan\b", json.dumps(found), re.IGNORECASE)  # of those whose figures are lines


def contenders_of(names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> dict[tuple[bool, Kind], dict[str, bool]]:
    """Those of suites that need the library alone, by whether they form a cluster and by the processes they run in.

    Of each is told whether its losses are those of the others.
    """
    found: dict[tuple[bool, Kind], dict[str, bool]] = {}

    def noted(problem: str, arguments: Sequence[str], contenders: Sequence[Contender], **options: Any) -> Comparison:
        for one in contenders:
            kind = Kind(one.kind.module, flags=one.kind.flags)
            if one.kind.environment is None:
                found.setdefault((options.get("workers", 1) > 1, kind), {})[one.name] = one.same
        return Comparison(problem, rows_of(contenders, [Result(one.label, [1.0]) for one in contenders]))

    monkeypatch.setattr(suites, "compare", noted)
    monkeypatch.setattr(allreduce, "compare", noted)
    for name in names:
        registry.COMPARED[name](False)
    return found


def losses(cluster: bool, kind: Kind, names: Sequence[str], problem: str) -> dict[str, float]:
    """The losses of contenders after 16 steps, which is one call of those that take 16 in one."""
    arguments = ["--problem", problem, "--batch", "8", "--devices", "1" if cluster else "2", *kind.flags]
    arguments += [argument for name in names for argument in ("--contender", name)]
    peer = Group(2, kind.module, arguments) if cluster else Peer(kind.module, arguments)
    try:
        return {name: peer.steps(name, 16)[1] for name in names}
    finally:
        peer.close()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize(("module", "flags"), [("jax_steps", ()), ("jax_steps", PLAIN.flags), ("keras_steps", ())])
def test_all_contenders_of_the_suites_of_steps_take_them(
    cluster: bool, module: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [name for name in STEPS if name != "allreduce"]
    kind = Kind(f"benchmarks.peers.{module}", flags=flags)
    all_found = contenders_of(steps, monkeypatch)
    assert {one.module for _, one in all_found} == {"benchmarks.peers.jax_steps", "benchmarks.peers.keras_steps"}
    if (cluster, kind) not in all_found:
        pytest.skip("no suite has such contenders")
    same = all_found[cluster, kind]
    found = losses(cluster, kind, list(same), "4-4")
    expected = [loss for name, loss in found.items() if same[name]]
    assert expected == pytest.approx([expected[0]] * len(expected), rel=1e-4)


@pytest.mark.slow
def test_all_contenders_of_the_suite_of_sums_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (((cluster, kind), names),) = contenders_of(["allreduce"], monkeypatch).items()
    assert cluster
    first, second = losses(cluster, kind, list(names), "vector-4").values()
    assert first == pytest.approx(second)


class Answers(Peer):
    """A peer without a process, whose contenders answer with the losses that it is given."""

    def __init__(self, losses: dict[str, float]) -> None:
        self._losses = losses

    def steps(self, name: str, count: int) -> tuple[float, float]:
        return 1.0, self._losses[name]


@pytest.mark.parametrize("order", [1, -1])
def test_losses_are_held_against_one_that_is_to_be_theirs(order: int) -> None:
    names = ["jaxtribute", "by hand", "no communication"][::order]
    peer = Answers({"jaxtribute": 1.0, "by hand": 1.0, "no communication": 2.0})
    contenders = [(peer, name, name) for name in names]
    found = alternate(contenders, steps=1, rounds=1, unchecked=["no communication"])
    assert [result.name for result in found] == names
    with pytest.raises(AssertionError, match="loss"):
        alternate(contenders, steps=1, rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS if ALL_CASES else [name for name in PEERS if name != "parameter_server"])
def test_all_contenders_of_a_peer_answer(name: str, tmp_path: Path) -> None:
    module, *arguments = PEERS[name]
    peer = Peer(module, [argument.format(folder=tmp_path) for argument in arguments])
    try:
        taken = {one: peer.steps(one, 1)[0] for one in peer.names}
    finally:
        peer.close()
    assert taken
    assert all(map(math.isfinite, taken.values()))


@pytest.mark.slow
@pytest.mark.skipif(not ALL_CASES, reason="a minute, and run where there is an accelerator")
def test_steps_of_an_accelerator_are_taken_on_a_cpu_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.accelerator", "--quick", "--json", str(tmp_path / "figures.json")]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=240)
    rows = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert [bool(row["hand"] and row["jaxtribute"]) for row in rows] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_process_of_a_figure_tells_it(name: str) -> None:
    command = [sys.executable, "-m", *COMMANDS[name]]
    done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=300)
    assert list(figures(json.loads(done.stdout.splitlines()[-1])))


@pytest.mark.slow
def test_the_script_of_a_problem_is_planned() -> None:
    found = scaling.as_planned("4-4", 8)
    assert [row.name for row in found.rows][:3] == ["1", "2", "4"]
    assert all(row.median > 0 for row in found.rows)


@pytest.mark.slow
def test_several_steps_a_call_end_where_single_ones_do() -> None:
    row = run_steps.measure("dispatch", 1, run_steps.CALL, 1)
    assert all(map(math.isfinite, [row.single_us, row.several_us, row.ratio]))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", ["own variables 3", "own width 3", "own depth 3", "own replicas 2", "own replicas 1"])
def test_the_library_alone_is_measured_as_in_most_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step calls what stands in for the program, on the quick path of steps that are as the one before."""
    steps = host_cost.contender(name)
    steps(1)
    answers = 0
    answer = host_cost.Answer.__call__

    def counted(self: host_cost.Answer, *inputs: Any) -> list[Any]:
        nonlocal answers
        answers += 1
        return answer(self, *inputs)

    def slow(*_: object, **__: object) -> None:
        raise AssertionError("a step looked for its program")

    monkeypatch.setattr(host_cost.Answer, "__call__", counted)
    monkeypatch.setattr(Function, "_call_looking", slow)
    seconds, _ = steps(5)
    assert answers == 5
    assert seconds > 0


@pytest.mark.parametrize("name", ["call 3", "jit 3"])
def test_whole_calls_are_measured(name: str) -> None:
    assert host_cost.contender(name)(2)[0] > 0
