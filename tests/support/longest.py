"""The order in which pytest's processes go through the slow tests: at the end none of them waits for one long test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest

SECONDS = {
    "tests/addons/compat/tf/test_keras.py::test_models_are_fitted_and_every_name_that_migrate_believes_exists": 38,
    "tests/addons/compat/tf/test_symbolic.py::test_calls_become_steps_of_the_model_and_strings_are_looked_up": 45,
    "tests/addons/elastic/test_launched.py::test_fit_goes_on_in_an_epoch_when_an_island_is_killed": 35,
    "tests/addons/keras/test_multi_worker.py::test_what_one_worker_saves_all_can_load": 39,
    "tests/addons/launcher/test_two_machines.py::test_a_machine_that_was_cut_off_is_taken_back": 50,
    "tests/addons/parameter_servers/test_machines.py::test_machines_that_share_no_disk": 37,
    "tests/addons/verify/test_verified_programs.py::test_examples_and_pages_raise_no_alarm": 50,
    "tests/clients/test_alarms.py::test_keras_own_tests_raise_no_alarm": 48,
    "tests/examples/test_cluster_files.py::test_the_program_saves_on_sigterm_and_goes_on": 32,
    "tests/examples/test_digits.py::test_each_strategy_does_the_same": 70,
    "tests/examples/test_libraries.py::test_they_learn_and_go_on_where_they_stopped": 44,
    "tests/multiprocess/test_kills.py::test_a_kill_in_a_save_and_a_preemption_change_nothing": 67,
    "tests/multiprocess/test_namespaces.py::test_two_machines_train_and_notice_that_they_are_cut_off": 32,
    "tests/stress/test_late_worker.py::test_a_worker_that_is_late_before_the_first_step_and_before_the_next": 76,
    "tests/test_behaviours.py::test_the_table_over_workers": 35,
    "tests/test_documents.py::test_the_code_of_the_pages_runs": 60,
    "tests/test_notebook.py::test_it_runs_and_the_outputs_that_it_holds_are_of_today": 40,
}
"""Seconds that a test takes, of four processes on two cores; of those that take half a minute."""
_OF_RAY = 50


def dealt(items: Sequence[pytest.Item], workers: int, ray_places: int) -> list[pytest.Item]:
    """Puts the longest tests first in the parts that `--dist=worksteal` gives the processes.

    The last process gets none of them, as they start processes of their own. Tests of Ray are in as many parts as may
    run at a time, so that no process waits for another's.
    """
    long = [item for item in items if seconds_of(item)]
    chosen = set(long)
    others = (item for item in items if item not in chosen)
    lanes = max(workers - 1, 1)
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for item in sorted(long, key=lambda item: (not _needs_ray(item), -seconds_of(item))):
        allowed = parts[: min(ray_places, lanes)] if _needs_ray(item) else parts[:lanes]
        min(allowed, key=lambda part: sum(map(seconds_of, part))).append(item)
    found: list[pytest.Item] = []
    for number, part in enumerate(parts):
        part.sort(key=seconds_of, reverse=True)
        size = (len(items) - len(found)) // (workers - number)
        found += [*part, *islice(others, max(size - len(part), 0))]
    return [*found, *others]


def _needs_ray(item: pytest.Item) -> bool:
    return item.get_closest_marker("ray") is not None


def seconds_of(item: pytest.Item) -> int:
    """What is written down of a test; 0 for a short one."""
    return SECONDS.get(item.nodeid.partition("[")[0], _OF_RAY if _needs_ray(item) else 0)
