"""The outcomes of a search as text."""

import pytest

from jaxtribute._src.addons.fitting import report
from jaxtribute._src.addons.fitting.candidates import Candidate, Outcome


@pytest.mark.parametrize(
    ("fit", "tried", "title"),
    [(2, 4, "All that fit v5e:2x2, of 4 tried"), (7, 9, "The best 5 of 7 that fit v5e:2x2, of 9 tried")],
)
def test_the_heading_says_how_many_were_tried(fit: int, tried: int, title: str) -> None:
    outcome = Outcome(Candidate("MirroredStrategy", 64), rows=16, memory=1000, seconds=0.01, compute=0.01)
    table = report.table([outcome] * fit, 1e9, "v5e:2x2", tried)
    assert str(table.title).startswith(f"{title}: predicted")
    assert table.row_count == min(fit, 5)
