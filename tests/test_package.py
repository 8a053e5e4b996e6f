"""What is built is what was meant: the files of wheel and sdist, metadata and entry point; and the wheel works."""

import re
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

from processes import run_python

ROOT = Path(__file__).parents[1]
CI = ROOT / ".ci" / "run"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def build(builder: Any, root: Path, into: Path) -> Path:
    return Path(next(iter(builder(str(root)).build(directory=str(into), versions=["standard"]))))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(WheelBuilder, ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def names(path: Path) -> set[str]:
    """The files of an archive; those of a wheel's metadata and an sdist without the leading directory."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {re.sub(r"^[^/]+\.dist-info/", "dist-info/", name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "jaxtribute").rglob("*.py")}
    found = names(wheel)
    assert {name for name in found if name.endswith(".py")} == sources
    assert {name.partition("/")[0] for name in found} == {"jaxtribute", "dist-info"}
    assert {"jaxtribute/py.typed", "dist-info/licenses/LICENSE", "dist-info/entry_points.txt"} <= found
    assert not any("__pycache__" in name for name in found)


def test_the_wheel_is_for_every_platform(wheel: Path) -> None:
    assert wheel.name == f"jaxtribute-{PROJECT['version']}-py3-none-any.whl"


def test_the_metadata_tells_what_is_needed(metadata: Message) -> None:
    assert metadata["Name"] == "jaxtribute"
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = {one.name for one in needed if one.marker is None}
    assert always == {Requirement(text).name for text in PROJECT["dependencies"]}


def test_extras_refer_to_each_other_and_everything_has_a_lowest_version(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == set(PROJECT["optional-dependencies"])
    for text in metadata.get_all("Requires-Dist", []):
        one = Requirement(text)
        if one.name == "jaxtribute":
            assert one.extras <= extras, text
        else:
            assert any(bound.operator in (">=", "==", "~=") for bound in one.specifier), text


def test_the_sdist_holds_what_builds_and_tests_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(SdistBuilder, ROOT, tmp_path)
    found = names(sdist)
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "CHANGELOG.md", "CONTRIBUTING.md"} <= found
    assert {"tests/conftest.py", "docs/index.md", "examples/digits.py", "mkdocs.yml"} <= found
    assert not any(part in name for name in found for part in ("/.venv/", "/site/", "__pycache__", ".coverage"))
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python 3.11.3 and older have not
        archive.extractall(tmp_path)
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert names(build(WheelBuilder, unpacked, tmp_path / "again")) == names(wheel)


@pytest.mark.slow
def test_the_wheel_works_from_where_it_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = f"""
        import runpy
        import jaxtribute
        assert jaxtribute.__file__.startswith({str(tmp_path)!r}), jaxtribute.__file__
        runpy.run_path({str(ROOT / "tests" / "support" / "smoke.py")!r}, run_name="__main__")
    """
    printed = run_python(script, devices=2, env={"PYTHONPATH": str(tmp_path)})
    assert f"jaxtribute {PROJECT['version']} works" in printed


def test_the_workflow_does_what_the_ci_does() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert re.search(r"run: .*\.ci/run$", workflow, re.MULTILINE)
    assert set(re.findall(r"make ([a-z-]+)", workflow)) <= targets
    named = re.findall(r"^first=\((.+)\)$|^make --keep-going (test) ", CI.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == 2
    assert set(" ".join(map(" ".join, named)).split()) <= targets
    lowest = PROJECT["requires-python"].removeprefix(">=")
    pythons = re.findall(r'python: \["(.+)"\]', workflow)[0].split('", "')
    assert pythons[0] == lowest
    names = [name for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert pythons == [name.rpartition(" ")[2] for name in names]
