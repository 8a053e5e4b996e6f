"""The import lines of TensorFlow, and what takes their place."""

import pytest

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.naming import root_of
from jaxtribute._src.addons.compat.migrate.scan import scan


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import tensorflow as tf", "import jaxtribute.compat.tf as tf"),
        ("import tensorflow", "import jaxtribute.compat.tf as tensorflow"),
        ("import tensorflow.compat.v2 as tf", "import jaxtribute.compat.tf as tf"),
        ("import tensorflow.compat.v1 as tf1", "import jaxtribute.compat.tf.compat.v1 as tf1"),
        ("from tensorflow import data", "from jaxtribute.compat.tf import data"),
        ("from tensorflow import data as d, nest", "from jaxtribute.compat.tf import data as d, nest"),
        ("from tensorflow.data import Dataset", "from jaxtribute.compat.tf.data import Dataset"),
        ("from tensorflow import keras", "from jaxtribute.compat.tf import keras"),
        ("from tensorflow.keras import layers, models", "from jaxtribute.compat.tf.keras import layers, models"),
        ("import tensorflow.keras as K", "import jaxtribute.compat.tf.keras as K"),
        (
            "from tensorflow.distribute import MirroredStrategy",
            "from jaxtribute.compat.tf.distribute import MirroredStrategy",
        ),
    ],
)
def test_is_rewritten(before: str, after: str) -> None:
    report = scan(before + "\n")
    assert report.rewritten() == after + "\n"
    assert {finding.kind for finding in report.findings} == {Kind.RENAMED}
    compile(after, "<import>", "exec")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from tensorflow.keras.layers import Dense, Flatten as F", "from keras.layers import Dense, Flatten as F"),
        (
            "from tensorflow.keras.layers import TextVectorization",
            "from jaxtribute.integrations.keras import TextVectorization",
        ),
    ],
)
def test_names_of_modules_of_keras_are_imported_from_there(before: str, after: str) -> None:
    assert scan(before + "\n").rewritten().endswith(after + "\n")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("import tensorflow as tf, tensorflow.data", "a line of its own"),
        ("import tensorflow.data", "give it a name"),
        ("from tensorflow import estimator", "training loop"),
        ("from tensorflow.keras.layers import Dense, Nonsense", "from keras.layers import Dense"),
        ("from tensorflow.python.framework import ops", "inside TensorFlow"),
        ("from tensorflow import *", "no counterpart"),
        ("import tensorflow.keras.backend as K", "from jaxtribute.compat.tf.keras import backend"),
    ],
)
def test_is_left_with_advice(text: str, advice: str) -> None:
    report = scan(text + "\n")
    assert report.rewritten() == text + "\n"
    assert [finding for finding in report.left() if advice in finding.advice]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os, numpy as np, tensorflow as tf", "import os, numpy as np\nimport jaxtribute.compat.tf as tf"),
        ("import tensorflow as tf, os.path  # both", "import os.path\nimport jaxtribute.compat.tf as tf  # both"),
        (
            "import tensorflow as tf, tensorflow.keras as K",
            "import jaxtribute.compat.tf as tf\nimport jaxtribute.compat.tf.keras as K",
        ),
        (
            "def f():\n    import os, tensorflow as tf",
            "def f():\n    import os\n    import jaxtribute.compat.tf as tf",
        ),
        ("import sys; import os, tensorflow as tf", "import sys; import os; import jaxtribute.compat.tf as tf"),
        ("if x: import os, tensorflow", "if x: import os; import jaxtribute.compat.tf as tensorflow"),
        ("if x:\n\timport os, tensorflow as tf", "if x:\n\timport os\n\timport jaxtribute.compat.tf as tf"),
        ("import os, tensorflow as tf; tf.add", "import os\nimport jaxtribute.compat.tf as tf; tf.add"),
    ],
)
def test_a_line_of_several_is_taken_apart(before: str, after: str) -> None:
    report = scan(before + "\n")
    assert report.rewritten() == after + "\n"
    assert not scan(report.rewritten()).left()
    compile(after, "<import>", "exec")


def test_names_of_two_modules_behind_others_on_a_line_stay_there() -> None:
    after = scan("import os; from tensorflow.keras.layers import Dense, TextVectorization\n").rewritten()
    names = "from keras.layers import Dense; from jaxtribute.integrations.keras import TextVectorization"
    assert f"import os; {names}\n" in after


def test_a_line_with_keras_and_tensorflow_is_taken_apart() -> None:
    after = scan("import keras, tensorflow as tf\n").rewritten()
    assert "import keras\nimport jaxtribute.compat.tf as tf\n" in after
    assert not scan(after).left()


def test_a_line_with_one_absent_name_is_left_whole() -> None:
    report = scan("from tensorflow import data, estimator\n")
    assert [finding.kind for finding in report.left()] == [Kind.RENAMED, Kind.ABSENT]


@pytest.mark.parametrize(
    "text", ["import numpy as np", "from . import tensorflow", "import tensorflow_model_optimization"]
)
def test_other_imports_are_let_alone(text: str) -> None:
    assert scan(text + "\n").findings == ()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tensorflow", "tf"),
        ("tensorflow.data", "tf.data"),
        ("tensorflow.compat.v1", "tf.compat.v1"),
        ("jaxtribute.compat.tf.nn", "tf.nn"),
        ("jaxtribute.compat.v1", "tf.compat.v1.distribute"),
        ("tensorflow_probability", None),
        ("numpy", None),
    ],
)
def test_roots(module: str, name: str | None) -> None:
    assert root_of(module) == name
