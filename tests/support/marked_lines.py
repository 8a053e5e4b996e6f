"""Lines of a test that end with a mark, `# at: name`, by which a report is to name them."""

from pathlib import Path


def line_of(file: str, mark: str) -> int:
    """The number of the line of a file that ends with a mark."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith(f"# at: {mark}"))
