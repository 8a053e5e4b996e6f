"""Runs the code of a Markdown page as its reader would: from top to bottom, in one namespace.

A block marked `python` is executed. A block marked `pycon` is a session whose every output, tracebacks included, must
come out as it is printed; `...` stands for anything.
"""

import doctest
import re
import sys
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```(?P<kind>python|pycon)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(text: str) -> list[tuple[int, str, str]]:
    """The line, kind and code of every block of Python in a page."""
    found = _BLOCK.finditer(text)
    return [(text.count("\n", 0, match.start("code")), match["kind"], match["code"]) for match in found]


def run_page(page: Path) -> None:
    """Runs all blocks of a page.

    Raises:
        AssertionError: An output is not what the page prints.
        Exception: Whatever a `python` block raises.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, kind, code in blocks(page.read_text(encoding="utf-8")):
        if kind == "python":
            # Blank lines in front, so that a traceback names the line of the page.
            exec(compile("\n" * line + code, str(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, f"{page.name}:{line}", str(page), line)
        assert test.examples, f"{page}:{line}: a pycon block without >>>"
        runner = doctest.DocTestRunner(optionflags=_FLAGS)
        runner.run(test, clear_globs=False)
        names.update(test.globs)
        assert not runner.failures, f"{page}:{line}: {runner.failures} outputs differ from those printed"


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
