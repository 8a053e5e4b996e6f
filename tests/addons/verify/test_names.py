"""The names by which reports tell steps: those of functions; of lambdas, which have none, their lines."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute._src.addons.verify.watching import KINDS, Watcher
from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import observe
from marked_lines import line_of

X = np.ones((12, 3), "f")


def named(x: Any) -> Any:
    return x.sum()


plain = lambda x: x.sum()  # noqa: E731  # at: plain
given = partial(lambda factor, x: factor * x.sum(), 2.0)  # at: given


@pytest.mark.parametrize(
    ("replica", "mark"),
    [(named, ""), (partial(named), ""), (plain, "plain"), (given, "given")],
    ids="named partial lambda given".split(),
)
@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_report_names_the_step(replica: Any, mark: str, how: str) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    around = jd.function(lambda x: strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None))  # at: around
    watcher = Watcher(lambda _: None, None)
    (x,) = strategy.experimental_distribute_dataset([X])
    with observe(watcher, *KINDS):
        if how == "compiled":
            around(x)
        else:
            strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)
    mark = "around" if how == "compiled" else mark
    name = f"<lambda> ({Path(__file__).relative_to(Path.cwd())}:{line_of(__file__, mark)})" if mark else "named"
    names = [name] if how == "compiled" else [name, f"strategy.reduce of {name}"]
    assert [one.name for one in watcher.verdicts] == names
    assert str(watcher.verdicts[0]).startswith(f"{name}: ")


def test_an_error_on_a_step_without_replicas_names_it() -> None:
    with pytest.raises(
        ArgumentError, match=rf"<lambda> \(.*:{line_of(__file__, 'alone')}\) called strategy.run nowhere"
    ):
        testing.verify(lambda _: None, X, strategy=jd.MirroredStrategy(2))  # at: alone


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((None, None), ("Variable of shape (3,)", "Variable of shape (1,)")),
        (("w", "w"), ("w of shape (3,)", "w of shape (1,)")),
        (("w", "b"), ("w", "b")),
    ],
    ids="without alike apart".split(),
)
def test_variables_of_one_name_are_told_by_their_shapes(names: tuple[str | None, ...], told: tuple[str, str]) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w, b = (
            jd.Variable(np.zeros(size, "f"), name=name, aggregation="sum")
            for size, name in zip((3, 1), names, strict=True)
        )

    def added(x: Any) -> None:
        w.assign_add(x.mean(0))
        b.assign_add(x.mean(0)[:1])

    step = jd.function(lambda x: strategy.run(added, (x,)))
    found = str(testing.verify(step, X, strategy=strategy, raises=False))
    assert f"differs, by all mistakes together: {told[0]} (by 100 %), {told[1]} (by 100 %)\n" in found
