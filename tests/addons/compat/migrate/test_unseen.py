"""Uses of TensorFlow that no import line shows."""

import pytest

from jaxtribute._src.addons.compat.migrate.scan import scan

TF = "import jaxtribute.compat.tf as tf\n"


def left(code: str) -> list[str]:
    return [finding.name for finding in scan(TF + code).left()]


@pytest.mark.parametrize("device", ["/gpu:0", "/GPU:1", "GPU:*", "gpu:0", "/device:GPU:0", "/TPU:0"])
@pytest.mark.parametrize("code", ['with tf.device("{}"):\n    pass', 'tf.distribute.MirroredStrategy(["{}"])'])
def test_devices_that_may_not_be_there_are_named(code: str, device: str) -> None:
    assert left(code.format(device)) == [device]


@pytest.mark.parametrize("text", ["/cpu:0", "CPU:0", "gpu", "a gpu:0 b", "gpu:x"])
def test_other_texts_are_not(text: str) -> None:
    assert left(f'f("{text}")') == []


@pytest.mark.parametrize(
    "code",
    [
        'import importlib\nk = importlib.import_module("tensorflow")',
        '__import__("tensorflow.keras")',
        'pytest.importorskip("tensorflow")',
        'exec("import tensorflow as tf")',
        'code = """\nfrom tensorflow import keras\n"""',
        "getattr(tf, name)",
        'getattr(tf.keras.layers, "Hashing")',
        "other = tf\nother.nonsense()",
        "K = tf.keras.backend\nK.get_value(1)",
    ],
)
def test_roundabout_uses_are_left_to_the_reader(code: str) -> None:
    assert len(left(code)) == 1


def test_roundabout_uses_of_what_is_there_are_not() -> None:
    assert left('getattr(tf, "reduce_sum")(x)\nother = tf\nother.reduce_sum(1)\ngetattr(x, name)') == []
    assert left('def f():\n    """Code: import tensorflow as tf."""') == []


@pytest.mark.parametrize(
    "code",
    [
        'a = tf.nn.nonsense(1) if hasattr(tf.nn, "nonsense") else 2',
        'if hasattr(tf, "nonsense"):\n    tf.nonsense()\n    tf.nonsense(1)',
        'if not hasattr(tf, "nonsense"):\n    b = 1\nelse:\n    tf.nonsense()',
        'if hasattr(tf, "function") and hasattr(tf, "nonsense"):\n    tf.nonsense()',
        'b = hasattr(tf, "nonsense") and tf.nonsense()',
        'b = not hasattr(tf, "nonsense") or tf.nonsense()',
        'b = getattr(tf, "nonsense", None)',
        'b = hasattr(tf.keras.layers, "Nonsense")',
    ],
)
def test_names_that_the_program_asks_for_before_are_not(code: str) -> None:
    assert left(code) == []


@pytest.mark.parametrize(
    "code",
    [
        'if hasattr(tf, "nonsense"):\n    b = 1\nelse:\n    tf.other()',
        'if hasattr(tf, "nonsense") or b:\n    tf.other()',
        'if not hasattr(tf, "nonsense") and b:\n    c = 1\nelse:\n    tf.other()',
        'if hasattr(tf, "function"):\n    tf.other()',
        'if hasattr(b, "nonsense"):\n    tf.other()',
        "b = hasattr(tf, name)",
        'b = getattr(tf, "nonsense")',
        'b = hasattr(tf, "nonsense") or tf.other()',
    ],
)
def test_guards_of_something_else_are_no_reason(code: str) -> None:
    assert len(left(code)) == 1


def test_lists_of_shapes_are_made_by_python() -> None:
    assert scan("n = x.shape.as_list()[0]").rewritten() == "n = list(x.shape)[0]"
    assert scan("v.as_list()").findings == ()
