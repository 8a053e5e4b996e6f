"""Programs are read from files of any encoding and from notebooks, and written back as they lay there."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.compat.migrate.documents import HIDDEN, read
from jaxtribute._src.addons.compat.migrate.scan import scan

USE = "x.experimental_run_v2(f)"


def notebook(*cells: str | tuple[str, str], indent: int | None = 1, as_text: bool = False, **metadata: Any) -> bytes:
    """A notebook of code cells; a pair is a cell of another type and its text."""

    def cell(content: str | tuple[str, str]) -> dict[str, Any]:
        kind, text = ("code", content) if isinstance(content, str) else content
        more = {"execution_count": None, "outputs": []} if kind == "code" else {}
        return {
            "cell_type": kind,
            "metadata": {"naïve": True},
            **more,
            "source": text if as_text else text.splitlines(keepends=True),
        }

    content = {"cells": [cell(one) for one in cells], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(content, indent=indent, ensure_ascii=False) + "\n").encode()


def sources(data: bytes) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(data)["cells"]]


def migrate(path: Path, data: bytes, *options: str) -> int:
    path.write_bytes(data)
    return main(["migrate", *options, str(path)])


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("", "utf-8"),
        ("", "utf-8-sig"),
        ("# -*- coding: latin-1 -*-\n", "latin-1"),
        ("#!/usr/bin/env python\n# coding: cp1252\n", "cp1252"),
    ],
)
def test_a_script_keeps_its_encoding(tmp_path: Path, head: str, encoding: str) -> None:
    text = f'{head}"""größer"""\r\n{USE}  # é\r\n'
    path = tmp_path / "train.py"
    assert migrate(path, text.encode(encoding), "--write") == 0
    assert path.read_bytes() == text.replace("experimental_run_v2", "run").encode(encoding)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.py", b"# coding: klingon\n", "unknown encoding: klingon"),
        ("a.py", b"x = '\xff'\n", "encoding"),
        ("a.py", b"x = 1\0\n", "null bytes"),
        ("a.py", b"def f(:\n", "invalid syntax"),
        ("a.py", b"x = " + b"-" * 200_000 + b"1\n", "too deeply"),
        ("a.py", b"x" + b".a" * 100_000 + b"\n", "too deeply"),
        ("a.py", b"x = " + b"(" * 5_000 + b")" * 5_000 + b"\n", "(?i)too (deeply|many nested)"),
        ("a.ipynb", b"[" * 200_000, "too deeply|Expecting"),
        ("a.ipynb", b"x = 1\n", "Expecting value"),
        ("a.ipynb", b'{"worksheets": []}', "no notebook of format 4"),
        ("a.ipynb", notebook("x <- 1", kernelspec={"language": "R"}), "a notebook of R"),
        ("a.ipynb", notebook("x = 1", ("markdown", "# no"), "y = = 2"), r"cell 3: invalid syntax \(line 1\)"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, name: str, data: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = migrate(tmp_path / name, data, "--write")
    said = capsys.readouterr()
    assert status == 2
    assert re.search(message, said.err), said.err
    assert (tmp_path / name).read_bytes() == data


def test_a_file_stays_where_its_encoding_lacks_a_letter_of_the_change(tmp_path: Path) -> None:
    document = read(b"# coding: latin-1\nx = 1\n", notebook=False)
    with pytest.raises(ValueError, match="latin-1"):
        document.rewritten(document.text + "y = '\N{SNOWMAN}'\n")


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("depth", [100, 300, 900, 2_000, 5_000, 20_000])
def test_what_is_deep_is_read_or_refused(tmp_path: Path, depth: int, capsys: pytest.CaptureFixture[str]) -> None:
    for number, text in enumerate(
        ["tf" + ".a" * depth, "x" + "()" * depth, "x" + " + x" * depth, "not " * depth + "x"]
    ):
        path = tmp_path / f"deep{number}.py"
        status = migrate(path, f"import tensorflow as tf\ny = {text}\n".encode(), "--write")
        said = capsys.readouterr().err
        assert status in (0, 1) or (status == 2 and "too deeply" in said), said


@pytest.mark.slow
def test_a_large_program_is_read() -> None:
    lines = 3_000
    report = scan("import tensorflow as tf\n" + f"{USE}\ntf.function(f)\n" * lines)
    assert len(report.left()) == 0
    assert report.rewritten().count("x.run(f)") == lines


def test_a_notebook_is_one_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = notebook(
        ("markdown", "# Training\nimport tensorflow as nothing"),
        "!pip install \\\n   jaxtribute\n%matplotlib inline\nimport tensorflow as tf\nfiles = !ls",
        "\ntf.estimator.Estimator()\n",
        "%%time\nstrategy = tf.distribute.MirroredStrategy()\nstrategy.experimental_run_v2(f)",
        "tf.data?",
    )
    path = tmp_path / "train.ipynb"
    assert migrate(path, data) == 1
    told = capsys.readouterr().out.splitlines()
    assert f"{path}:cell 2:4:1: renamed: tensorflow: write import jaxtribute.compat.tf as tf" in told
    assert any(line.startswith(f"{path}:cell 3:2:14: absent: tf.estimator.Estimator") for line in told)
    assert any(line.startswith(f"{path}:cell 4:3:10: renamed: .experimental_run_v2") for line in told)
    assert path.read_bytes() == data
    assert migrate(path, data, "--write") == 1
    markdown, first, second, third, fourth = sources(path.read_bytes())
    assert markdown.startswith("# Training\nimport tensorflow")
    assert first == sources(data)[1].replace("import tensorflow as", "import jaxtribute.compat.tf as")
    assert second == sources(data)[2]
    assert third == sources(data)[3].replace("experimental_run_v2", "run")
    assert fourth == "tf.data?"
    assert json.loads(path.read_bytes())["cells"][1]["metadata"] == {"naïve": True}


def test_imports_that_a_change_needs_stand_in_the_first_cell(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    migrate(path, notebook("%%time\nx = 1", "import tensorflow as tf\nprint(tf.constant(1).numpy())"), "--write")
    first, second = sources(path.read_bytes())
    assert first == "%%time\nx = 1"
    assert second.startswith("import numpy as np\nimport jaxtribute.compat.tf as tf\n")
    migrate(path, notebook("x = 1", "y.numpy()"), "--write")
    assert sources(path.read_bytes()) == ["import numpy as np\nx = 1", "np.asarray(y)"]


def test_lines_that_are_not_read_are_named_where_they_mention_tensorflow() -> None:
    document = read(
        notebook(
            "!pip install tensorflow",
            "!pip install keras",
            "!pip install tensorflow  # jaxtribute: ok",
            "%%writefile train.py\nimport tensorflow as tf\nx = = 1",
        ),
        notebook=True,
    )
    report = scan(document.text)
    assert [(document.place(one.line), one.name) for one in report.left()] == [
        ("cell 1:1", "!pip"),
        ("cell 4:2", "import"),
    ]


def test_a_script_may_hold_lines_for_ipython_too(tmp_path: Path) -> None:
    path = tmp_path / "exported.py"
    assert migrate(path, f"!pip install keras\nif x:\n    %load_ext y\n{USE}\n".encode(), "--write") == 0
    assert path.read_text() == "!pip install keras\nif x:\n    %load_ext y\nx.run(f)\n"


LINES = st.sampled_from(
    [
        "x = 1",
        "",
        "if x:\n    %time y()",
        "!ls -l",
        "names = !ls",
        "a, b = %timeit -o f()",
        "help?",
        "text = '''\n!not a line\n%for it\n'''",
        "!cat \\\n  file \\\n  other",
        "z = 5 % 3",
        "print(  'ü' )",
        "# a comment?",
        "y = {\n  1: 2,\n}",
    ]
)


@given(
    cells=st.lists(st.lists(LINES, max_size=5).map("\n".join), max_size=4),
    indent=st.sampled_from([None, 1, 2]),
    as_text=st.booleans(),
)
def test_a_notebook_that_nothing_changes_is_the_same_to_the_byte(
    cells: list[str], indent: int | None, as_text: bool
) -> None:
    data = notebook(*cells, indent=indent, as_text=as_text)
    document = read(data, notebook=True)
    ast.parse(document.text)
    back = document.rewritten(document.text)
    assert back == data
    hidden = [line for line in document.text.split("\n") if HIDDEN in line]
    for line in hidden:
        original = line.partition(HIDDEN)[2]
        assert any(original in cell for cell in cells)


class TestWrittenFiles:
    CELL = "%%writefile main.py\n\nimport tensorflow as tf\n\n%matplotlib inline\nx.reset_states()\nprint(x.numpy())\n"

    def test_are_programs_of_their_own(self, tmp_path: Path) -> None:
        path = tmp_path / "a.ipynb"
        assert migrate(path, notebook("import tensorflow as tf\n", self.CELL, "tf.cast(1, 'int32')"), "--write") == 0
        first, written, last = sources(path.read_bytes())
        assert first == "import jaxtribute.compat.tf as tf\n"
        assert written == (
            "%%writefile main.py\n\nimport numpy as np\nimport jaxtribute.compat.tf as tf\n\n%matplotlib inline\n"
            "x.reset_state()\nprint(np.asarray(x))\n"
        )
        assert last == "tf.cast(1, 'int32')"

    def test_their_lines_are_those_of_the_cell(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        migrate(tmp_path / "a.ipynb", notebook(("markdown", "# a"), self.CELL))
        assert "a.ipynb:cell 2:3:1: renamed: tensorflow" in capsys.readouterr().out

    @pytest.mark.parametrize("head", ["%%writefile -a main.py", "%%file main.py"])
    def test_other_forms(self, tmp_path: Path, head: str) -> None:
        path = tmp_path / "a.ipynb"
        migrate(path, notebook(f"{head}\nimport tensorflow as tf\n"), "--write")
        assert sources(path.read_bytes()) == [f"{head}\nimport jaxtribute.compat.tf as tf\n"]

    def test_files_that_are_not_python_are_only_looked_at(self, tmp_path: Path) -> None:
        path = tmp_path / "a.ipynb"
        data = notebook("%%writefile requirements.txt\ntensorflow\n")
        assert migrate(path, data, "--write") == 1
        assert path.read_bytes() == data
