"""What makes datasets on each worker."""

from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.experimental import DatasetCreator


def test_it_is_the_function_that_it_was_given() -> None:
    options = jd.InputOptions()
    creator = DatasetCreator(lambda context: [context.num_input_pipelines], options)
    assert creator(jd.InputContext(3)) == [3]
    assert creator.input_options is options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2],), r"dataset_fn is \[1, 2\] of type list. HINT"),
        ((list, "options"), "input_options is 'options'.*HINT"),
    ],
)
def test_anything_else_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        DatasetCreator(*arguments)
