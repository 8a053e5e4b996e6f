"""Whatever chooses Keras's backend is told of, in every spelling: no program that runs on TensorFlow is all clear."""

import pytest

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.scan import Report, scan

OS = "import os\n"


def left(code: str) -> list[str]:
    return [finding.name for finding in scan(code).left()]


def report(code: str) -> Report:
    return scan(OS + code)


WRITTEN = [
    'os.environ["KERAS_BACKEND"] = {}',
    "environ['KERAS_BACKEND'] = {}",
    'os.environ.setdefault("KERAS_BACKEND", {})',
    'os.putenv("KERAS_BACKEND", {})',
    'os.environ.update({{"KERAS_BACKEND": {}}})',
    "os.environ.update(KERAS_BACKEND={})",
    'os.environ |= {{"KERAS_BACKEND": {}}}',
    'key = "KERAS_" + "BACKEND"\nos.environ[key] = {}',
    'subprocess.run(c, env={{**os.environ, "KERAS_BACKEND": {}}})',
    "subprocess.run(c, env=dict(os.environ, KERAS_BACKEND={}))",
    'monkeypatch.setenv("KERAS_BACKEND", {})',
    'if x:\n    os.environ["KERAS_BACKEND"] = {}',
    "keras.config.set_backend({})",
]


@pytest.mark.parametrize("code", WRITTEN)
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_another_backend_is_written_as_jax(code: str, backend: str) -> None:
    (found,) = [f for f in report(code.format(f'"{backend}"')).findings if f.kind is not Kind.SAME]
    assert found.kind is Kind.RENAMED
    assert '"jax"' in found.advice
    assert report(code.format(f'"{backend}"')).rewritten() == OS + code.format('"jax"')
    assert left(OS + code.format('"jax"')) == []


@pytest.mark.parametrize(
    "code",
    [
        'os.environ["KERAS_BACKEND"] = backend()',
        'os.environ["KERAS_BACKEND"] = "tensor" + "flow"',
        'name = "tensorflow"\nos.environ["KERAS_BACKEND"] = name',
        'os.environ["KERAS_BACKEND"] += "x"',
        'os.environ["KERAS_BACKEND"], x = "tensorflow", 1',
        'os.environ["KERAS_BACKEND"]: str = "tensorflow"',
        'del os.environ["KERAS_BACKEND"]',
        'os.environ.pop("KERAS_BACKEND")',
        'os.system("KERAS_BACKEND=tensorflow python other.py")',
        'os.environb[b"KERAS_BACKEND"] = b"tensorflow"',
        'json.dump({"backend": "tensorflow"}, open("/root/.keras/keras.json", "w"))',
        "for name in ('KERAS_BACKEND',):\n    os.environ[name] = 'tensorflow'",
        "keras.config.set_backend(given)",
        "def choose(name):\n    os.environ[name] = 'tensorflow'\nchoose('KERAS_BACKEND')",
    ],
)
def test_what_cannot_be_changed_or_read_is_left_to_the_reader(code: str) -> None:
    assert left(OS + code)
    assert report(code).rewritten() == OS + code


@pytest.mark.parametrize(
    "code",
    [
        'x = os.environ.get("KERAS_BACKEND", "tensorflow")',
        'if os.environ["KERAS_BACKEND"] == "tensorflow":\n    pass',
        'assert "KERAS_BACKEND" in os.environ',
        'print("set KERAS_BACKEND")',
        'raise ValueError("KERAS_BACKEND is wrong")',
        '"""Set KERAS_BACKEND."""',
        'os.environ["OTHER"] = "tensorflow"',
    ],
)
def test_reading_and_telling_of_it_is_let_alone(code: str) -> None:
    assert left(OS + code) == []


@pytest.mark.parametrize("imported", ["import keras", "from keras import layers", "import keras.ops as ops"])
def test_an_import_of_keras_before_the_backend_is_chosen(imported: str) -> None:
    """Without a word Keras takes TensorFlow."""
    (found,) = scan(imported).findings
    assert found.name == "import of keras"
    changed = scan(imported).rewritten()
    assert changed == f'import os\n\nos.environ["KERAS_BACKEND"] = "jax"\n\n{imported}'
    assert left(changed) == []
    # Other processes' environments, and settings that come too late, choose nothing here.
    code = f'{OS}os.putenv("KERAS_BACKEND", "jax")\n{imported}'
    assert [finding.name for finding in scan(code).findings] == ["import of keras"]
    assert left(f'{OS}{imported}\nos.environ["KERAS_BACKEND"] = "jax"') == ["import of keras"]


def test_a_guide_that_chooses_tensorflow_is_rewritten_whole() -> None:
    code = 'import os\nos.environ["KERAS_BACKEND"] = "tensorflow"\nimport tensorflow as tf\nimport keras\n'
    assert len(left(code)) == 0 < len(scan(code).findings)
    assert scan(code).rewritten() == (
        'import os\nos.environ["KERAS_BACKEND"] = "jax"\nimport jaxtribute.compat.tf as tf\nimport keras\n'
    )


@pytest.mark.parametrize("name", ["TF_USE_LEGACY_KERAS", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_DETERMINISTIC_OPS"])
def test_what_tensorflow_alone_reads_is_told_of(name: str) -> None:
    for code in (f'os.environ["{name}"] = "1"', f'os.environ.setdefault("{name}", "1")', f"env = dict({name}='1')"):
        assert left(OS + code) == [name]
    assert left(f'{OS}os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"') == []
