"""Every public name is documented: what it is, what it takes and gives, and where it comes from."""

import doctest
import enum
import importlib
import inspect
import os
import pickle
import pkgutil
import pydoc
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import in_threads
import jaxtribute as jd
import jaxtribute.input
from jaxtribute._src.addons.parameter_servers.scheduling import starting

MODULES: dict[str, ModuleType] = {
    "jd": jd,
    "jd.config": jd.config,
    "jd.errors": jd.errors,
    "jd.experimental": jd.experimental,
    "jd.extending": jd.extending,
    "jd.input": jaxtribute.input,
    "jd.nn": jd.nn,
    "jd.testing": jd.testing,
}
# What JAX users bring along and TensorFlow has no name for.
OWN = {"REPLICA_AXIS", "extending", "errors", "experimental", "config", "nn", "progress", "is_main"}


def public(module: ModuleType) -> list[tuple[str, Any]]:
    """The names that a module offers: those of `__all__`, or those that it defines or imports as themselves."""
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    found = [(name, getattr(module, name)) for name in names]
    home = module.__name__ if module in (jd.errors, jd.nn) else "jaxtribute"
    return [(name, value) for name, value in found if getattr(value, "__module__", home).startswith(home)]


DOCUMENTED = [
    pytest.param(value, id=f"{prefix}.{name}")
    for prefix, module in MODULES.items()
    for name, value in public(module)
    if inspect.isclass(value) or inspect.isfunction(value)
]
CLASSES = [case for case in DOCUMENTED if inspect.isclass(case.values[0])]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself."""
    for name, value in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, (property, classmethod))):
            yield name, value


def doc(value: Any) -> str:
    return inspect.getdoc(value) or ""


def maker(kind: Any) -> Any:
    """The method that takes a class's arguments."""
    return kind.__new__ if "__new__" in vars(kind) and kind.__init__ is object.__init__ else kind.__init__


def parameters(function: Any) -> list[str]:
    if isinstance(function, property):
        return []
    plain = getattr(function, "__func__", function)
    return [name for name in inspect.signature(plain).parameters if name not in ("self", "cls")]


@pytest.mark.parametrize("value", DOCUMENTED)
def test_a_public_name_has_a_docstring_of_a_sentence(value: Any) -> None:
    first = doc(value).split("\n\n")[0]
    assert first.endswith((".", ":", "`")), first


@pytest.mark.parametrize("value", DOCUMENTED)
def test_arguments_and_results_are_described_or_the_source_is_named(value: Any) -> None:
    if inspect.isclass(value):
        described = ("Source:", "Args:", "Attributes:")
        if (
            issubclass(value, (Exception, enum.Enum))
            or "__init__" not in vars(value)
            or getattr(value, "_is_protocol", False)
        ):
            return
        assert parameters(value.__init__) == [] or any(word in doc(value) for word in described)
        return
    if parameters(value):
        assert "Args:" in doc(value) or "Source:" in doc(value), "neither Args nor Source"


@pytest.mark.parametrize("value", CLASSES)
def test_methods_and_properties_have_docstrings(value: type) -> None:
    missing = [name for name, member in members(value) if not doc(member)]
    assert not missing


@pytest.mark.parametrize("value", DOCUMENTED)
def test_docstrings_name_all_arguments_that_they_describe(value: Any) -> None:
    """A section `Args:` that leaves one out, or describes one that is gone, is out of date."""
    for function in [value, *(member for _, member in members(value))] if inspect.isclass(value) else [value]:
        text = doc(function)
        if "Args:" not in text:
            continue
        section = text.split("Args:", 1)[1]
        signature = parameters(maker(function) if inspect.isclass(function) else function)
        missing = [name for name in signature if f"{name}:" not in section]
        assert not missing, f"{function}: {missing}"


def test_every_strategy_name_of_tf_distribute_here_names_its_source() -> None:
    without = [
        name
        for name, value in public(jd)
        if name not in OWN and not inspect.ismodule(value) and "Source:" not in doc(value)
    ]
    assert without == []


@pytest.mark.slow
def test_importing_starts_no_backend_and_loads_no_extra() -> None:
    from processes import run_python

    output = run_python(
        """
        import sys
        import jaxtribute
        from jaxtribute._src.core.backend import backend_started
        extras = {"tensorflow", "torch", "keras", "ray", "flax", "sklearn", "optax", "jax.extend"}
        rooms = ["checkpoint", "input", "layouts", "optimizer"]
        own = [f"jaxtribute._src.core.{room}" for room in rooms]
        own += [f"jaxtribute._src.core.values.{name}" for name in ("automatic", "slices", "spec", "policies.sharded")]
        own += [f"jaxtribute._src.core.execution.{name}" for name in ("compiled", "lockstep", "ragged", "step_loops")]
        own += [name for name in sys.modules if name.startswith("jaxtribute._src.addons")]
        print(backend_started(), sorted({*extras, *own} & set(sys.modules)))
        """
    )
    assert output.strip() == "False []"


def test_names_that_are_loaded_when_they_are_asked_for_are_listed() -> None:
    assert {"__version__", "Checkpoint", "Optimizer", "nn"} <= set(dir(jd))


@pytest.mark.slow
def test_every_public_module_is_reached_from_the_first_one() -> None:
    from processes import run_python

    found = (one.name for one in pkgutil.walk_packages(jd.__path__, "jaxtribute.") if "_src" not in one.name)
    # Keras and pytest are for those who have them.
    names = [name for name in found if not {"cli", "__main__", "pytest_plugin", "keras"} & set(name.split("."))]
    assert {"visualize", "compat.tf.data", "integrations.safetensors"} <= {name.partition(".")[2] for name in names}
    run_python("\n".join(["import jaxtribute", *names]))  # where nobody has imported them


def test_public_classes_and_functions_are_pickled_by_their_names() -> None:
    """What a user imports by name goes to a worker or another process as a name, and is the same one there."""
    modules = [module.name for module in pkgutil.iter_modules(jd.__path__, "jaxtribute.") if "._" not in module.name]
    for name in ("jaxtribute", *modules):
        module = importlib.import_module(name)
        for public_name in getattr(module, "__all__", ()):
            value = getattr(module, public_name)
            own = getattr(value, "__module__", "").startswith("jaxtribute")  # JAX's own may have none to be found by
            if own and (inspect.isclass(value) or inspect.isfunction(value)):
                assert pickle.loads(pickle.dumps(value)) is value, f"{name}.{public_name}"


def examples() -> Iterator[tuple[str, str]]:
    """Each public class and function of `jaxtribute` and of modules that it is used with, with its docstring."""
    for module in (jd, jd.nn, jd.precision, jd.summary, jd.debug):
        names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
        for name in names:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{module.__name__}.{name}", doc(value)


def test_every_public_class_and_function_has_an_example() -> None:
    without = [name for name, text in examples() if "Examples:\n  >>> " not in text]
    assert without == []


def run_example(name: str, text: str) -> None:
    names = {"jax": jax, "jd": jd, "jnp": jnp, "np": np, "optax": optax, "os": os, "tempfile": tempfile}
    said: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    doctest.DocTestRunner(verbose=False, optionflags=flags).run(example, out=said.append)
    assert not said, "".join(said)


@pytest.mark.slow
def test_the_examples_of_public_names_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "start_cluster", in_threads.start_cluster)
    for name, text in examples():
        run_example(name, text)


def test_help_shows_no_private_address() -> None:
    assert "_src" not in pydoc.plain(pydoc.render_doc(jd.Model))
