"""Which policy holds, and what it says when it cannot."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from jaxtribute._src.core.input.policy import Sharding, resolve
from jaxtribute._src.core.input.sources import Source, adapt
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import InputError
from jaxtribute.input import AutoShardPolicy, InputOptions, TextLineSource, make_numpy_dataset, shard_hint

POLICIES = list(AutoShardPolicy)


def text(folder: Path, files: int) -> Any:
    paths = [folder / str(number) for number in range(files)]
    for path in paths:
        path.write_text("1\n2\n")
    return grain.MapDataset.source(TextLineSource(paths)).map(int).batch(2)


def resolved(dataset: Any, policy: AutoShardPolicy | None = None, workers: int = 2) -> Sharding:
    return resolve(adapt(dataset), InputOptions(auto_shard_policy=policy), Shard(workers, 0, workers))


@pytest.mark.parametrize("policy", POLICIES)
def test_one_worker_reads_everything(policy: AutoShardPolicy) -> None:
    sharding = resolved([np.arange(2)], policy, workers=1)
    assert sharding.kind == "global"
    assert sharding.policy is (AutoShardPolicy.DATA if policy is AutoShardPolicy.AUTO else policy)


def test_files_are_shared_out_where_they_go_round(tmp_path: Path) -> None:
    sharding = resolved(text(tmp_path, 3))
    assert (sharding.requested, sharding.policy) == (AutoShardPolicy.AUTO, AutoShardPolicy.FILE)
    assert sharding.kind == "local"
    assert sharding.source.files() == (str(tmp_path / "0"), str(tmp_path / "2"))


def test_too_few_files_fall_back_to_data_with_one_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"by DATA, because its 1 file\(s\) do not go round 2 workers.*HINT") as caught:
        sharding = resolved(text(tmp_path, 1))
    assert len(caught) == 1
    assert sharding.policy is AutoShardPolicy.DATA


def test_data_that_every_worker_reads_in_full_is_told_of() -> None:
    with pytest.warns(UserWarning, match=r"every worker reads all of it.*HINT") as caught:
        resolved(np.arange(4) for _ in range(1))
    assert len(caught) == 1


def test_data_that_costs_nothing_to_share_is_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolved(make_numpy_dataset(np.arange(4)).batch(2)).policy is AutoShardPolicy.DATA
        assert resolved([np.arange(4)]).policy is AutoShardPolicy.DATA


def test_asking_for_data_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolved([np.arange(4)], AutoShardPolicy.DATA).reason == "it was asked for"


def test_too_few_files_are_an_error_where_files_were_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"2 file\(s\).*3 workers.*HINT: split the data into at least 3 files"):
        resolved(text(tmp_path, 2), AutoShardPolicy.FILE, workers=3)


@pytest.mark.parametrize("dataset", [[np.arange(4)], grain.MapDataset.range(4).batch(2)])
def test_no_files_are_an_error_where_files_were_asked_for(dataset: Any) -> None:
    with pytest.raises(InputError, match=r"AutoShardPolicy\.FILE.*HINT"):
        resolved(dataset, AutoShardPolicy.FILE)


def test_off_shares_nothing() -> None:
    sharding = resolved(grain.MapDataset.range(4).batch(2), AutoShardPolicy.OFF)
    assert sharding.kind == "local"
    assert len(list(_drain(sharding.source))) == 2


def test_hints() -> None:
    dataset = grain.MapDataset.range(8).pipe(shard_hint).batch(2)
    assert _drain(resolved(dataset, AutoShardPolicy.HINT).source) == [[0, 2], [4, 6]]
    sequential = grain.MapDataset.range(8).pipe(shard_hint).to_iter_dataset().filter(lambda x: x != 2).batch(2)
    assert _drain(resolved(sequential, AutoShardPolicy.HINT).source) == [[0, 4], [6]]
    with pytest.raises(InputError, match=r"AutoShardPolicy\.HINT.*HINT"):
        resolved([np.arange(4)], AutoShardPolicy.HINT)


def test_a_datasets_own_policy_holds_unless_another_is_given() -> None:
    class Opinionated(Source):
        def open(self, shard: Shard) -> Any:
            raise AssertionError

        def policy(self) -> AutoShardPolicy:
            return AutoShardPolicy.OFF

    assert resolved(Opinionated()).policy is AutoShardPolicy.OFF
    assert resolved(Opinionated(), AutoShardPolicy.DATA).policy is AutoShardPolicy.DATA


@pytest.mark.parametrize("possible", [True, False])
def test_sources_that_know_their_files_only_when_they_shard(possible: bool) -> None:
    class Hidden(Source):
        finds_files = True

        def open(self, shard: Shard) -> Any:
            raise AssertionError

        def by_file(self, shard: Shard) -> Source:
            return self if possible else super().by_file(shard)

    if possible:
        assert resolved(Hidden()).policy is AutoShardPolicy.FILE
    else:
        with pytest.warns(UserWarning, match="reads no files"):
            assert resolved(Hidden()).policy is AutoShardPolicy.DATA


def _drain(source: Source) -> Sequence[list[int]]:
    stream, found = source.open(Shard()), list[list[int]]()
    while True:
        try:
            found.append(next(stream).tree.tolist())
        except StopIteration:
            stream.close()
            return found
