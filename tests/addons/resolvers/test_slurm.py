"""The resolver of a Slurm step, and the lists that Slurm writes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.resolvers.slurm import expand_counts, expand_hosts
from jaxtribute.cluster_resolver import SlurmClusterResolver, detect
from jaxtribute.errors import ClusterSpecError


def step(nodes: str = "n[1-2]", counts: str = "2(x2)", tasks: int = 4, rank: int = 0, **more: str) -> dict[str, str]:
    return {
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_PROCID": str(rank),
        "CUDA_VISIBLE_DEVICES": "",
    } | more


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_ranks_are_given_out_node_by_node(counts: list[int], data: st.DataObject) -> None:
    total = sum(counts)
    rank = data.draw(st.integers(0, total - 1))
    nodes = [f"n{index}" for index in range(len(counts))]
    environ = step(",".join(nodes), ",".join(map(str, counts)), total, rank)
    ps = data.draw(st.integers(0, total - 1))
    resolver = SlurmClusterResolver({"worker": total - ps, "ps": ps} if ps else None, environ=environ)
    spec = resolver.cluster_spec()
    ranked = [address for job in ("ps", "worker") if job in spec.jobs for address in spec.job_tasks(job)]
    assert ranked == [f"{node}:{8888 + i}" for node, count in zip(nodes, counts, strict=True) for i in range(count)]
    assert spec.task_address(*resolver.own_task()) == ranked[rank]


def test_the_task_is_known_before_the_cluster_is_asked_for() -> None:
    assert SlurmClusterResolver(environ=step(rank=3)).get_task_info() == ("worker", 3)


@pytest.mark.parametrize(("rank", "visible"), [(0, "4,5"), (1, "6,7"), (2, "4,5")])
def test_gpus_are_shared_out_of_those_that_slurm_allows(rank: int, visible: str) -> None:
    environ = step(rank=rank, CUDA_VISIBLE_DEVICES="4,5,6,7")
    for _ in range(2):  # a second resolver, say of `jaxtribute doctor`, shares out the same GPUs
        resolver = SlurmClusterResolver(environ=environ)
        resolver.cluster_spec()
        assert environ["CUDA_VISIBLE_DEVICES"] == visible
        assert resolver.num_accelerators() == {"GPU": 2}


def test_gpus_can_be_left_alone() -> None:
    environ = step(CUDA_VISIBLE_DEVICES="0")
    SlurmClusterResolver(gpus_per_task=0, environ=environ).cluster_spec()
    assert environ == step(CUDA_VISIBLE_DEVICES="0")


def test_an_environment_that_cannot_be_changed_is_not() -> None:
    frozen: Mapping[str, str] = MappingProxyType(step(CUDA_VISIBLE_DEVICES="0,1"))
    assert SlurmClusterResolver(environ=frozen).cluster_spec().num_tasks("worker") == 4


@pytest.mark.parametrize(
    "name", ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"]
)
def test_half_a_step_says_what_is_missing_and_what_is_there(name: str) -> None:
    environ = step()
    del environ[name]
    environ["SLURM_JWT"] = "secret"
    with pytest.raises(
        ClusterSpecError, match=rf"and {name} is missing here; there is SLURM_.*HINT: start .* srun"
    ) as error:
        detect(environ)
    assert all(f"{key}={environ[key]}" in str(error.value) for key in step() if key in environ and "CUDA" not in key)
    assert "secret" not in str(error.value)


def test_outside_slurm_nothing_is_there() -> None:
    with pytest.raises(ClusterSpecError, match="there is no step, and no job"):
        SlurmClusterResolver(environ={})


def test_what_is_passed_need_not_be_set() -> None:
    environ = {"SLURM_PROCID": "1", "CUDA_VISIBLE_DEVICES": ""}
    resolver = SlurmClusterResolver({"worker": 2}, tasks_per_node={"x": 1, "y": 1}, environ=environ)
    assert resolver.cluster_spec() == {"worker": ["x:8888", "y:8888"]}


@pytest.mark.parametrize(
    ("environ", "arguments", "says"),
    [
        (step(counts="2"), {}, r"'n\[1-2\]' has 2 nodes, SLURM_STEP_TASKS_PER_NODE='2' counts the tasks of 1\. HINT"),
        (step(rank=4), {}, r"SLURM_PROCID is 4: expected 0 to 3, because \{'n1': 2, 'n2': 2\} has 4 tasks\. HINT"),
        (step(SLURM_PROCID="x"), {}, r"SLURM_PROCID is 'x': expected a whole number"),
        (step(), {"jobs": {"worker": 3}}, r"the jobs \{'worker': 3\} have 3 tasks, and Slurm runs 4 .* --ntasks=3"),
        (step(rank=1, SLURMD_NODENAME="n2"), {}, r"rank 1 runs on 'n2' .* on 'n1' .* --distribution=block"),
        (
            step(CUDA_VISIBLE_DEVICES="0"),
            {},
            r"a node has 1 GPUs for 2 tasks .*HINT: start at most 1 .*gpus_per_task=0",
        ),
        (step(), {"gpus_per_node": 3, "gpus_per_task": 2}, r"2 tasks of a node with 2 GPUs each need more than the 3"),
    ],
)
def test_what_cannot_be_is_an_error(environ: dict[str, str], arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ClusterSpecError, match=says):
        SlurmClusterResolver(environ=environ, **arguments)


def test_a_node_of_another_name_is_no_contradiction() -> None:
    assert SlurmClusterResolver(environ=step(SLURMD_NODENAME="n1.example.com")).task_id == 0


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
