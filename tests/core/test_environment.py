"""Whatever stands in the environment: a right value, or an error of one line that names the variable. Never a wait."""

import json
import os
from collections.abc import Callable, Mapping
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src import stragglers
from jaxtribute._src.addons.launcher.environment import RESTART, RUN, TF_CONFIG, holds_a_place, rank_of_this_process
from jaxtribute._src.addons.launcher.launch import rank_set_by_slurm
from jaxtribute._src.addons.launcher.options import POD_INDEX, Options, complete
from jaxtribute._src.addons.live import starting
from jaxtribute._src.addons.resolvers.slurm import COUNTS, HOSTS, RANK, TASKS, SlurmClusterResolver
from jaxtribute._src.addons.testing import faults
from jaxtribute._src.core import config, environment
from jaxtribute._src.core.cluster import told
from jaxtribute._src.core.cluster.accelerators import visible_gpus
from jaxtribute._src.core.cluster.resolvers import detect
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.cluster.spec import ClusterSpec

STEP = {TASKS: "2", HOSTS: "n[1-2]", COUNTS: "1(x2)", RANK: "1", "SLURM_JOB_ID": "20007", "CUDA_VISIBLE_DEVICES": ""}
OPTIONS = Options(command=("true",), coordinator="h:1")
LONG = "9" * 5000
ODD = [
    *("", " ", "x", "-1", "+1", "1.5", "1e3", "1e400", "nan", "inf", "-inf", "0x10", "1_000", "²", "٣", "1 ", "\n1"),
    *(LONG, f"-{LONG}", f"1.{LONG}", "1e-400", "\udcff", "1\x00", "None", "true", "[]", "0" * 30 + "1"),
]
TEXTS = st.one_of(st.sampled_from(ODD), st.text(max_size=8), st.integers().map(str), st.floats().map(str))


def outcome(variable: str, read: Callable[[], object]) -> object:
    """What is read; an error must be the library's, of one line, and name the variable and a remedy."""
    try:
        return read()
    except jd.errors.JaxtributeError as error:
        text = str(error)
        assert variable in text
        assert "HINT: " in text
        assert "\n" not in text
        assert len(text) < 2000
        return None


def resolved(environ: Mapping[str, str]) -> tuple[ClusterSpec, tuple[str, int]] | None:
    found = detect(environ)
    if found is None:
        return None
    resolver = found.resolver
    spec, task = resolver.cluster_spec(), resolver.own_task()
    resolver.master()
    assert task[0] in spec.jobs or task[0] == "evaluator"
    list(map(spec.job_tasks, spec.jobs))
    if task[0] in ("chief", "worker"):
        Roster.of(spec.as_dict(), *task)
    return spec, task


@given(st.sampled_from([RANK, TASKS, HOSTS, COUNTS]), TEXTS)
@example(RANK, "x")
@example(RANK, "-1")
@example(RANK, "7")
@example(HOSTS, f"n[1-{LONG}]")
@example(COUNTS, f"1(x{LONG})")
def test_a_step_of_slurm(variable: str, text: str) -> None:
    environ = STEP | {variable: text}
    found = outcome("SLURM_", lambda: complete(OPTIONS, None, None, environ))
    if found is not None:
        assert isinstance(found, Options)
        assert 0 <= found.node_rank < found.nodes
    outcome("SLURM_", lambda: rank_set_by_slurm(environ))
    spec = outcome("SLURM_", lambda: SlurmClusterResolver(environ=environ).cluster_spec())
    if variable == RANK and text not in ("0", "1"):
        assert spec is None or int(text) in (0, 1)


@given(TEXTS)
def test_the_job_of_slurm_gives_a_port(text: str) -> None:
    found = complete(Options(command=("true",)), None, None, STEP | {"SLURM_JOB_ID": text})
    assert found.coordinator is not None
    assert 20000 <= int(found.coordinator.rpartition(":")[2]) < 40000


@given(TEXTS)
def test_the_pod_of_kubernetes(text: str) -> None:
    found = outcome(
        POD_INDEX if environment.whole_number(text) is None else "--node-rank",
        lambda: complete(OPTIONS, 2, None, {POD_INDEX: text}),
    )
    assert found is None or int(text) in (0, 1)
    pod = {POD_INDEX: text, "HOSTNAME": "job-0", "KUBERNETES_SERVICE_HOST": "h"}
    if environment.whole_number(text) is None:
        outcome(POD_INDEX, lambda: detect(pod))


NUMBERS: dict[str, tuple[Callable[[], object], float]] = {
    environment.CPU_DEVICES: (config.apply_environment, 1),
    RESTART: (lambda: environment.count(RESTART, 0), 0),
    told.TIMEOUT: (told.deadline_s, 1),
    told.SILENCE: (told.silence_s, 1),
    stragglers.EVERY: (stragglers.interval_s, 0),
}


@pytest.mark.parametrize("variable", NUMBERS)
@given(text=TEXTS.filter(lambda text: "\0" not in text))
@example(text="nan")
@example(text="inf")
@example(text=LONG)
def test_numbers(variable: str, text: str) -> None:
    read, least = NUMBERS[variable]
    with mock.patch.dict(os.environ, {variable: text}), mock.patch.object(config, "set_logical_cpu_devices"):
        found = outcome(variable, read)
    if isinstance(found, (int, float)):
        assert least <= found < float("inf")


@pytest.mark.parametrize("text", ["nan", "inf", "-1", LONG, "x"])
def test_wrong_numbers_are_refused(text: str) -> None:
    for variable, (read, _) in NUMBERS.items():
        with (
            mock.patch.dict(os.environ, {variable: text}),
            pytest.raises(jd.errors.ConfigError, match=f"{variable}="),
        ):
            read()


@given(TEXTS)
def test_gpus_that_are_visible(text: str) -> None:
    assert isinstance(visible_gpus({"CUDA_VISIBLE_DEVICES": text}), list)


@pytest.mark.parametrize("task", ["ps", "ps x", f"ps {LONG}", "x 1", "ps -1"])
def test_a_task_to_record(task: str, tmp_path: object) -> None:
    with (
        mock.patch.dict(os.environ, {RUN: str(tmp_path), "JAXTRIBUTE_RUN_TASK": task}),
        pytest.raises(jd.errors.ConfigError, match="JAXTRIBUTE_RUN_TASK="),
    ):
        starting.apply_environment()


@given(TEXTS)
@example("[" * 100000)
@example(f'[{{"kind": "kill", "step": {LONG}}}]')
def test_faults(text: str) -> None:
    outcome(faults.VARIABLE, lambda: faults.parse(text))


# TF_CONFIG ------------------------------------------------------------------------------------------------------------
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.sampled_from(ODD)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
ADDRESSES = st.sampled_from(["h:1", "h:2", "[::1]:3", "grpc://h:4", "h", "", ":1", f"h:{LONG}", "h:65536", "h:-1"])
TASKS_OF = st.one_of(
    JSON, st.lists(ADDRESSES, max_size=3), st.dictionaries(st.sampled_from(["0", "1", "x", LONG, "9" * 12]), ADDRESSES)
)
CLUSTERS = JSON | st.dictionaries(st.sampled_from(["worker", "chief", "ps", "evaluator", ""]), TASKS_OF, max_size=3)
PLACES = JSON | st.fixed_dictionaries(
    {}, optional={"type": JSON | st.sampled_from(["worker", "chief", "ps"]), "index": JSON}
)
CONFIGS = JSON | st.fixed_dictionaries({}, optional={"cluster": CLUSTERS, "task": PLACES, "rpc_layer": JSON})
WORKERS = '{"cluster": {"worker": ["h:1", "h:2"]}, "task": {"type": "worker", "index": %s}}'


@given(CONFIGS.map(json.dumps) | st.text(max_size=20))
@settings(max_examples=300)
@example(LONG)
@example("[" * 100000)
@example('{"task":' * 900 + "1" + "}" * 900)
@example('{"cluster": ' + "[" * 900 + "]" * 900 + "}")
@example('{"cluster": {"worker": {"999999999999": "h:1"}}, "task": {"type": "worker", "index": 0}}')
@example('{"cluster": {"worker": ["h:1"]}, "task": {"type": "worker", "index": 1e999}}')
@example(WORKERS % LONG)
@example(WORKERS % f'"{LONG}"')
@example(WORKERS % "2")
@example(f'{{"cluster": {{"worker": ["h:{LONG}"]}}, "task": {{"type": "worker", "index": 0}}}}')
def test_a_cluster(text: str) -> None:
    environ = {TF_CONFIG: text}
    outcome(TF_CONFIG, lambda: resolved(environ))
    rank = rank_of_this_process(environ)
    assert type(rank) is int
    assert rank >= 0
    if "\0" not in text and "\ud800" not in text:
        with mock.patch.dict(os.environ, {TF_CONFIG: text.encode(errors="replace").decode()}):
            assert holds_a_place() in (True, False)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(jd.errors.ClusterSpecError) as caught:
        resolved({TF_CONFIG: "x" * 1000000})
    assert len(str(caught.value)) < 1000
    assert "1,000,002 letters" in str(caught.value)
