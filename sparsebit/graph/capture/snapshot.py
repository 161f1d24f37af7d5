"""Restore a model after a run: its attributes, its buffers, and the random state."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebit.graph.capture.module import inherited_conflict
from sparsebit.graph.exclusive import without_warnings


class Snapshot:
    """A model's attributes and the numbers in its buffers, to see what a run changed and to restore everything."""

    def __init__(self, model: nn.Module) -> None:
        self._attributes = [(module, dict(module.__dict__)) for module in model.modules()]
        self._containers: list[tuple[Any, Any]] = []
        self._arrays: list[tuple[Any, Any]] = []
        seen: set[int] = set()
        for _, attributes in self._attributes:
            for value in attributes.values():
                self._save(value, seen)
        self._buffers: dict[str, tuple[nn.Module, str, Tensor, Tensor]] = {}
        for path, module in model.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is not None:
                    name = f"{path}.{key}" if path else key
                    self._buffers[name] = (module, key, tensor, tensor.detach().clone())

    def _save(self, value: Any, seen: set[int]) -> None:
        """Save the contents of a container and of those inside it; of arrays and plain tensors, the numbers."""
        if id(value) in seen:
            return
        if isinstance(value, dict | list | set | deque):
            seen.add(id(value))
            self._containers.append((value, value.copy()))
            for item in list(value.values()) if isinstance(value, dict) else list(value):
                self._save(item, seen)
        elif isinstance(value, np.ndarray):
            self._arrays.append((value, value.copy()))
        elif type(value) is Tensor and value.layout is torch.strided and value.is_leaf:
            self._arrays.append((value, value.detach().clone()))

    def carried(self, depends_on_data: Callable[[Any], bool]) -> Iterator[str]:
        """Attributes that the run changed for the next one: its results, and counters."""
        filled = {(id(owner), key) for owner, key, _, _ in self._buffers.values()}
        for module, before in self._attributes:
            for key, value in vars(module).items():
                old = before.get(key)
                counts = {type(value), type(old)} <= {int, float} and value != old
                if value is not old and (counts or depends_on_data(value)):
                    yield f"{type(module).__name__}.{key}"
            for key, value in module._buffers.items():
                if (id(module), key) not in filled and depends_on_data(value):
                    yield f"{type(module).__name__}.{key}"

    def reassigned(self) -> Iterator[tuple[str, Tensor]]:
        """Buffers that the model replaced, with the new tensors."""
        for name, (module, key, tensor, _) in self._buffers.items():
            now = module._buffers.get(key)
            if now is not None and now is not tensor:
                yield name, now

    def changed(self) -> str | None:
        """The name of a buffer that was written or replaced, or None."""
        for name, (module, key, tensor, saved) in self._buffers.items():
            if module._buffers.get(key) is not tensor or not _same(tensor, saved):
                return name
        return None

    def original(self, name: str) -> Tensor:
        """The original tensor of a buffer."""
        return self._buffers[name][2]

    def restore(self) -> None:
        """Restore every attribute and every number."""
        for module, attributes in self._attributes:
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for container, saved in self._containers:
            if not container and not saved:
                continue
            container.clear()
            container.extend(saved) if isinstance(container, list | deque) else container.update(saved)
        for array, numbers in self._arrays:
            if isinstance(array, np.ndarray):
                array[...] = numbers
            elif not _same(array, numbers):
                array.data.copy_(numbers)
        with torch.no_grad():
            for _, _, tensor, saved in self._buffers.values():
                if not _same(tensor, saved):  # by value: kernels write statistics without counting the write
                    tensor.copy_(saved)


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether tensors are equal, NaN included; tensors that cannot be compared (sparse, meta) count as equal."""
    if left.shape != right.shape:
        return False
    if left.layout is not torch.strided or left.device.type == "meta" or torch.equal(left, right):
        return True
    return bool(((left == right) | ((left != left) & (right != right))).all())


@contextlib.contextmanager
def undisturbed(
    model: nn.Module, inputs: Sequence[Tensor] = (), snapshot: Snapshot | None = None
) -> Iterator[Snapshot]:
    """Run a function and restore the model and the random state; ``snapshot`` is an earlier snapshot."""
    devices = sorted({t.device.index or 0 for t in inputs if t.device.type == "cuda"})
    snapshot, python, arrays = snapshot or Snapshot(model), random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield snapshot
        finally:
            snapshot.restore()
            random.setstate(python)
            np.random.set_state(arrays)


def training_flags(model: nn.Module) -> dict[str, bool]:
    """Whether each module is in training mode, by all its names."""
    return {name: module.training for name, module in model.named_modules(remove_duplicate=False)}


def overridden_modes(model: nn.Module) -> dict[bool, dict[str, bool]]:
    """For a model that overrides ``train`` (a frozen batch norm): the mode of each module after calling it."""
    if all(type(module).train is nn.Module.train for module in model.modules()) or inherited_conflict(model):
        return {}
    trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    flags: dict[bool, dict[str, bool]] = {}
    with undisturbed(model), without_warnings():  # a captured graph says in each mode what is fixed in it
        for mode in (True, False):
            model.train(mode)
            flags[mode] = training_flags(model)
    for parameter, requires_grad in trainable:
        parameter.requires_grad_(requires_grad)
    return flags
