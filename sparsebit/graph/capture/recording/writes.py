"""In-place writes: recorded as new values if nothing can see the difference, otherwise kept as writes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebit.graph.capture.normalize import functional_twin, is_tensor_method
from sparsebit.graph.capture.recording.tape import Tape
from sparsebit.graph.capture.source import find_source
from sparsebit.graph.functional import overwrite, set_item
from sparsebit.graph.value import real_tensors_in

_COMPARISONS = {
    *("eq_", "ne_", "not_equal_", "lt_", "less_", "le_", "less_equal_", "gt_", "greater_", "ge_"),
    *("greater_equal_", "logical_and_", "logical_or_", "logical_xor_", "logical_not_"),
}
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Writes:
    """Decides for each write, and keeps what is needed to undo writes to parameters."""

    def __init__(self, tape: Tape, in_place: frozenset[Hashable]) -> None:
        self._tape = tape
        self._in_place = in_place  # lines whose writes are visible elsewhere, as an earlier recording found
        self._saved: list[tuple[Tensor, Tensor]] = []

    def become_new_value(self, tensor: Tensor) -> bool:
        """Whether writing to a tensor can be recorded as making a new one.

        Other tensors may share the memory (the tensor a view was taken from), but are rarely read again, so it is
        assumed that they are not; a later read raises ``StaleRead``, and the next recording keeps this write.
        """
        tape = self._tape
        if tape.node_of(tensor) in tape.owned:
            return False
        line = find_source()
        aliases = [
            other for other in list(tape.nodes.keys()) if other is not tensor and _share(other, tensor)
        ]
        if line in self._in_place or any(tape.nodes[other] in tape.owned for other in aliases):
            return False
        for other in aliases:
            tape.stale[other] = line
        return True

    def save(self, tensors: list[Tensor]) -> None:
        """Save the numbers of parameters that are about to be written."""
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue
            owner = self._tape.names.parameters.get(tensor.untyped_storage()._cdata)
            if owner is not None and not any(saved is owner for saved, _ in self._saved):
                self._saved.append((owner, owner.detach().clone()))

    def undo(self) -> None:
        """Restore the parameters that the model wrote to."""
        with torch.no_grad():
            for parameter, saved in self._saved:
                parameter.detach().copy_(saved)


def _share(left: Tensor, right: Tensor) -> bool:
    strided = left.layout is torch.strided and right.layout is torch.strided
    return strided and left.untyped_storage()._cdata == right.untyped_storage()._cdata


def functional_call(
    function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], written: Tensor
) -> Call | None:
    """The out-of-place version of an in-place call, if torch has one."""
    if name == "__setitem__":
        return set_item, args, kwargs
    if kwargs.get("out") is written:
        return function, args, {key: value for key, value in kwargs.items() if key != "out"}
    if not args or args[0] is not written:
        return None
    if name == "copy_":
        return overwrite, args[:2], {}
    if kwargs.get("inplace") is True:
        return function, args, {key: value for key, value in kwargs.items() if key != "inplace"}
    if function is F.relu and len(args) > 1:
        return F.relu, args[:1], {}
    if name in _COMPARISONS or any(
        other.dtype != written.dtype for other in real_tensors_in(args[1:]) if other.dim()
    ):
        return None  # in place keeps the dtype, out of place promotes it
    twin = functional_twin(name)
    return (twin, args, kwargs) if twin is not None and is_tensor_method(function) else None
