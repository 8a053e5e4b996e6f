"""Slurm's short forms of lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.cluster.slurm_lists import expand_counts, expand_hosts
from jaxtribute.errors import ClusterSpecError

names = st.text("abcz-.", min_size=1, max_size=4)
widths = st.integers(1, 4)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    """What stands in brackets, and the numbers that it means."""
    parts: list[str] = []
    numbers: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        first, more, width = draw(st.integers(0, 120)), draw(st.integers(0, 5)), draw(widths)
        parts.append(f"{first:0{width}}" + (f"-{first + more:0{width}}" if more else ""))
        # Slurm counts in the width of the first number.
        numbers += [f"{number:0{max(width, len(str(first)))}}" for number in range(first, first + more + 1)]
    return f"[{','.join(parts)}]", numbers


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, list[str]]:
    """An entry of a host list, and the hosts that it means."""
    text, hosts = draw(names), [""]
    hosts = [text]
    for _ in range(draw(st.integers(0, 2))):
        bracket, numbers = draw(ranges())
        tail = draw(st.sampled_from(["", "-ib", "r"]))
        text += bracket + tail
        hosts = [host + number + tail for host in hosts for number in numbers]
    return text, hosts


@given(st.lists(entries(), min_size=1, max_size=4))
def test_lists_mean_their_entries_one_after_the_other(parts: list[tuple[str, list[str]]]) -> None:
    text = ",".join(entry for entry, _ in parts)
    assert expand_hosts(text) == [host for _, hosts in parts for host in hosts]


@given(st.lists(names, min_size=1))
def test_names_without_ranges_are_themselves(hosts: list[str]) -> None:
    assert expand_hosts(",".join(hosts)) == hosts


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1))
def test_counts_are_repeated(parts: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in parts)
    assert expand_counts(text) == [count for count, times in parts for _ in range(times)]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[1-2],m5,o[3-4,6,7-9]", ["n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("rack[0-1]n[1-2]", ["rack0n1", "rack0n2", "rack1n1", "rack1n2"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_forms_that_slurm_writes(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "n[1-", "n[]", "n[2-1]", "n[a]", "n1,", ",n1", "n1,,n2", "n]", "n[1[2]]", "n 1", "n[1-2-3]"]
)
def test_a_malformed_list_is_quoted(text: str) -> None:
    with pytest.raises(
        ClusterSpecError, match=r"is no list of Slurm's hosts .*HINT: expected names and ranges"
    ) as error:
        expand_hosts(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["", "two", "2(x)", "2,", "-1", "2(3)"])
def test_malformed_counts_are_quoted(text: str) -> None:
    with pytest.raises(
        ClusterSpecError, match=r"is no list of Slurm's tasks per node at .*HINT: expected counts"
    ) as error:
        expand_counts(text)
    assert repr(text) in str(error.value)
