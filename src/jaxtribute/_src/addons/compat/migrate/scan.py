"""Finding the uses of TensorFlow in a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from jaxtribute._src.addons.compat.catalog import keras2, others
from jaxtribute._src.addons.compat.catalog.keras import keras_problem
from jaxtribute._src.addons.compat.catalog.lookup import Kind, entry_of
from jaxtribute._src.addons.compat.migrate import (
    arguments,
    components,
    decisions,
    environment,
    files,
    graphs,
    imports,
    joins,
    keras2_calls,
    keras2_steps,
    members,
    older,
    precision,
    server_optimizers,
    shapes,
    tape,
    unseen,
)
from jaxtribute._src.addons.compat.migrate.calls import Functions
from jaxtribute._src.addons.compat.migrate.documents import HIDDEN
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, nodes, whole_changes
from jaxtribute._src.addons.compat.migrate.naming import Names

_SHOWN = ("tf.distribute", "tf.compat.v1.distribute", "tf.data", "tf.function")
"""Names that are listed though they mean the same."""
_MARK = "# jaxtribute: ok"
"""On a line, says that somebody has looked at what differs there."""

_OF_BYTES = set(dir(bytes)) - set(dir(np.ndarray))
"""Methods of one string, which arrays have not."""


@dataclass(frozen=True, slots=True)
class Report:
    """Findings in a program.

    Attributes:
      findings: the uses, in the order of the text.
      source: the program.
    """

    findings: tuple[Finding, ...]
    source: Source

    def left(self) -> tuple[Finding, ...]:
        """Parts that nobody has looked at and no edit changes."""
        found: list[Finding] = []
        for finding in self.findings:
            done = finding.kind is Kind.SAME or bool(finding.edits)
            if not done and _MARK not in self.source.line(finding.line):
                found.append(finding)
        return tuple(found)

    def rewritten(self) -> str:
        """The program with all mechanical changes made, also those within each other."""
        edits = whole_changes(finding.edits for finding in self.findings)
        if not edits:
            return self.source.text
        # Scanned once more: a change within another one was left out, and is made in the next turn.
        return scan(self.source.apply([*edits, *_needed_imports(self.source, edits)])).rewritten()


def scan(text: str) -> Report:
    """Reads a program and finds its uses of TensorFlow.

    Args:
      text: the program, which is not run.

    Raises:
      SyntaxError: it is not Python, or nested too deeply.
    """
    try:
        source = Source(text)
        names = Names(source.tree)
        found = [
            *imports.find(source),
            *_tapes(source, names),
            *graphs.find(source.tree, names),
            *components.find(source.tree),
            *decisions.find(source.tree, names),
            *graphs.find_fits(source, names),
            *server_optimizers.find(source, names),
            *joins.find(source, names),
            *graphs.find_weights(source, names),
            *graphs.find_ranges(source, names),
            *graphs.find_written(source, names),
            *graphs.find_late_variables(source, names),
            *graphs.find_texts(source.tree, names),
            *graphs.find_unbuilt(source.tree, names),
            *files.find(source, names),
            *precision.find(source, names),
            *keras2_calls.find(source, names),
            *keras2_steps.find(source),
            *environment.find(source),
            *older.find(source.tree, names),
            *arguments.find(source, names),
            *members.find(source.tree, names),
            *shapes.find(source),
            *unseen.find(source.tree, names),
            *_methods(source, names),
            *_uses(source, names),
            *_unread(source),
        ]
    except (RecursionError, MemoryError) as error:
        raise SyntaxError("it is nested too deeply. HINT: split its longest expression.") from error
    # What is rewritten needs no second word about the same name.
    changed = {(finding.line, finding.name) for finding in found if finding.edits}
    found = [one for one in found if one.edits or (one.line, one.name) not in changed]
    return Report(tuple(sorted(set(found), key=lambda finding: (finding.line, finding.column, finding.name))), source)


def _uses(source: Source, names: Names) -> Iterator[Finding]:
    """Names of TensorFlow, each chain of attributes once."""
    told: set[str] = set()
    unreached = unseen.guarded(source.tree, names)
    # Of `tf.data.Dataset.map` only the whole chain counts, not each name in it.
    inner = {id(node.value) for node in nodes(source.tree, ast.Attribute)}
    for node in ast.walk(source.tree):
        if not isinstance(node, (ast.Attribute, ast.Name)) or id(node) in inner or not isinstance(node.ctx, ast.Load):
            continue
        name = names.of(node)
        # Tapes have findings of their own, with the whole block around them.
        if (
            name is None
            or node in unreached
            or name in ("tf", "tf.GradientTape")
            or (isinstance(node, ast.Name) and not _is_import(name))
        ):
            continue
        if names.plain(node):
            problem = keras_problem(name, plain=True)
            if problem:
                yield Finding(*_last(node, name), name.removeprefix("tf."), Kind.ABSENT, problem)
            continue
        entry = entry_of(name)
        older = _older_optimizer(source, node, name) or _long_name(source, node, name)
        if older is not None:
            yield older
            continue
        if entry.kind is not Kind.SAME or name.startswith(_SHOWN):
            # What is remarked on a name that means the same is said at its first use alone.
            advice = "" if entry.kind is Kind.SAME and name in told else entry.note
            told.add(name)
            yield Finding(*_last(node, name), name, entry.kind, advice or entry.unknown)


def _last(node: ast.expr, name: str) -> tuple[int, int]:
    """The place of the last part of a name: a chain of attributes may begin lines earlier."""
    return node.end_lineno or 0, max((node.end_col_offset or 0) - len(name.rpartition(".")[2]), 0) + 1


def _older_optimizer(source: Source, node: ast.Attribute | ast.Name, name: str) -> Finding | None:
    """Keras 2's optimizers, which Keras 3 keeps as names that raise errors."""
    here = name.replace(".legacy.", ".")
    if here == name or not name.startswith("tf.keras.optimizers.legacy.") or keras_problem(here):
        return None
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Attribute) or node.value.attr != "legacy":
        return None
    text = f"{source.of(node.value.value)}.{node.attr}"
    advice = f"the optimizers of Keras 2: write {text}"
    return Finding(node.lineno, node.col_offset + 1, name, Kind.RENAMED, advice, (source.replace(node, text),))


def _long_name(source: Source, node: ast.Attribute | ast.Name, name: str) -> Finding | None:
    """Losses that Keras 3 has by their short names, and classes that this library has in Keras's place."""
    text = others.MOVED.get(name, "")
    if text and (isinstance(node, ast.Attribute) or not text.startswith("tf.")):
        if isinstance(node, ast.Attribute) and text.startswith("tf."):
            text = source.of(node.value) + text.removeprefix("tf")
        return Finding(*_last(node, name), name, Kind.RENAMED, f"write {text}", (source.replace(node, text),))
    module, _, last = name.rpartition(".")
    if module not in ("tf.keras.losses", "tf.keras.metrics") or last not in keras2.SHORT or isinstance(node, ast.Name):
        return None
    _, end = source.span(node)
    edit = Edit(end - len(node.attr), end, keras2.SHORT[last])
    advice = f"Keras 3's name: write {module}.{keras2.SHORT[last]}"
    return Finding(*_last(node, name), name, Kind.RENAMED, advice, (edit,))


def _unread(source: Source) -> Iterator[Finding]:
    """Lines for IPython that mention TensorFlow."""
    for number, line in enumerate(source.text.split("\n"), 1):
        _, hidden, original = line.partition(HIDDEN)
        if hidden and re.search(r"tensorflow|\btf\.|KERAS_BACKEND|TF_USE", original):
            what = original.split()[0]
            advice = "a line for IPython, which is not read and mentions TensorFlow: look at it"
            yield Finding(number, 1, what, Kind.DIFFERENT, advice)


def _is_import(name: str) -> bool:
    """True if a bare name stands for something imported, not for an object that is followed."""
    return name.rpartition(".")[2] in ("function", "GradientTape")


def _methods(source: Source, names: Names) -> Iterator[Finding]:
    """Methods of arrays and strategies that are called otherwise here."""
    strings = _strings(source, names)
    for node in nodes(source.tree, ast.Call):
        if not isinstance(node.func, ast.Attribute):
            continue
        attribute = node.func
        line, column = attribute.end_lineno or 0, (attribute.end_col_offset or 0) - len(attribute.attr) + 1
        # With arguments it is somebody else's method.
        if attribute.attr == "numpy" and not node.args and not node.keywords:
            if node in strings:
                _, end = source.span(attribute)
                text, edits = f"{source.of(attribute.value)}.item()", (Edit(end - len("numpy"), end, "item"),)
            else:
                text, edits = (
                    f"np.asarray({source.of(attribute.value)})",
                    source.wrap(node, attribute.value, "np.asarray("),
                )
            yield Finding(line, column, ".numpy()", Kind.RENAMED, f"arrays are JAX's: write {text}", edits)
        elif attribute.attr in others.METHODS:
            new, why = others.METHODS[attribute.attr]
            # The method's name alone, since the object and the arguments may hold edits of their own.
            _, end = source.span(attribute)
            edit = Edit(end - len(attribute.attr), end, new)
            yield Finding(line, column, f".{attribute.attr}", Kind.RENAMED, f"{why}: write .{new}", (edit,))


def _strings(source: Source, names: Names) -> set[ast.expr]:
    """The expressions whose value is one string: a method of bytes is called on it, or on the name that it gets."""
    functions = Functions(source.tree, names)
    found: set[ast.expr] = set()
    for place in functions.places:
        asked = [one.value for one in functions.own(place) if isinstance(one, ast.Attribute) and one.attr in _OF_BYTES]
        called = {one.id for one in asked if isinstance(one, ast.Name)}
        for node in functions.own(place):
            if isinstance(node, ast.Assign) and called & {getattr(one, "id", "") for one in node.targets}:
                found.add(node.value)
        found.update(asked)
    return found


def _tapes(source: Source, names: Names) -> Iterator[Finding]:
    # A function that takes the place of a block must not hide a name of the program.
    taken = {node.id for node in nodes(source.tree, ast.Name)}
    taken |= {node.name for node in nodes(source.tree, ast.FunctionDef)}
    blocks = tape.find_tapes(source.tree, names)
    changes: dict[ast.With, tape.Rewrite] = {}
    asked = [node for kind in (ast.Attribute, ast.Name) for node in nodes(source.tree, kind)]
    for node in sorted(asked, key=attrgetter("lineno", "col_offset")):
        if names.of(node) != "tf.GradientTape":
            continue
        place = (node.lineno, node.col_offset + 1, "tf.GradientTape", Kind.ABSENT)
        if node not in blocks:
            yield Finding(*place, others.ABSENT["tf.GradientTape"])
            continue
        block = blocks[node].block
        if block not in changes:  # a block of two tapes is one function
            function = next(name for name in _function_names() if name not in taken)
            taken.add(function)
            changes[block] = tape.rewrite(source, blocks[node], function)
        change = changes[block]
        if change.problem:
            write = others.GRADIENT_BY_ARRAY if change.by_array else others.ABSENT["tf.GradientTape"]
            advice = f"{write}. By hand, as {change.problem}"
        else:
            advice = "write\n" + change.text.rstrip()
        yield Finding(*place, advice, change.edits)


def _function_names() -> Iterator[str]:
    yield "compute_loss"
    number = 1
    while True:
        number += 1
        yield f"compute_loss_{number}"


def _needed_imports(source: Source, edits: list[Edit]) -> Iterator[Edit]:
    """Imports of what the edits use and the program does not have."""
    text = "\n".join(edit.text for edit in edits)
    have: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            have.update(alias.asname or alias.name for alias in node.names)
    wanted = [
        ("jd", "jd.", "import jaxtribute as jd\n"),
        ("np", "np.", "import numpy as np\n"),
        ("os", "os.path.", "import os\n"),
        ("jax", "jax.grad(", "import jax\n"),
        ("jnp", "jnp.", "import jax.numpy as jnp\n"),
        ("shards", "shards(", "from jaxtribute.integrations.keras import shards\n"),
    ]
    lines = ""
    for name, use, line in wanted:
        if re.search(rf"\b{re.escape(use)}", text) and name not in have:
            lines += line
    if lines:
        place = source.place(imports.first_line(source.tree), 0)
        yield Edit(place, place, lines)
