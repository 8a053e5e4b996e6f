"""Finds the code blocks in copies of TensorFlow's documentation, of which some have lost their line breaks.

The texts are read where they are and never copied. Four shapes occur: fenced blocks of Markdown, plain blocks with
their line breaks, blocks squeezed into one line with or without blanks between the statements, and blocks whose lines
have become items of a list.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What a statement of the documents begins with. A squeezed block is cut wherever one of these stands.
_NAMES = (
    "array_value|batch_size|d|dataset|dist_dataset|distributed_values|global_batch_size|iterator|local_result"
    "|mirrored_variable|multiple_values|numpy_input|per_replica_result|regular_variable|replica_results|result"
    "|single_tensor|strategy|tensor_input|total|v|worker_devices"
)
_BEGIN = re.compile(
    rf"@tf\.function|def \w+\(|for \w+ in |with strategy|if strategy|elif strategy|return |print\((?=result|v)"
    rf"|result\.append\(|result \+= |i = tf\.|(?:{_NAMES}) = |tf\.enable_eager_execution\(\)|os\.environ\["
    rf"|strategy\.experimental_local_results\((?=per_replica_result\)\[)|total\.device"
)
# What a whole block begins with, in a text without fences.
_FIRST = re.compile(
    r"tf\.enable_eager_execution\(\)|os\.environ\[|global_batch_size = |numpy_input = |def (?:input|dataset)_fn\("
    r"|strategy = |strategy\.reduce\(|- Constant tensor input|- DistributedValues input|- Use - tf\.distribute"
)
_INSIDE = re.compile(r"(?<=The )os\.environ\[|(?<=values\.)strategy = ")
_PROSE = re.compile(r"[A-Z|-]\S* .*[a-z.:]|\w+ Returns |Methods|\s*\d+\. ")
_VALUE = re.compile(r"\[?(?:PerReplica|MirroredVariable):\{|<tf\.(?:Tensor|Variable)")
_COMMENT_OUTPUT = re.compile(r"/job:\S+|\d+$|Prints .*")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        seed: The number of the text, such as `S0`.
        text: What stands there.
    """

    seed: str
    text: str

    def source(self) -> str:
        """The block as Python, with what it states to be printed in comments that begin with `#=`."""
        if "\n" in self.text.strip():
            return _with_outputs(_without_prompts(self.text))
        return _with_outputs(_laid_out(self.text))


def read_blocks(folder: Path) -> Iterator[Block]:
    """All code blocks of the texts in a folder, in order."""
    for number, path in enumerate(sorted(folder.glob("*.txt"))):
        text = path.read_text()
        found = _fenced(text) if "\n```" in text else _plain(text)
        yield from (Block(f"S{number}", block) for block in found)


def _fenced(text: str) -> Iterator[str]:
    yield from re.findall(r"^```(?:python)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def _plain(text: str) -> Iterator[str]:
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if inside := _INSIDE.search(line):
            line = line[inside.start() :].partition(" For more information")[0]
        if not _FIRST.match(line):
            continue
        block = [line]
        if not _is_squeezed(line):
            while number < len(lines) and not _PROSE.match(lines[number]):
                block.append(lines[number])
                number += 1
        yield "\n".join(block).strip()


def _is_squeezed(line: str) -> bool:
    """Whether a line holds a whole block: more than one statement, or a definition with its body."""
    code = line.partition("#")[0] if line.startswith("strategy = tf.distribute.CentralStorage") else line
    return len(_BEGIN.findall(code)) > 1 or line.startswith("strategy.reduce(")


def _without_prompts(text: str) -> str:
    if ">>> " not in text:
        return text
    return "\n".join(re.sub(r"^(?:>>>|\.\.\.) ?", "", line) for line in text.split("\n"))


def _with_outputs(text: str) -> str:
    """Turns what is stated to be printed into comments of one line."""
    text = re.sub(r"\n?# (/job:\S+)", r"  #= \1", text)
    text = re.sub(r"  # (\d+)$", r"  #= \1", text, flags=re.MULTILINE)
    text = re.sub(r"  # Prints (.*)$", r"  #= \1", text, flags=re.MULTILINE)
    result, rest = "", text
    while found := re.search(r"^(?:PerReplica|MirroredVariable|<tf\.|\[PerReplica|\()", rest, re.MULTILINE):
        end = found.start() + value_length(rest[found.start() :])
        value = " ".join(rest[found.start() : end].split())
        result += rest[: found.start()] + f"#= {value}\n"
        rest = rest[end:]
    return result + rest


def value_length(text: str) -> int:
    """How far a printed value reaches: to the bracket that closes its first one."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "<[{(") - (character in ">]})")
        if depth == 0 and character in ">]})":
            return place + 1
    return len(text)


def _laid_out(text: str) -> str:
    """Gives a squeezed block its lines and its indentation back."""
    text = re.sub(
        r"^- [A-Z][^.]*?(?:input\.|Use - tf\.distribute\.ReplicaContextto allreduce values\.) ?-? ?", "", text
    )
    text = re.sub(r"^- Use - \S+ allreduce values\.-? ?", "", text)
    text = re.sub(r"\(\s*- ", "(", text)
    lines: list[str] = []
    open_blocks: list[str] = []
    for statement, output in _statements(text):
        header = statement.partition(" ")[0].rstrip(":")
        if header == "def" and open_blocks == ["with"]:
            open_blocks.clear()
        if header == "elif":
            open_blocks.pop()
        lines.append("  " * len(open_blocks) + statement)
        if output:
            lines.append(f"#= {output}" if not output.startswith("#") else f"#={output[1:]}")
        if output and _VALUE.match(output):
            open_blocks.clear()
        elif statement.endswith(":"):
            open_blocks.append(header)
            if header in ("if", "elif"):
                lines.append("  " * len(open_blocks) + "pass")
        elif open_blocks and (header == "return" or open_blocks[-1] == "for"):
            open_blocks.pop()
    return "\n".join(lines)


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """The statements of a squeezed block, each with what is stated to be printed after it."""
    for start, end in _pieces(text):
        code, output = text[start:end].strip(), ""
        if value := _VALUE.search(code):
            code, output = code[: value.start()].rstrip("- "), code[value.start() :]
            length = value_length(output)
            output = " ".join(re.sub(r"(?<=[{,])- |- (?=})", " ", output[:length]).split())
        if "#" in code:
            code, _, comment = code.partition("#")
            if said := _COMMENT_OUTPUT.match(comment.strip()):
                output = "# " + said[0]
        yield from _split_off_name(_body(code), output)


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    starts = [0]
    place = 0
    while found := _BEGIN.search(text, place):
        starts += [found.start()] if found.start() else []
        place = found.end()
    return zip(starts, [*starts[1:], len(text)], strict=True)


def _body(code: str) -> str:
    return re.sub(r"\s*-?\s*$", "", re.sub(r"\s*\.\.\.$", "", code.strip()))


def _split_off_name(code: str, output: str) -> Iterator[tuple[str, str]]:
    """A name at the end of an assignment whose value is shown: `x = f(y) x` or, squeezed harder, `x = f(y)x`."""
    shown = re.fullmatch(r"((\w+) = .*\))(?:- | ?)\2", code) if output else None
    if shown is not None:
        yield shown[1], ""
        yield shown[2], output
    else:
        yield code, output
