"""Compiled programs that outlive the process."""

import json
import os
from pathlib import Path

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.launcher.compilation_cache import cache_environment, default_directory
from processes import run_python

PROGRAM = """
    import json
    import jax, jax.numpy as jnp
    import jaxtribute as jd

    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
    {before}
    jd.config.enable_compilation_cache({folder!r})
    strategy = jd.MirroredStrategy()
    with strategy.scope():
        w = jd.Variable(jnp.ones((64, 64)))

    @jd.function
    def step(x):
        def replica(x):
            for _ in range(12):
                x = jnp.tanh(x @ w) + jnp.sin(x)
            return x.sum()
        return strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)

    total = float(step(jnp.ones((8, 64))))
    print(json.dumps([len(hits), total]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "jnp.ones(3) + 1  # JAX has compiled something already"])
def test_a_second_start_finds_the_programs_of_the_first(tmp_path: Path, before: str) -> None:
    program = PROGRAM.format(before=before, folder=str(tmp_path / "programs"))
    environment = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    runs = [json.loads(run_python(program, devices=2, env=environment).splitlines()[-1]) for _ in range(2)]
    assert any((tmp_path / "programs").iterdir())
    assert runs[0][1] == runs[1][1]
    assert runs[1][0] > runs[0][0]


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(jd.errors.ConfigError, match=r"file/programs cannot keep compiled programs.*HINT"):
        jd.config.enable_compilation_cache(tmp_path / "file" / "programs")
    with pytest.raises(jd.errors.ArgumentTypeError, match="a path, not 5"):
        jd.config.enable_compilation_cache(5)  # pyright: ignore[reportArgumentType]


def test_processes_that_are_started_get_it_unless_the_user_says_otherwise() -> None:
    assert cache_environment("/f", {})["JAX_COMPILATION_CACHE_DIR"] == "/f"
    assert cache_environment("/f", {"JAX_COMPILATION_CACHE_DIR": "/own"}) == {}
    assert cache_environment("/f", {"JAX_ENABLE_COMPILATION_CACHE": "false"}) == {}
    shortest = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    assert shortest not in cache_environment("/f", {shortest: "3"})


def test_the_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.sep + "caches")
    assert default_directory() == Path("/caches/jaxtribute/programs")
