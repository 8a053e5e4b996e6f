"""One tree of errors, in which each also is the builtin that Python code expects."""

import inspect

import pytest

from jaxtribute import errors

BUILTINS = {
    "AggregationError": NotImplementedError,
    "ArgumentError": ValueError,
    "ArgumentTypeError": TypeError,
    "CancelledError": RuntimeError,
    "CheckpointDamagedError": RuntimeError,
    "CheckpointError": RuntimeError,
    "CheckpointMismatchError": ValueError,
    "CheckpointUnreadableError": RuntimeError,
    "ClusterError": RuntimeError,
    "ClusterSpecError": ValueError,
    "ConfigError": RuntimeError,
    "ContextError": RuntimeError,
    "DeadlineError": TimeoutError,
    "DeviceError": ValueError,
    "DivergenceError": RuntimeError,
    "InputError": ValueError,
    "MissingLibraryError": ImportError,
    "OutOfRangeError": IndexError,
    "ProcessFailedError": RuntimeError,
    "ShapeError": ValueError,
    "StrategyMixError": RuntimeError,
    "TraceError": RuntimeError,
    "UnsupportedError": NotImplementedError,
    "VariableError": ValueError,
}

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception) and value is not errors.JaxtributeError
}


def test_every_error_is_listed_here() -> None:
    assert set(CLASSES) == set(BUILTINS)


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_an_error_is_caught_by_the_root_and_by_its_builtin(name: str) -> None:
    cls = CLASSES[name]
    with pytest.raises(errors.JaxtributeError, match="the message"):
        raise cls("the message")
    with pytest.raises(BUILTINS[name], match="the message"):
        raise cls("the message")


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_an_error_is_documented_and_drawn_in_the_tree(name: str) -> None:
    assert CLASSES[name].__doc__
    drawing = inspect.getdoc(errors) or ""
    line = next(line for line in drawing.splitlines() if f" {name} " in line)
    assert f"({BUILTINS[name].__name__})" in line


def test_the_root_is_no_builtin_but_exception() -> None:
    assert errors.JaxtributeError.__bases__ == (Exception,)
