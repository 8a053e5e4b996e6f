"""Files of checkpoints, whose names Keras 3 wants to end in `.keras`."""

import pytest

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.scan import scan

IMPORT = "import jaxtribute.compat.tf as tf\nimport os\n"
CALL = "tf.keras.callbacks.ModelCheckpoint"


def rewritten(code: str) -> str:
    return scan(IMPORT + code).rewritten().removeprefix(IMPORT)


@pytest.mark.parametrize(
    ("path", "becomes"),
    [
        ('filepath="ckpt"', 'filepath="ckpt" + ".keras"'),
        ('"dir/ckpt"', '"dir/ckpt" + ".keras"'),
        ('os.path.join(folder, "ckpt")', 'os.path.join(folder, "ckpt") + ".keras"'),
        ("path", 'path + ".keras"'),
        ('"ckpt", save_weights_only=True', '"ckpt" + ".weights.h5", save_weights_only=True'),
        ('"ckpt.h5", save_weights_only=False', '"ckpt.h5" + ".keras", save_weights_only=False'),
    ],
)
def test_a_name_that_keras_3_refuses_is_made_longer(path: str, becomes: str) -> None:
    before = 'path = os.path.join("x", "ckpt_{epoch}")\n'
    assert rewritten(f"{before}c = {CALL}({path}, verbose=1)") == f"{before}c = {CALL}({becomes}, verbose=1)"


@pytest.mark.parametrize(
    "code",
    [
        f'{CALL}("a.keras")',
        f'{CALL}("a.weights.h5", save_weights_only=True)',
        f'p = os.path.join("x", "a.keras")\n{CALL}(filepath=p)',
        f'p = "a.keras"\np = "b"\n{CALL}(p)',
        f"def f(p):\n    return {CALL}(p)",
        f'for p in ("a", "b"):\n    {CALL}(p)',
        f"{CALL}(given())",
        f'{CALL}("a", save_weights_only=flag)',
        f"{CALL}(monitor=1)",
        f"p = q\nq = p\n{CALL}(p)",
        'other.ModelCheckpoint("a")',
    ],
)
def test_a_name_that_is_right_or_not_known_stays(code: str) -> None:
    assert rewritten(code) == code


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        ('model.save("./model/1")', 'model.save("./model/1" + ".keras")'),
        ('self.model.save("m")', 'self.model.save("m" + ".keras")'),
        ('m = tf.keras.Sequential([])\nm.save("m")', 'm = tf.keras.Sequential([])\nm.save("m" + ".keras")'),
        ('p = "m"\nmodel.save(filepath=p)', 'p = "m"\nmodel.save(filepath=p + ".keras")'),
        ('model.save("m/")', 'model.save("m/".rstrip("/") + ".keras")'),
        (
            'model.load_weights(tf.train.latest_checkpoint("d"))',
            """model.load_weights(max(tf.io.gfile.glob(os.path.join("d", '*.weights.h5')), key=os.path.getmtime))""",
        ),
        ('model.save_weights("w")', 'model.save_weights("w" + ".weights.h5")'),
        ('tf.keras.models.save_model(model, "m")', 'tf.keras.models.save_model(model, "m" + ".keras")'),
    ],
)
def test_a_models_file_that_keras_3_refuses_is_made_longer(code: str, becomes: str) -> None:
    assert rewritten(code) == becomes
    assert not scan(IMPORT + becomes).left()


@pytest.mark.parametrize(
    "code",
    [
        "model.save(path)",
        "model.save(sys.argv[1])",
        'tf.keras.models.load_model("./model/1")',
        "tf.keras.models.load_model(path)",
        'model.load_weights("ckpt")',
        'model.save("m.keras", save_format="tf")',
        f"{CALL}(given())",
    ],
)
def test_a_file_that_cannot_be_read_or_renamed_is_left_to_the_reader(code: str) -> None:
    assert rewritten(code) == code
    assert scan(IMPORT + code).left()


@pytest.mark.parametrize(
    "code",
    [
        'model.save("m.keras")',
        'model.save("m.h5")',
        'model.load_weights("w.weights.h5")',
        'tf.keras.models.load_model("m.keras")',
        'checkpoint.save("ckpt")',
        'image.save("a.png")',
        "manager.save()",
        'm = tf.train.Checkpoint()\nm.save("model")',
    ],
)
def test_files_that_are_right_or_others_are_let_alone(code: str) -> None:
    assert not scan(IMPORT + code).left()


def test_the_change_is_made_once() -> None:
    once = rewritten(f'c = {CALL}("a")')
    assert rewritten(once) == once


def test_a_path_put_together_by_a_sum_is_told_of() -> None:
    report = scan(f'{IMPORT}c = {CALL}(folder + "a")')
    (found,) = report.left()
    assert "ends in .keras" in found.advice


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ('model.export("served")', True),
        ('model = tf.keras.Sequential([])\nmodel.export("served")', True),
        ('self.model.export(path, format="onnx")', True),
        ('strategy.run(step)\ntable.export("a.csv")', False),
        ("import plots\nplots.export()", False),
    ],
)
def test_exports_of_models_are_told(code: str, told: bool) -> None:
    found = [one for one in scan(IMPORT + code).findings if one.name == ".export"]
    assert [one.kind for one in found] == [Kind.ABSENT] * told
    assert all("jax.export" in one.advice for one in found)
