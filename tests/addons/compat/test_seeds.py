"""Every code block of TensorFlow's documents runs as it is written, and shows what they say.

The documents are looked for beside the repository, or where JAXTRIBUTE_SEEDS says.
"""

import ast
import json
import os
import re
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from compat.seed_blocks import Block, read_blocks
from compat.seed_cases import CASES, Case, case_of
from compat.seed_outputs import agree, shown, stated
from compat.seed_workers import run_as_worker
from tfrecords import write_tfrecord

FOLDER = Path(os.environ.get("JAXTRIBUTE_SEEDS", Path(__file__).parents[3].parent / "shared" / "seeds"))
BLOCKS = list(read_blocks(FOLDER)) if FOLDER.is_dir() else []
needs_texts = pytest.mark.skipif(not BLOCKS, reason=f"the documents are not at {FOLDER}; set JAXTRIBUTE_SEEDS")


class EnoughError(Exception):
    """Ends a loop that would go on for ever."""


@pytest.fixture
def wide_types() -> Generator[None]:
    """64-bit types, which the documents show and JAX has switched off."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def label(block: Block) -> str:
    case = case_of(block.seed, block.text)
    return f"{block.seed}-{case.name if case else 'unknown'}"


@needs_texts
class TestExtraction:
    def test_every_block_is_an_example_that_is_known(self) -> None:
        assert [block.text for block in BLOCKS if case_of(block.seed, block.text) is None] == []

    def test_every_example_is_found(self) -> None:
        found = {case_of(block.seed, block.text) and label(block).partition("-")[2] for block in BLOCKS}
        assert found == {case.name for case in CASES}

    @pytest.mark.parametrize("name", ["E1", "E9", "E14"])
    def test_squeezed_blocks_are_laid_out_as_those_that_kept_their_lines(self, name: str) -> None:
        trees = {
            ast.dump(ast.parse(block.source())) for block in BLOCKS if label(block) in (f"S0-{name}", f"S1-{name}")
        }
        assert len(trees) == 1

    @pytest.mark.parametrize("name", ["E3", "E10", "E11", "E12", "E13", "E16"])
    def test_both_ways_of_squeezing_give_the_same_program(self, name: str) -> None:
        trees = [
            ast.dump(ast.parse(block.source())) for block in BLOCKS if label(block) in (f"S0-{name}", f"S1-{name}")
        ]
        assert len(trees) == 2
        assert trees[0] == trees[1]

    def test_a_repair_finds_what_it_repairs(self) -> None:
        for block in BLOCKS:
            case = case_of(block.seed, block.text)
            assert case is not None
            assert all(old in block.text for old, _ in case.repairs), label(block)


def blocks(alone: bool) -> list[Block]:
    """Those that one process runs, or those that take several."""
    return [block for block in BLOCKS if (found := case_of(block.seed, block.text)) and alone == (found.workers == 1)]


@needs_texts
@pytest.mark.usefixtures("wide_types")
@pytest.mark.parametrize("block", blocks(alone=True), ids=label)
def test_block_shows_what_the_document_states(block: Block, tmp_path: Path) -> None:
    case = case_of(block.seed, block.text)
    assert case is not None
    source = repaired(block, case)
    seen, names = execute(source, case, tmp_path)
    outputs = list(expected(source))
    assert len(outputs) == source.count("#= ")
    for statement, text in outputs:
        if statement in case.differs:
            assert not agree(stated(text), shown(seen[statement][0]))
            continue
        compare(text, seen.get(statement) or [names[statement.partition(" = ")[0]]])
    if case.name.startswith("E15"):
        said = "[0+4, 1+5, 2+6, 3+7]" if case.name == "E15a" else "0+1+2+3+4+5+6+7"
        assert said in block_text(block)
        assert agree(stated(said), shown(next(iter(seen.values()))[0]))


@pytest.mark.slow
@needs_texts
def test_blocks_of_several_workers() -> None:
    with jd.testing.MultiProcessRunner(workers=2, devices=2) as runner:
        for block in blocks(alone=False):
            case = case_of(block.seed, block.text)
            assert case is not None
            assert case.workers == runner.workers
            found = runner.run(run_as_worker, (case.prelude, repaired(block, case)))
            assert found == [("worker", 0, 4), ("worker", 1, 4)]


def repaired(block: Block, case: Case) -> str:
    text = block.text
    for old, new in case.repairs:
        text = text.replace(old, new, 1)
    return Block(block.seed, text).source()


def block_text(block: Block) -> str:
    """The whole text that a block comes from."""
    return sorted(FOLDER.glob("*.txt"))[int(block.seed[1:])].read_text()


def compare(text: str, values: list[Any]) -> None:
    """Checks that values are what is stated: once, or as "PerReplica values [0, 1], [2, 3],..." for those of a loop."""
    if text.startswith("PerReplica values"):
        lists = [stated(part) for part in re.findall(r"\[.*?\]", text)]
        assert all(agree(said, shown(value)) for said, value in zip(lists, values, strict=False))
        return
    said, seen = stated(text), shown(values[0])
    assert agree(said, seen), f"stated: {said}\nshown:  {seen}"


def expected(source: str) -> Generator[tuple[str, str]]:
    """The statements that a block states an output for, each with its output."""
    statements = sorted(
        (node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Expr, ast.Assign))),
        key=lambda node: node.lineno,
    )
    for number, line in enumerate(source.split("\n"), 1):
        if "#= " in line:
            before = [node for node in statements if node.lineno <= number]
            yield ast.unparse(before[-1]), line.partition("#= ")[2]


class Recorder(ast.NodeTransformer):
    """Passes the value of each statement that is an expression, or what it prints, to `show_`."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print":
            value = value.args[0]
        call = ast.Call(ast.Name("show_", ast.Load()), [ast.Constant(ast.unparse(node)), value], [])
        return ast.copy_location(ast.Expr(call), node)


def execute(source: str, case: Case, folder: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Runs a block after its prelude; what each expression gave, by its text, and the names that it leaves."""
    write_files(folder)
    seen: dict[str, list[Any]] = {}
    calls = iter(range(1_000))

    def stop_after(number: int) -> None:
        if next(calls) >= number:
            raise EnoughError

    names: dict[str, Any] = {
        "tf": tf,
        "np": np,
        "os": os,
        "json": json,
        "folder": str(folder),
        "stop_after": stop_after,
        "show_": lambda text, value: seen.setdefault(text, []).append(value),
    }
    tree = ast.fix_missing_locations(Recorder().visit(ast.parse(source)))
    aliases = {f"GPU:{number}": f"CPU:{number + 1}" for number in range(case.gpus)}
    aliases |= {f"TPU:{number}": f"CPU:{number + 1}" for number in range(case.tpus)}
    with jd.config.alias_devices(aliases), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # test_v1 counts them
        exec(compile(case.prelude, f"<prelude of {case.name}>", "exec"), names)
        if case.stops:
            with pytest.raises(EnoughError):
                exec(compile(tree, f"<{case.name}>", "exec"), names)
        else:
            exec(compile(tree, f"<{case.name}>", "exec"), names)
        # What is shown is looked at while the devices bear the names of the example.
        outputs = {text: [shown_now(value) for value in values] for text, values in seen.items()}
    return outputs, names


def shown_now(value: Any) -> Any:
    return shown(value) if isinstance(value, (jax.Device, str)) else value  # pyright: ignore[reportArgumentType]


def write_files(folder: Path) -> None:
    (folder / "a").mkdir()
    for number in range(1, 5):
        write_tfrecord(folder / "a" / f"{number}.tfr", [np.arange(3, dtype=np.float32).tobytes() for _ in range(3)])
