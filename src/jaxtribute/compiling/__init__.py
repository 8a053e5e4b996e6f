"""Programs compiled for TPU slices that are not there; `jaxtribute plan --topology` is its command line."""

from jaxtribute.compiling.step import CompiledStep as CompiledStep
from jaxtribute.compiling.step import DoesNotFitError as DoesNotFitError
from jaxtribute.compiling.targets import compile_for as compile_for

__all__ = ["CompiledStep", "DoesNotFitError", "compile_for"]
