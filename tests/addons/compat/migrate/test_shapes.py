"""Members of TensorFlow's shapes and types, which tuples and NumPy's types do not have."""

from __future__ import annotations

import pytest

from jaxtribute._src.addons.compat.migrate.scan import scan

HEAD = "import numpy as np\nimport jaxtribute.compat.tf as tf\n"


def rewritten(code: str) -> str:
    return scan(HEAD + code).rewritten().removeprefix(HEAD)


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("v.shape.rank", "len(v.shape)"),
        ("v.shape.ndims + 1", "len(v.shape) + 1"),
        ("f(x).shape.num_elements()", "int(np.prod(f(x).shape))"),
        ("x.shape.as_list()[0]", "list(x.shape)[0]"),
        ("x.get_shape()", "x.shape"),
        ("x.get_shape().as_list()", "list(x.shape)"),
        ("x.get_shape().ndims", "len(x.shape)"),
        ("v.shape == [2, 2]", "v.shape == (2, 2)"),
        ("v.shape != [2]", "v.shape != (2,)"),
        ("v.shape != [2, ]", "v.shape != (2, )"),
        ("[] == x.get_shape()", "() == x.shape"),
        # Somebody else's.
        ("tree.rank", "tree.rank"),
        ("x.get_shape(1)", "x.get_shape(1)"),
        ("values == [2]", "values == [2]"),
        ("v.shape[0] == [2]", "v.shape[0] == [2]"),
    ],
)
def test_what_is_written(code: str, new: str) -> None:
    assert rewritten(code) == new


@pytest.mark.parametrize("code", ["v.dtype.is_floating", "v.dtype.as_numpy_dtype", "v.shape.is_fully_defined()"])
def test_what_is_named(code: str) -> None:
    assert any("write" in finding.advice for finding in scan(HEAD + code).left())


def test_what_is_written_means_the_same() -> None:
    asked = "x.shape.rank, x.shape.num_elements(), x.shape == [2, 3], x.get_shape().as_list()"
    code = f"x = tf.ones((2, 3))\nfound = ({asked})\n"
    names: dict[str, object] = {}
    exec(HEAD + rewritten(code), names)
    assert names["found"] == (2, 6, True, [2, 3])
