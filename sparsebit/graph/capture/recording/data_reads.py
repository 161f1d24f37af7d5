"""Python code that reads numbers of the inputs: how it is described, and why it is refused."""

from __future__ import annotations

from typing import Literal

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.source import running_line

DataPolicy = Literal["refuse", "specialise"]

_READS = {
    "__bool__": "a branch on a tensor's value",
    "item": "item(): a tensor's value as a Python number",
    "__int__": "int(): a tensor's value as a Python number",
    "__float__": "float(): a tensor's value as a Python number",
    "__index__": "a tensor's value as an index",
    "tolist": "tolist(): a tensor's values as Python numbers",
    "numpy": "numpy(): a tensor's values outside torch",
}


def describe_read(name: str) -> str:
    """How a call of this name reads numbers out of the graph.

    Example:
        >>> describe_read("item")
        "item(): a tensor's value as a Python number"
    """
    return _READS.get(name, f"{name}: a tensor's value outside the graph")


class DataDependenceError(CaptureError):
    """Python control flow that depends on the numbers in the inputs."""

    @classmethod
    def of(cls, text: str) -> DataDependenceError:
        """The error for what the running line does, with possible solutions."""
        return cls(
            f"the model's control flow depends on its input data: {text}",
            where=running_line(),
            hint="rewrite the line with torch operations (torch.where, masks); or keep the module around it "
            "as one node: capture(..., skip=['its.dotted.name']), SKIP_TRACE_MODULES in a config; or accept "
            "the branch the example takes: capture(..., on_data='specialise') returns a graph to quantize or prune",
        )
