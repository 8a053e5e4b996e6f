"""Older methods of `Strategy` that programs of TensorFlow still call: an add-on has them, by the names here."""

from __future__ import annotations

from typing import Any

from jaxtribute._src.core.points import OLDER_METHODS


class _Older:
    """An attribute of a class whose namesake in an add-on's class does the work.

    Args:
      place: 0 for the methods of `Strategy`, 1 for those of `StrategyExtended`.
    """

    def __init__(self, place: int) -> None:
        self._place, self._name = place, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        value = vars(OLDER_METHODS.last()[self._place])[self._name]
        return value.__get__(instance, owner)


class OlderMethods:
    """A part of `Strategy`."""

    colocate_vars_with: Any = _Older(0)
    configure: Any = _Older(0)
    experimental_run: Any = _Older(0)
    group: Any = _Older(0)
    make_dataset_iterator: Any = _Older(0)
    make_input_fn_iterator: Any = _Older(0)
    unwrap: Any = _Older(0)
    update_config_proto: Any = _Older(0)


class OlderExtended:
    """A part of `StrategyExtended`."""

    experimental_between_graph: Any = _Older(1)
    experimental_make_numpy_dataset: Any = _Older(1)
    experimental_run_steps_on_iterator: Any = _Older(1)
    experimental_should_init: Any = _Older(1)
    should_checkpoint: Any = _Older(1)
    should_save_summary: Any = _Older(1)
    update_non_slot: Any = _Older(1)
