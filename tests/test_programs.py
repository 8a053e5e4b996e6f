"""Random small programs and trainings, by every executor under every strategy and over workers, against NumPy."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from arrangements import WORKERS, check_program, check_training_of_workers
from jaxtribute._src.addons.testing.shared import SharedRunners
from random_programs import Program, check, programs
from replicas import mirrored, one_device
from training_programs import Training, check_training, trainings

STRATEGIES = ("default", "one device", "mirrored", "mirrored 4", "fully sharded", "central", "groups", "sharded groups")


@cache
def strategy_named(name: str) -> jd.Strategy:
    devices = ["CPU:0", "CPU:1"]
    if name == "mirrored":
        return mirrored(2)
    if name == "mirrored 4":
        return mirrored(4)
    groups: dict[str, Any] = {"devices_per_replica": 2, "layout": {"^(?!scalar)": ("model",)}}
    if name == "groups":
        return jd.MirroredStrategy([*devices, "CPU:2", "CPU:3"], **groups)
    if name == "sharded groups":
        return jd.FullyShardedStrategy([*devices, "CPU:2", "CPU:3"], min_bytes=1, **groups)
    if name == "fully sharded":
        return jd.FullyShardedStrategy(devices, min_bytes=1)
    if name == "central":
        return jd.CentralStorageStrategy(devices)
    return one_device(1) if name == "one device" else jd.get_strategy()


# Each example compiles what runs eagerly, again after a write: few examples here, many with the profile `explore`.
explored = settings.get_current_profile_name() == "explore"
examples, over_workers = (1000, 50) if explored else (6, 2)
slowly = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


@pytest.mark.slow
@settings(max_examples=examples, suppress_health_check=slowly)
@given(programs(), st.sampled_from(STRATEGIES))
def test_programs_give_what_numpy_gives(program: Program, name: str) -> None:
    check(program, strategy_named(name))


@pytest.mark.slow
@settings(max_examples=examples, suppress_health_check=slowly)
@given(trainings(), st.sampled_from(STRATEGIES))
def test_trainings_give_what_numpy_gives(training: Training, name: str) -> None:
    check_training(training, strategy_named(name))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("workers", "devices"), WORKERS)
@settings(max_examples=over_workers, suppress_health_check=slowly)
@given(program=programs())
def test_programs_over_workers(multi_process: SharedRunners, workers: int, devices: int, program: Program) -> None:
    multi_process(workers, devices).run(check_program, (program,))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("workers", "devices"), WORKERS)
@settings(max_examples=over_workers, suppress_health_check=slowly)
@given(training=trainings())
def test_trainings_over_workers(
    multi_process: SharedRunners,
    tmp_path_factory: pytest.TempPathFactory,
    workers: int,
    devices: int,
    training: Training,
) -> None:
    folder: Path = tmp_path_factory.mktemp("trainings")
    multi_process(workers, devices).run(check_training_of_workers, (training, folder))
