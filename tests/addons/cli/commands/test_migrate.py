"""`jaxtribute migrate`: what it prints, what it writes, and its exit status."""

from pathlib import Path

import pytest

from jaxtribute._src.addons.cli.main import main

PROGRAM = """import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()


def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * x)
    tape.watch(x)
    return tape.gradient(loss, [v])
"""
EASY = "import tensorflow as tf\nprint(tf.constant(1).numpy())\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(EASY)
    return path


def migrate(*arguments: str | Path) -> int:
    return main(["migrate", *map(str, arguments)])


class TestListing:
    def test_says_file_line_and_column(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        migrate(program)
        lines = capsys.readouterr().out.split("\n")
        assert lines[0] == f"{program}:1:1: renamed: tensorflow: write import jaxtribute.compat.tf as tf"
        assert lines[1].startswith(f"{program}:2:22: renamed: .numpy(): ")

    def test_counts(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        migrate(program)
        assert "0 same, 2 renamed, 0 different, 0 absent; 2 left" in capsys.readouterr().out

    def test_changes_nothing(self, program: Path) -> None:
        assert migrate(program) == 1
        assert program.read_text() == EASY

    def test_shows_the_code_to_write(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        program.write_text(PROGRAM.replace("    tape.watch(x)\n    return tape", "    grads = tape"))
        migrate(program)
        line = '        loss, grads = jd.value_and_grad(compute_loss, [v], unconnected_gradients="none")()'
        assert line in capsys.readouterr().out

    def test_explains_what_is_to_be_done_by_hand(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        program.write_text(PROGRAM)
        assert migrate(program) == 1
        assert "By hand" in capsys.readouterr().out


class TestWriting:
    def test_makes_the_mechanical_changes(self, program: Path) -> None:
        assert migrate("--write", program) == 0
        assert program.read_text().split("\n")[:3] == [
            "import numpy as np",
            "import jaxtribute.compat.tf as tf",
            "print(np.asarray(tf.constant(1)))",
        ]

    def test_a_second_time_finds_nothing_left(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        migrate("--write", program)
        capsys.readouterr()
        assert migrate(program) == 0
        assert "; 0 left" in capsys.readouterr().out

    def test_what_is_left_shows_in_the_status(self, program: Path) -> None:
        program.write_text(PROGRAM)
        assert migrate("--write", program) == 1
        assert "import jaxtribute.compat.tf as tf" in program.read_text()
        assert "tf.GradientTape() as tape" in program.read_text()

    def test_says_what_it_wrote_if_asked(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        migrate("--write", "--all", program)
        assert "tensorflow (written): " in capsys.readouterr().out

    def test_lists_only_what_is_left_by_its_new_line_and_ends_with_the_command(
        self, program: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        program.write_text("import tensorflow as tf\ntf.function(f)\nprint(x.numpy())\ntf.estimator.Estimator()\n")
        migrate("--write", program)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"{program}:5:")
        assert "tf.estimator" in lines[0]
        assert len(lines) == 3
        assert "2 changed, 1 left" in lines[1]
        assert lines[2].endswith(f"then python {program}")
        assert "tf.function" not in "".join(lines)

    def test_ends_with_the_next_command(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        migrate(program)
        assert capsys.readouterr().out.endswith(f"next: jaxtribute migrate --write {program}\n")
        program.write_text("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n")
        migrate("--write", program)
        assert capsys.readouterr().out.endswith(f"next: jaxtribute launch --workers 2 {program}\n")

    @pytest.mark.parametrize(
        ("resolver", "command"),
        [
            ("TFConfigClusterResolver()", "jaxtribute launch --ps 1 --workers 2"),
            ("SimpleClusterResolver(spec)", "python"),
        ],
    )
    def test_a_program_of_parameter_servers_is_launched_with_them(
        self, resolver: str, command: str, program: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        program.write_text(
            f"import tensorflow as tf\nr = tf.distribute.cluster_resolver.{resolver}\n"
            "tf.distribute.experimental.ParameterServerStrategy(r)\n"
        )
        migrate("--write", program)
        assert capsys.readouterr().out.endswith(f"next: {command} {program}\n")

    def test_a_program_without_tensorflow_is_not_touched(self, program: Path) -> None:
        program.write_text("x = 1\n")
        before = program.stat().st_mtime_ns
        assert migrate("--write", program) == 0
        assert program.stat().st_mtime_ns == before


class TestStatus:
    def test_the_worst_of_several_files_counts(self, program: Path, tmp_path: Path) -> None:
        clean = tmp_path / "clean.py"
        clean.write_text("x = 1\n")
        assert migrate(clean) == 0
        assert migrate(clean, program) == 1

    def test_a_file_that_is_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert migrate(tmp_path / "nothing.py") == 2
        assert "cannot be read" in capsys.readouterr().err

    def test_a_file_that_is_not_python(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        program.write_text("def (\n")
        assert migrate(program) == 2
        assert str(program) in capsys.readouterr().err

    def test_a_file_that_is_not_text(self, program: Path) -> None:
        program.write_bytes(b"\xff\xfe\x00")
        assert migrate(program) == 2

    def test_the_others_are_read_nevertheless(self, program: Path, tmp_path: Path) -> None:
        assert migrate("--write", tmp_path / "nothing.py", program) == 2
        assert "jaxtribute" in program.read_text()
