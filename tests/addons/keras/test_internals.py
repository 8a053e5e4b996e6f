"""The facts about Keras's insides that the library relies on, one test each, for both of its JAX trainers.

A release of Keras that changes one of them fails here; `inside` and `patches` say where it matters.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.keras import internals, patches
from keras_models import X, Y, classifier, keras


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_every_function_that_is_replaced_is_there() -> None:
    for row in patches.PATCHES:
        for where, name in row.targets():
            assert callable(getattr(where, name)), (where, name)


def test_a_function_that_is_gone_is_named() -> None:
    row = patches.Patch(keras.Model, ("gone or lost",), lambda original: original(), "it is needed")
    with pytest.raises(jd.errors.ConfigError, match=r"has no gone or lost in Model.*it is needed.*HINT"):
        row.apply()


def test_the_first_of_two_names_is_taken() -> None:
    class One:
        def old(self) -> str:
            return "old"

    class Two(One):
        def new(self) -> str:
            return "new"

    row = patches.Patch(Two, ("new or old",), lambda original, self: original(self) + "!", "")
    row.apply()
    assert (Two().new(), Two().old()) == ("new!", "old")
    patches.Patch(Two, ("newer or old",), lambda original, self: original(self) + "?", "").apply()
    assert One().old() == "old?"  # where it is defined


def test_what_is_replaced_keeps_its_signature() -> None:
    assert "batch_size" in parameters(keras.Model.fit)
    assert "synchronized" in inspect.getfullargspec(keras.layers.BatchNormalization.__init__).kwonlyargs + (
        inspect.getfullargspec(keras.layers.BatchNormalization.__init__).args
    )


def test_a_variable_keeps_its_array_in_one_attribute() -> None:
    variable = keras.Variable(np.zeros(2))
    variable.assign([1.0, 2.0])
    assert np.asarray(vars(variable)["_value"]).tolist() == [1, 2]
    internals.set_path(variable, "a/b")
    assert variable.path == "a/b"


def test_a_scope_without_state_keeps_what_variables_get() -> None:
    variable = keras.Variable(np.zeros(2))
    other = keras.Variable(np.zeros(2))
    with keras.StatelessScope(state_mapping=[(variable, np.ones(2))]) as scope:
        assert [internals.is_lost(one) for one in (variable, other)] == [False, True]
        assert internals.in_stateless_scope()
        assert np.asarray(variable.value).tolist() == [1, 1]
        variable.assign([3.0, 4.0])
    assert np.asarray(scope.get_current_value(variable)).tolist() == [3, 4]
    assert np.asarray(variable.value).tolist() == [0, 0]
    assert not internals.in_stateless_scope()


def test_a_layer_keeps_its_losses_in_three_attributes() -> None:
    layer = keras.layers.Layer()
    layer.add_loss(keras.ops.ones(()))
    assert [vars(layer)[name] for name in ("_losses", "_losses_override")] == [layer.losses, []]
    with keras.StatelessScope(collect_losses=True) as scope:
        layer.add_loss(keras.ops.zeros(()))
        assert layer._loss_ids == {id(loss) for loss in scope.losses}


def test_a_layer_keeps_its_own_variables_in_two_attributes() -> None:
    outer = keras.layers.SpectralNormalization(keras.layers.Dense(2))
    outer.build((None, 3))
    assert [one.name for one in internals.own_variables(outer, kept=True)] == ["kernel", "vector_u"]
    inner = outer.layer
    inner.trainable = False
    assert [one.name for one in internals.own_variables(inner, kept=False)] == ["kernel", "bias"]


def test_variables_of_optimizers_are_made_in_their_scope_of_names() -> None:
    seen: list[bool] = []

    def noting(cls: type[Any], *_: Any, **__: Any) -> Any:
        seen.append(internals.made_by_optimizer())
        return object.__new__(cls)

    optimizer = keras.optimizers.SGD(momentum=0.9)
    make = keras.Variable.__new__
    try:
        keras.Variable.__new__ = staticmethod(noting)
        keras.Variable(np.zeros(2))
        optimizer.build([keras.Variable(np.zeros(2))])
    finally:
        keras.Variable.__new__ = staticmethod(make)
    assert seen[:2] == [False, False]
    assert any(seen[2:])


def test_states_of_the_trainer_come_in_this_order() -> None:
    model = classifier()
    model.build((None, 8))
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    parts = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    assert [len(one) for one in state] == [len(part) for part in parts]
    names = parameters(internals.JAXTrainer._get_jax_state)
    assert names[1:5] == [f"{kind}_variables" for kind in ("trainable", "non_trainable", "optimizer", "metrics")]


def test_a_step_function_takes_a_state_and_an_iterator_of_batches() -> None:
    model = classifier()
    calls: list[int] = []

    def step(state: Any, iterator: Any) -> tuple[dict[str, Any], Any]:
        x, y = next(iterator)[:2]
        calls.append(len(x))
        assert len(x) == len(y)
        return {"loss": np.float32(0)}, state

    model.make_train_function = lambda force=False: setattr(model, "train_function", step)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert calls == [8, 8]


def test_the_trainers_own_methods_take_what_a_replica_gives() -> None:
    names = parameters(internals.JAXTrainer.compute_loss_and_updates)
    assert names[1:7] == [
        "trainable_variables",
        "non_trainable_variables",
        "metrics_variables",
        "x",
        "y",
        "sample_weight",
    ]
    assert {"training", "optimizer_variables"} <= set(names)
    assert parameters(internals.JAXTrainer.train_step)[1:] == ["state", "data"]
    assert parameters(internals.JAXTrainer.test_step)[1:] == ["state", "data"]
    assert parameters(internals.JAXTrainer.predict_step)[1:] == ["state", "data"]


def test_metrics_are_updated_without_state() -> None:
    model = classifier()
    model.fit(X, Y, verbose=0)
    before = [variable.value for variable in model.metrics_variables]
    logs, after = internals.updated_metrics(model, before, np.float32(2), X[:2], Y[:2], np.zeros((2, 3)), None)
    assert {"loss", "accuracy"} <= logs.keys()
    assert len(after) == len(before)
    assert not internals.has_own_step(model, "train")
    assert internals.loss_tracker(model).name == "loss"
    assert internals.loss_tracker(keras.Sequential([])) is None


def test_a_model_says_what_it_must_see_first() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    assert internals.is_unbuilt(model)
    model.fit(X, X[:, :1], verbose=0)
    assert not internals.is_unbuilt(model)


def test_an_epoch_reads_its_adapter_batch_by_batch() -> None:
    """Without the argument for stacked batches, which the scanning trainer has, an adapter gives single ones."""
    epoch = internals.JAXEpochIterator(X, Y, batch_size=5, steps_per_execution=3)
    assert [len(x) for x, _ in epoch.data_adapter.get_jax_iterator()] == [5, 5, 5, 1]
    assert epoch.steps_per_epoch is None
    assert not internals.shuffles(epoch.data_adapter)
    assert internals.shuffles(internals.JAXEpochIterator(X, Y, shuffle=True).data_adapter)
    assert internals.read_by_threads(epoch.data_adapter) is None


def test_adapters_may_know_no_lengths() -> None:
    for name in ("num_batches", "batch_size", "has_partial_batch", "partial_batch_size"):
        assert isinstance(getattr(internals.DataAdapter, name), property)


def test_losses_are_reduced_and_moments_taken_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def noted(name: str, original: Any) -> Any:
        return lambda *args, **kwargs: (calls.append(name), original(*args, **kwargs))[1]

    for module, name in ((internals.losses_module, "reduce_weighted_values"), (internals.nn, "moments")):
        monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    keras.losses.MeanSquaredError()(X, X)
    keras.layers.BatchNormalization()(X, training=True)
    assert calls == ["reduce_weighted_values", "moments"]


def test_what_an_optimizer_keeps() -> None:
    optimizer = keras.optimizers.AdamW(0.5, clipvalue=1.0)
    variables = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros(2))]
    internals.exclude_from_decay(optimizer, variables[:1])
    optimizer.build(variables)
    assert [internals.decays(optimizer, variable) for variable in variables] == [False, True]
    plain = keras.optimizers.SGD()
    plain.build(variables)
    assert internals.decays(plain, variables[0])
    assert np.asarray(internals.clipped(optimizer, [np.full(2, 3.0)])[0]).tolist() == [1, 1]
    assert float(internals.learning_rate(optimizer)) == 0.5
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    assert internals.learning_rate(keras.optimizers.SGD(schedule)) is schedule


def test_containers_tell_their_layer() -> None:
    layer = keras.layers.Layer()
    layer.listed, layer.named = [1], {"a": 2}
    assert type(layer.listed) in internals.tracked_lists
    assert isinstance(layer.named, internals.tracked_dicts)


def test_datasets_and_callbacks(tmp_path: Any) -> None:
    import grain

    assert internals.is_dataset(grain.MapDataset.range(3))
    assert not internals.is_dataset(X)
    assert internals.is_default(keras.callbacks.Callback().on_batch_end)
    told: list[Any] = []
    callback = keras.callbacks.LambdaCallback()
    callback.on_batch_end = lambda *given, **named: told.append(given)
    callback.on_train_batch_end(3)
    assert told
    model = classifier()
    assert internals.model_of(keras.callbacks.CallbackList([callback], model=model)) is model
    assert parameters(keras.callbacks.CallbackList._async_dispatch) == ["self", "fn", "args"]
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    backup.set_model(model)
    backup.on_epoch_begin(0)
    backup.on_epoch_end(0)
    assert '"epoch": 1' in internals.backup_file(backup).read_text(encoding="utf-8")


def test_names_are_numbered_as_if_nothing_had_been_made() -> None:
    with internals.own_names():
        apart = keras.layers.Dropout(0.1).name
    assert keras.layers.Dropout(0.1).name == apart


def test_classes_that_models_and_optimizers_are_of() -> None:
    assert issubclass(keras.Model, internals.JAXTrainer)
    assert issubclass(keras.optimizers.LossScaleOptimizer, keras.optimizers.Optimizer)
    for kind in (keras.Model, keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric):
        assert issubclass(kind, internals.KerasSaveable)
    assert parameters(keras.optimizers.Optimizer.stateless_apply)[1:] == [
        "optimizer_variables",
        "grads",
        "trainable_variables",
    ]
    assert parameters(keras.optimizers.Optimizer.apply)[1:] == ["grads", "trainable_variables"]


def test_a_plain_model_trains_as_before_in_the_scope_of_one_device() -> None:
    """Also by several steps in one execution, for which the scanning trainer stacks batches."""

    def losses(model: Any) -> list[float]:
        return model.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0).history["loss"]

    expected = losses(classifier(steps_per_execution=2))
    model = classifier(steps_per_execution=2)
    with jd.OneDeviceStrategy("CPU:1").scope():
        found = losses(model)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
