"""`jaxtribute` finds its commands and runs one."""

import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

import jaxtribute._src.addons.cli.commands as commands
from jaxtribute._src.addons.cli.main import find_commands, main
from processes import run_python


def test_there_is_a_command_for_each_file() -> None:
    names = {module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__)}
    assert set(find_commands()) == names
    assert "migrate" in names


@pytest.mark.parametrize("name", sorted(find_commands()))
def test_each_command_tells_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert find_commands()[name].HELP in " ".join(capsys.readouterr().out.split())


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "migrate" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"]])
def test_a_command_must_be_given(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_script_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["jaxtribute"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.slow
def test_the_module_can_be_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import tensorflow as tf\n")
    output = run_python(
        f"import runpy, sys\nsys.argv = ['jaxtribute', 'migrate', {str(program)!r}]\n"
        "runpy.run_module('jaxtribute.cli', run_name='__main__')",
        status=1,
    )
    assert "import jaxtribute.compat.tf as tf" in output
