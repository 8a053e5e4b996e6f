"""What a program uses of TensorFlow is found, with its place, and said to be what it is."""

import textwrap

import pytest

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.findings import Finding
from jaxtribute._src.addons.compat.migrate.scan import Report, scan


def report(code: str, imports: str = "import tensorflow as tf\n") -> Report:
    return scan(imports + textwrap.dedent(code))


def findings(code: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in report(code).findings}


def kinds(code: str) -> dict[str, Kind]:
    return {name: finding.kind for name, finding in findings(code).items() if name != "tensorflow"}


class TestUses:
    def test_strategies_are_the_same(self) -> None:
        assert kinds("s = tf.distribute.MirroredStrategy()") == {"tf.distribute.MirroredStrategy": Kind.SAME}

    def test_methods_of_a_strategy_are_followed(self) -> None:
        code = "s = tf.distribute.MirroredStrategy()\ns.run(f)\ns.extended.worker_devices"
        assert "tf.distribute.Strategy.run" in kinds(code)
        assert "tf.distribute.StrategyExtended.worker_devices" in kinds(code)

    def test_methods_of_a_replica_context_are_followed(self) -> None:
        assert "tf.distribute.ReplicaContext.all_reduce" in kinds(
            "tf.distribute.get_replica_context().all_reduce('SUM', x)"
        )

    def test_datasets_are_followed_through_their_methods(self) -> None:
        found = kinds("d = tf.data.Dataset.range(3).shuffle(2)\nd = d.batch(2)\nd.map(f)")
        assert found["tf.data.Dataset.range"] is Kind.SAME
        assert found["tf.data.Dataset.shuffle"] is Kind.SAME
        assert found["tf.data.Dataset.map"] is Kind.SAME

    def test_what_a_dataset_is_turned_into_is_not(self) -> None:
        assert "tf.data.Dataset.foo" not in kinds("tf.data.Dataset.range(3).as_numpy_iterator().foo()")

    def test_names_that_compat_tf_has_are_not_listed(self) -> None:
        assert kinds("tf.reduce_sum(tf.constant([1]))") == {}

    def test_names_that_it_has_not_are_absent(self) -> None:
        finding = findings("tf.estimator.Estimator()")["tf.estimator.Estimator"]
        assert finding.kind is Kind.ABSENT
        assert "training loop" in finding.advice

    def test_names_of_keras_are_the_same_and_keras_is_not_loaded(self) -> None:
        assert kinds("tf.keras.Model()") == {}

    def test_names_that_nobody_knows_are_absent_with_general_advice(self) -> None:
        assert "jax.numpy" in findings("tf.nonsense(1)")["tf.nonsense"].advice

    def test_absent_in_the_dataset(self) -> None:
        assert (
            kinds("tf.data.Dataset.range(3).rejection_resample(f)")["tf.data.Dataset.rejection_resample"] is Kind.ABSENT
        )

    def test_a_remark_is_made_once(self) -> None:
        notes = [f.advice for f in report("@tf.function\ndef f(): pass\n@tf.function\ndef g(): pass").findings]
        assert [bool(note) for note in notes if "renamed" not in note and "write" not in note] == [True, False]

    def test_other_objects_are_let_alone(self) -> None:
        assert kinds("x = np.zeros(3)\nx.shuffle()\nstrategy.run(f)") == {}

    def test_places_are_those_of_the_text(self) -> None:
        finding = findings("\n\nx = tf.data.Dataset.range(1)")["tf.data.Dataset.range"]
        assert (finding.line, finding.column) == (4, 21)

    def test_places_in_chains_are_those_of_the_method(self) -> None:
        finding = findings("x = (\n  tf.data.Dataset.range(1)\n  .shuffle(3)\n)")["tf.data.Dataset.shuffle"]
        assert (finding.line, finding.column) == (4, 4)

    def test_findings_are_in_the_order_of_the_text(self) -> None:
        lines = [finding.line for finding in report("tf.keras\ntf.data.Dataset\ntf.function\n").findings]
        assert lines == sorted(lines)


class TestMethods:
    def test_numpy_is_renamed(self) -> None:
        assert "x = np.asarray(loss)" in report("x = loss.numpy()").rewritten()

    def test_numpy_is_imported_if_it_is_not(self) -> None:
        assert report("x = loss.numpy()").rewritten().count("import numpy as np") == 1
        assert report("import numpy as np\nx = loss.numpy()").rewritten().count("import numpy as np") == 1

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("x = t.numpy().decode()", "x = t.item().decode()"),
            ("x = [t.numpy().decode('utf-8') for t in texts]", "x = [t.item().decode('utf-8') for t in texts]"),
            ("x = tf.strings.lower(t).numpy().split()[0]", "x = tf.strings.lower(t).item().split()[0]"),
            ("x = t.numpy()\ny = x.decode()", "x = t.item()\ny = x.decode()"),
            ("def f():\n    x = t.numpy()\n    return x.strip()", "    x = t.item()\n    return x.strip()"),
            ("x = t.numpy()\ndef f(x): return x.strip()", "x = np.asarray(t)\ndef f(x): return x.strip()"),
            ("x = t.numpy()[0].decode()", "x = np.asarray(t)[0].decode()"),
            ("x = t.numpy().astype(int)", "x = np.asarray(t).astype(int)"),
        ],
    )
    def test_numpy_of_one_string_gives_its_bytes(self, code: str, expected: str) -> None:
        after = report(code).rewritten()
        assert expected in after
        assert not scan(after).left()

    def test_a_method_with_arguments_is_another_one(self) -> None:
        assert kinds("x = loss.numpy(3)") == {}

    def test_an_object_whose_call_is_compiled_has_its_own_members(self) -> None:
        code = (
            "class Net(tf.Module):\n    @tf.function\n    def __call__(self, x): return x\nnet = Net()\n"
            "v = net.trainable_variables\nw = net.__call__.trainable_variables\n"
        )
        assert [one.line for one in report(code, imports="import tensorflow as tf\n").left()] == [7]

    def test_the_old_name_of_run(self) -> None:
        assert "strategy.run(f)" in report("strategy.experimental_run_v2(f)").rewritten()


class TestLeft:
    def test_same_is_not_left(self) -> None:
        assert report("s = tf.distribute.MirroredStrategy()").left() == ()

    def test_what_can_be_written_is_not_left(self) -> None:
        assert report("x = y.numpy()").left() == ()

    @pytest.mark.parametrize("code", ["tf.estimator.Estimator()", "tf.function(f)\nimport tensorflow_hub"])
    def test_absent_and_different_are_left(self, code: str) -> None:
        assert len(report(code).left()) == 1

    def test_until_somebody_has_looked_at_the_line(self) -> None:
        assert report("tf.estimator.Estimator()  # jaxtribute: ok").left() == ()

    def test_a_program_that_was_migrated_has_nothing_left(self) -> None:
        assert report("s = tf.distribute.MirroredStrategy()", "import jaxtribute.compat.tf as tf\n").left() == ()


class TestRewriting:
    def test_nothing_is_changed_where_nothing_is_used(self) -> None:
        text = "import os\n\nprint(os.name)  # a comment\n"
        assert scan(text).rewritten() == text

    def test_comments_and_layout_stay(self) -> None:
        after = report("x = [  # why\n    1,\n]\ny = loss . numpy ( )\n").rewritten()
        assert "x = [  # why\n    1,\n]\n" in after
        assert "y = np.asarray(loss)" in after

    def test_characters_of_several_bytes_do_not_shift_the_edits(self) -> None:
        after = report("name = 'café 数'; y = loss.numpy(); z = 'é'").rewritten()
        assert "name = 'café 数'; y = np.asarray(loss); z = 'é'" in after

    def test_imports_come_after_those_from_the_future(self) -> None:
        text = '"""Says."""\nfrom __future__ import annotations\nimport tensorflow as tf\nx = y.numpy()\n'
        assert scan(text).rewritten().split("\n")[:3] == [
            '"""Says."""',
            "from __future__ import annotations",
            "import numpy as np",
        ]

    def test_line_ends_of_windows_stay(self) -> None:
        after = scan("import tensorflow as tf\r\nx = 1\r\n").rewritten()
        assert after == "import jaxtribute.compat.tf as tf\r\nx = 1\r\n"

    def test_changes_within_each_other_are_all_made(self) -> None:
        code = """
        with tf.GradientTape() as tape:
            loss = f(x.numpy().numpy())
        grads = tape.gradient(loss, v)
        """
        after = report(code).rewritten()
        assert "loss = f(np.asarray(np.asarray(x)))" in after
        assert "jd.value_and_grad" in after

    def test_a_second_time_changes_nothing(self) -> None:
        once = report("x = y.numpy()\n").rewritten()
        assert scan(once).rewritten() == once

    def test_what_is_not_python_is_an_error(self) -> None:
        with pytest.raises(SyntaxError):
            scan("def (")


class TestKeras:
    def test_names_that_keras_3_does_not_have_are_absent(self) -> None:
        found = findings(
            "tf.keras.layers.experimental.preprocessing.Rescaling(1.0)\ntf.keras.wat.x\ntf.keras.Model.fit"
        )
        assert {name for name in found if name != "tensorflow"} == {
            "tf.keras.layers.experimental.preprocessing.Rescaling",
            "tf.keras.wat.x",
        }
        assert found["tf.keras.layers.experimental.preprocessing.Rescaling"].advice.endswith(
            "tf.keras.layers.Rescaling"
        )

    def test_names_that_it_keeps_for_tensorflow_are_there(self) -> None:
        assert kinds("tf.keras.losses.Reduction.NONE\ntf.keras.losses.mse\ntf.keras.saving") == {}

    def test_names_that_raise_when_they_are_used_are_absent(self) -> None:
        assert (
            "write tf.keras.optimizers.SGD"
            in findings("tf.keras.optimizers.legacy.SGD()")["tf.keras.optimizers.legacy.SGD"].advice
        )

    def test_the_version_is_known(self) -> None:
        assert kinds("print(tf.__version__)") == {}

    def test_old_optimizers_are_those_without_legacy(self) -> None:
        text = report("o = tf.keras.optimizers.legacy.SGD(0.1)").rewritten()
        assert text.endswith("o = tf.keras.optimizers.SGD(0.1)")

    def test_other_names_of_keras_are_known_and_checked(self) -> None:
        code = "tf.metrics.Mean()\ntf.losses.MeanSquaredError()\ntf.optimizers.Nonsense()\n"
        assert {name: kind for name, kind in kinds(code).items() if "tf." in name} == {
            "tf.optimizers.Nonsense": Kind.ABSENT
        }

    def test_a_dataset_creator_is_ours(self) -> None:
        after = report("d = tf.keras.utils.experimental.DatasetCreator(f)").rewritten()
        assert "d = jd.experimental.DatasetCreator(f)" in after
        assert "import jaxtribute as jd\n" in after
        told = report("from tensorflow.keras.utils.experimental import DatasetCreator", imports="").left()
        assert [one.advice for one in told] == ["write `jd.experimental.DatasetCreator(dataset_fn)`"]

    @pytest.mark.parametrize("module", ["experimental", "utils"])
    def test_a_sidecar_evaluator_has_a_counterpart(self, module: str) -> None:
        name = f"tf.keras.{module}.SidecarEvaluator"
        assert "jd.experimental.SidecarEvaluator(checkpoint, evaluate, directory)" in findings(f"{name}()")[name].advice

    @pytest.mark.parametrize("name", ["layers.Hashing", "layers.HashedCrossing"])
    def test_what_needs_tensorflow_is_absent(self, name: str) -> None:
        assert "TensorFlow" in findings(f"tf.keras.{name}()")[f"tf.keras.{name}"].advice


class TestOtherPackages:
    @pytest.mark.parametrize(
        "line", ["import tensorflow_datasets as tfds", "from tensorflow_hub import KerasLayer", "import tf_keras"]
    )
    def test_those_that_need_tensorflow_are_absent(self, line: str) -> None:
        (found,) = report(line, imports="").left()
        assert (found.kind, found.line) == (Kind.ABSENT, 1)

    def test_those_that_run_on_jax_are_not(self) -> None:
        assert not report("from tensorflow_probability.substrates.jax import distributions", imports="").findings

    def test_saved_models_are_named_as_such(self) -> None:
        found = findings("tf.saved_model.save(model, path)")["tf.saved_model.save"]
        assert found.kind is Kind.ABSENT
        assert "SavedModel" in found.advice
