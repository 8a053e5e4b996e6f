"""Questions to cluster specs and resolvers, with the environment to ask them in, for two libraries."""

import json

Case = tuple[dict[str, str], str]

_SPEC = {
    "lists": "{'worker': ['a:1', 'b:2'], 'ps': ['c:3']}",
    "sparse": "{'worker': {3: 'a:1', 1: 'b:2'}, 'ps': ['c:3']}",
    "dense_dict": "{'worker': {1: 'b:2', 0: 'a:1'}}",
    "text_keys": "{'worker': {'0': 'a:1', '2': 'b:2'}}",
    "tuple": "{'worker': ('a:1', 'b:2')}",
    "bytes": "{'worker': [b'a:1']}",
    "empty_job": "{'worker': []}",
    "empty": "{}",
}
_ASKED = {
    "as_dict": "{}.as_dict()",
    "def": "[[job.name, dict(job.tasks)] for job in {}.as_cluster_def().job]",
    "jobs": "{}.jobs",
    "copy": "ClusterSpec({}).as_dict()",
    "from_def": "ClusterSpec({}.as_cluster_def()).as_dict()",
    "bool": "bool({})",
    "repr": "repr({})",
    "num_tasks": "{}.num_tasks('worker')",
    "indices": "{}.task_indices('worker')",
    "address": "{}.task_address('worker', 1)",
    "no_address": "{}.task_address('worker', 7)",
    "job_tasks": "{}.job_tasks('worker')",
    "no_job": "{}.num_tasks('chief')",
}
_SPECS: dict[str, Case] = {
    f"spec/{spec}/{asked}": ({}, code.format(f"ClusterSpec({text})"))
    for spec, text in _SPEC.items()
    for asked, code in _ASKED.items()
} | {
    "spec/equal": ({}, "ClusterSpec({'w': ['a:1']}) == ClusterSpec({'w': {0: 'a:1'}})"),
    "spec/unequal": ({}, "ClusterSpec({'w': ['a:1']}) != ClusterSpec({'w': ['b:1']})"),
    "spec/equals_dict": ({}, "ClusterSpec({'w': ['a:1']}) == {'w': {0: 'a:1'}}"),
    "spec/not_a_number": ({}, "ClusterSpec({'w': ['a:1']}) == 3"),
    "spec/bad_cluster": ({}, "ClusterSpec('a:1')"),
    "spec/bad_tasks": ({}, "ClusterSpec({'w': 'a:1'})"),
    "spec/bad_address": ({}, "ClusterSpec({'w': [1]})"),
    "spec/bad_job": ({}, "ClusterSpec({1: ['a:1']})"),
    "spec/bad_index": ({}, "ClusterSpec({'w': {'x': 'a:1'}})"),
    "spec/duplicate": ({}, "ClusterSpec({'w': ['a:1', 'a:1']})"),
}

_TWO = {"worker": ["a:1", "b:2"]}
_TASK = {"type": "worker", "index": 1}
_CONFIG: dict[str, object] = {
    "whole": {"cluster": _TWO, "task": _TASK},
    "layer": {"cluster": _TWO, "task": _TASK, "rpc_layer": "grpc"},
    "session": {"cluster": _TWO, "task": _TASK, "session_master": "there"},
    "environment": {"cluster": _TWO, "task": _TASK, "environment": "cloud"},
    "one": {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}},
    "sparse": {"cluster": {"worker": {"1": "b:2"}}, "task": _TASK},
    "text_index": {"cluster": _TWO, "task": {"type": "worker", "index": "1"}},
    "no_task": {"cluster": _TWO},
    "no_cluster": {"task": _TASK},
    "wrong_type": {"cluster": _TWO, "task": {"type": "chief", "index": 0}},
    "wrong_index": {"cluster": _TWO, "task": {"type": "worker", "index": 2}},
    "bad_cluster": {"cluster": ["a:1"], "task": _TASK},
    "number": 3,
    "list": [],
}
_QUESTIONS = {
    "spec": "TFConfigClusterResolver().cluster_spec()",
    "type": "TFConfigClusterResolver().task_type",
    "id": "TFConfigClusterResolver().task_id",
    "layer": "TFConfigClusterResolver().rpc_layer",
    "master": "TFConfigClusterResolver().master()",
    "master_0": "TFConfigClusterResolver().master('worker', 0, 'ssl')",
    "override": "TFConfigClusterResolver('worker', 0, 'other').master()",
}
_TEXTS: dict[str, str | None] = {name: json.dumps(value) for name, value in _CONFIG.items()} | {
    "no_json": "{'cluster'",
    "unset": None,
}
_CONFIGS: dict[str, Case] = {
    f"tf_config/{config}/{asked}": ({} if text is None else {"TF_CONFIG": text}, code)
    for config, text in _TEXTS.items()
    for asked, code in _QUESTIONS.items()
}

_SIMPLE: dict[str, Case] = {
    f"simple/{asked}": ({}, f"SimpleClusterResolver(ClusterSpec({_TWO}), {code}")
    for asked, code in {
        "master": "'there').master()",
        "master_0": "'there').master('worker', 0)",
        "layer": "task_type='worker', task_id=1, rpc_layer='grpc').master()",
        "layer_1": "rpc_layer='grpc').master('worker', 1)",
        "other_layer": "rpc_layer='grpc').master('worker', 1, 'ssl')",
        "type": "task_type='worker').task_type",
        "id": "task_id=1).task_id",
        "environment": "environment='here').environment",
        "no_environment": "'').environment",
        "accelerators": "num_accelerators={'GPU': 3}).num_accelerators()",
        "no_accelerators": "'').num_accelerators()",
        "no_task": "'').master('worker', 5)",
        "bad_master": "3)",
    }.items()
} | {"simple/bad_spec": ({}, f"SimpleClusterResolver({_TWO})")}


def _simple(jobs: str, more: str = "") -> str:
    return f"SimpleClusterResolver(ClusterSpec({jobs}){more})"


_A = _simple("{'worker': ['a:1', 'b:2']}", ", 'm', 'worker', 1, 'env', {'GPU': 2}, 'grpc'")
_PS = _simple("{'ps': ['c:3']}", ", task_type='ps', task_id=0")
_C = _simple("{'worker': ['c:3']}")
_SPARSE = _simple("{'worker': {4: 'c:3'}}")
_CLASH = _simple("{'worker': {1: 'c:3', 4: 'd:4'}}")
_UNIONS: dict[str, Case] = {
    f"union/{name}": ({}, f"UnionResolver({code}")
    for name, code in {
        "two_jobs": f"{_A}, {_PS}).cluster_spec()",
        "one": f"{_A}).cluster_spec()",
        "lists": f"{_A}, {_C}).cluster_spec()",
        "sparse": f"{_A}, {_SPARSE}).cluster_spec()",
        "sparse_first": f"{_SPARSE}, {_A}).cluster_spec()",
        "conflict": f"{_A}, {_CLASH}).cluster_spec()",
        "same": f"{_A}, {_A}).cluster_spec()",
        "type": f"{_A}, {_PS}).task_type",
        "id": f"{_A}, {_PS}).task_id",
        "other_type": f"{_A}, task_type='ps').task_type",
        "other_id": f"{_A}, task_id=4).task_id",
        "id_0": f"{_A}, task_id=0).task_id",
        "layer": f"{_A}, {_PS}).rpc_layer",
        "other_layer": f"{_A}, rpc_layer='ssl').rpc_layer",
        "environment": f"{_A}, {_PS}).environment",
        "accelerators": f"{_A}, {_PS}).num_accelerators()",
        "master": f"{_A}, {_PS}).master()",
        "master_ps": f"{_A}, {_PS}, rpc_layer='ssl').master('ps', 0)",
        "nothing": ").cluster_spec()",
        "no_resolver": "3)",
        "unknown": f"{_A}, nonsense=1)",
    }.items()
}


def _slurm(nodes: str, counts: str, tasks: int, rank: int = 0, **more: str) -> dict[str, str]:
    step = {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_STEP_NUM_TASKS": str(tasks)}
    return step | {"SLURM_PROCID": str(rank), "CUDA_VISIBLE_DEVICES": "0,1"} | more


_STEP = _slurm("n[1-3]", "2(x2),1", 5, 2)
_SLURMS: dict[str, Case] = {
    f"slurm/{name}": (env, code)
    for name, env, code in [
        ("spec", _STEP, "SlurmClusterResolver().cluster_spec()"),
        ("task", _STEP, "after(SlurmClusterResolver()).get_task_info()"),
        ("master", _STEP, "after(SlurmClusterResolver()).master()"),
        ("master_4", _STEP, "SlurmClusterResolver().master('worker', 4, 'ssl')"),
        ("port", _STEP, "SlurmClusterResolver(port_base=1000).cluster_spec()"),
        ("jobs", _STEP, "SlurmClusterResolver({'worker': 3, 'ps': 2}).cluster_spec()"),
        ("jobs_task", _STEP, "after(SlurmClusterResolver({'worker': 3, 'ps': 2})).get_task_info()"),
        ("too_many", _STEP, "SlurmClusterResolver({'worker': 7})"),
        ("gpus", _STEP, "SlurmClusterResolver().num_accelerators()"),
        ("gpus_per_task", _STEP, "SlurmClusterResolver(gpus_per_node=8, gpus_per_task=3).num_accelerators()"),
        ("too_many_gpus", _STEP, "SlurmClusterResolver(gpus_per_node=1, gpus_per_task=1)"),
        ("visible", _STEP, "visible(SlurmClusterResolver())"),
        ("visible_4", _STEP, "visible(SlurmClusterResolver(gpus_per_node=4))"),
        ("visible_left", _STEP, "visible(SlurmClusterResolver(auto_set_gpu=False))"),
        ("visible_rank_1", _STEP | {"SLURM_PROCID": "1"}, "visible(SlurmClusterResolver())"),
        ("per_node", _STEP, "SlurmClusterResolver({'worker': 6}, tasks_per_node=2).cluster_spec()"),
        ("by_node", _STEP, "SlurmClusterResolver({'worker': 3}, tasks_per_node={'x': 1, 'y': 2}).cluster_spec()"),
        ("layer", _STEP, "SlurmClusterResolver().rpc_layer"),
        ("names", _slurm("t02n13,t02n41,a-b", "1(x3)", 3), "SlurmClusterResolver().cluster_spec()"),
        ("unsorted", _slurm("n[2,10]", "1(x2)", 2), "SlurmClusterResolver().cluster_spec()"),
        ("no_gpu", _slurm("n1", "2", 2, CUDA_VISIBLE_DEVICES=""), "visible(SlurmClusterResolver(gpus_per_node=0))"),
        ("unset", {}, "SlurmClusterResolver()"),
        ("half", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "SlurmClusterResolver()"),
        ("bad_nodes", _slurm("n[1-", "1", 1), "SlurmClusterResolver()"),
        ("bad_counts", _slurm("n1", "two", 1), "SlurmClusterResolver()"),
    ]
}

CASES: dict[str, Case] = _SPECS | _CONFIGS | _SIMPLE | _UNIONS | _SLURMS
