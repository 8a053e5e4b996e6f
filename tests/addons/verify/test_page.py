"""The guide, the catalogue and the command are one: of each pattern the page has what the reports say, and programs."""

import inspect
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
from documents import blocks
from jaxtribute import testing
from jaxtribute._src.addons.verify.catalogue import CATALOGUE
from jaxtribute._src.addons.verify.watching import KINDS, Watcher
from jaxtribute.experimental import observe

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "verify.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = re.split(r"^### `([a-z-]+)`\n", TEXT[: TEXT.index("## What is right")], flags=re.MULTILINE)
PATTERNS = dict(zip(SECTIONS[1::2], SECTIONS[2::2], strict=True))
UNEVEN = {"mean-of-means", "default-batch-size"}
"""What is wrong only if replicas share the batch unevenly."""

OWN_WORDS = {
    "local-mean": "jd.nn.compute_average_loss(losses(x, y), global_batch_size=count)",
    "mean-of-means": "jd.nn.compute_average_loss(losses(x, y), global_batch_size=count)",
    "default-batch-size": "jd.nn.compute_average_loss(losses(x, y), global_batch_size=count)",
    "local-count": "all_reduce('SUM', mask.sum())",
    "local-total": "all_reduce('SUM', losses(x, y).sum())",
    "batch-statistics": "all_reduce('MEAN', x.mean(0))",
    "counted-on-each-replica": "scale_regularization_loss(0.1 * jnp.sum(w.read_value() ** 2))",
}
"""Of the advice what the program on the page has to write."""


def setup() -> dict[str, Any]:
    """What the programs of the page have in common."""
    names: dict[str, Any] = {}
    for _, kind, code in blocks(SECTIONS[0]):
        if kind == "python":
            exec(code, names)
    return names


def program(name: str, names: dict[str, Any]) -> tuple[Any, Any]:
    """The wrong and the right program of a pattern."""
    # Lines in front, so that a report names the line of the page.
    line = TEXT.count("\n", 0, TEXT.index(PATTERNS[name]))
    for start, _, code in blocks(PATTERNS[name]):
        exec(compile("\n" * (line + start) + code, str(PAGE), "exec"), names)
    return names["wrong"], names["right"]


def verdict(call: Any, names: dict[str, Any]) -> testing.Verdict:
    """What comes of a replica function, of a step, or of a program that takes nothing."""
    strategy, batch = names["strategy"], names["batch"]
    parameters = list(inspect.signature(getattr(call, "python_function", call)).parameters)
    if parameters == ["x", "y"]:
        step = call if hasattr(call, "python_function") else jd.function(lambda x, y: strategy.run(call, (x, y)))
        return testing.verify(step, *batch, strategy=strategy, raises=False)
    watcher = Watcher(lambda _: None, None)
    with observe(watcher, *KINDS):
        if not parameters:
            call()
        else:
            # That a result is state shows when the next call is given it.
            state = strategy.place(np.ones((3, 1), np.float32))
            for rows in strategy.experimental_distribute_dataset([batch] * 2):
                state = call(state, *rows)
    return watcher.verdicts[-1]


def test_the_page_has_each_pattern_in_the_words_of_the_reports() -> None:
    assert list(PATTERNS) == [name for name in CATALOGUE if name != "unknown"]
    for name, text in PATTERNS.items():
        what = " ".join(text.partition("```")[0].split())
        assert what == f"{CATALOGUE[name].what[0].upper()}{CATALOGUE[name].what[1:]}.", name


@pytest.mark.quick_cases(6, whole=True)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_wrong_program_of_the_page_is_found_with_its_name(name: str) -> None:
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        names = setup()
        found = verdict(program(name, names)[0], names)
    assert [one.culprit.pattern.name for one in found.findings] == [name], str(found)
    assert found.right == (name in UNEVEN), str(found)
    place = found.findings[0].culprit.place
    assert place is not None, str(found)
    assert place.file == str(PAGE), str(found)
    assert OWN_WORDS.get(name, "") in str(found), str(found)


@pytest.mark.slow
def test_right_programs_of_the_page_raise_no_alarm() -> None:
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        names = setup()
        programs = [program(name, names)[1] for name in PATTERNS]
        plain = [one for one in programs if list(inspect.signature(one).parameters) == ["x", "y"]]
        replicas = [one for one in plain if not hasattr(one, "python_function")]

        def all_of_them(x: Any, y: Any) -> None:
            for one in replicas:
                one(x, y)

        for one in [all_of_them, *(one for one in programs if one not in replicas)]:
            found = verdict(one, names)
            assert found.right, str(found)
            assert found.tried, str(found)
