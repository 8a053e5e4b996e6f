"""Install hints in errors, documentation and examples: none names what is not ours on the index."""

import itertools
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = (".py", ".md", ".ipynb", ".sh", ".yaml")
FOLDERS = [path for folder in ("src", "docs", "examples") for path in sorted((ROOT / folder).rglob("*"))]
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(path for path in FOLDERS if path.suffix in SUFFIXES)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The words behind `pip install`: names in quotes or without, and options.
WORD = r"-\w+|\\?'[^'\n]+'|\\?\"[^\"\n]+\"|\.(?=\s|$)|\w[\w-]*(?:\[[\w,-]+\])?"
COMMAND = re.compile(rf"pip install((?:[ \t]+(?:{WORD}))+)")
# Words of the sentence around a command.
PROSE = {"in", "a", "clone", "or", "of", "with", "jaxtribute"}
ONCE_PUBLISHED = {"README.md": "pip install jaxtribute   # not yet: unpublished, and the name on the index is not ours"}
"""The only line that names the package itself, with what it says beside it."""


def test_no_hint_names_the_package_before_it_is_published() -> None:
    for path in FILES:
        # A clone's own folder may be named: `git clone ... && cd jaxtribute && pip install -e .`.
        for line in path.read_text(encoding="utf-8").splitlines():
            if line != ONCE_PUBLISHED.get(path.name):
                assert not re.search(r"pip install[^#`]*jaxtribute", line), f"{path}: {line}"


def test_extras_of_hints_exist_and_other_names_are_dependencies() -> None:
    extras = PROJECT["optional-dependencies"]
    known = {re.split(r"[\[<>=]", one)[0] for one in [*PROJECT["dependencies"], *itertools.chain(*extras.values())]}
    known |= {"jupyterlab", "pillow", "uv", "pre-commit"}
    names: list[str] = []
    for path in FILES:
        for arguments in COMMAND.findall(path.read_text(encoding="utf-8")):
            words = [word.strip("\\'\"") for word in re.findall(WORD, arguments)]
            for word in words:
                local = re.fullmatch(r"\.\[(.+)\]", word)
                if local and "{" not in word:
                    assert set(local[1].split(",")) <= extras.keys(), (path, word)
                elif not local and not word.startswith(("-", "{")) and word != "." and word not in PROSE:
                    assert re.split(r"[\[<>=]", word)[0] in known, (path, word)
            names += words
    assert len(names) > 40
