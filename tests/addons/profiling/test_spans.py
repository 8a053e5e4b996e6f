"""Sets of moments, against sets of whole numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.profiling.timeline import Span, clip, subtract, total, union

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def moments(spans: list[tuple[int, int]] | list[Span]) -> set[int]:
    return {moment for start, stop in spans for moment in range(int(start), int(stop))}


@given(SPANS)
def test_union(spans: list[tuple[int, int]]) -> None:
    merged = union(spans)
    assert moments(merged) == moments(spans)
    assert total(spans) == len(moments(spans))
    assert all(a[1] < b[0] for a, b in pairwise(merged)), "sorted, and none touch"


@given(SPANS, SPANS)
def test_subtract(spans: list[tuple[int, int]], without: list[tuple[int, int]]) -> None:
    assert moments(subtract(spans, without)) == moments(spans) - moments(without)
    assert total(subtract(spans, without)) == len(moments(spans) - moments(without))


@given(SPANS, st.integers(0, 30), st.integers(0, 30))
def test_clip(spans: list[tuple[int, int]], first: int, last: int) -> None:
    assert moments(clip(spans, (first, last))) == moments(spans) & set(range(first, last))
