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


def test_lists_of_shapes_are_made_by_python() -> None:
    assert scan("n = x.shape.as_list()[0]").rewritten() == "n = list(x.shape)[0]"
    assert scan("v.as_list()").findings == ()
