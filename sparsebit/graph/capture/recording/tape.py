"""The FX graph under construction: the node of each tensor, and how a value becomes an argument."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils.weak import WeakTensorKeyDictionary

from sparsebit.errors import CaptureError, with_article
from sparsebit.graph.capture.recording.names import Names
from sparsebit.graph.capture.report import CaptureReport, Note
from sparsebit.graph.capture.sizes.numbers import Expression, SizeFloat, SizeInt, plain_sizes
from sparsebit.graph.capture.source import find_source, running_line
from sparsebit.graph.effects import assign
from sparsebit.graph.value import describe

_PLAIN_ARGUMENTS = (
    *(type(None), bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format),
    *(type(...), range, torch.device, torch._ops.OpOverload, torch.nn.attention.SDPBackend),
)
_DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128}


class StaleRead(BaseException):
    """A tensor was read after a write changed its memory, but the graph records that write as a new tensor."""

    def __init__(self, write: Hashable) -> None:
        self.write = write
        super().__init__(write)


class Tape:
    """Nodes in the order of execution.

    Tensors are known by identity and held weakly, so that recording needs no more memory than the model's own run.
    """

    def __init__(self, names: Names, report: CaptureReport) -> None:
        self.names = names
        self.graph = fx.Graph()
        self.report = report
        self.path: list[str] = [""]  # dotted names of the enclosing modules
        self.constants: dict[str, Tensor] = {}
        self.unknown_constants: list[str] = []  # tensors of unknown origin
        self.from_arrays = WeakTensorKeyDictionary()  # made from numpy arrays, which are the model's own
        self.nodes = WeakTensorKeyDictionary()
        self.stale = WeakTensorKeyDictionary()  # seen through memory that a functional write did not change
        self.owned: set[fx.Node] = set()  # placeholders, parameters, buffers: writing to them stays a write
        self.frozen: set[fx.Node] = set()  # computed where the model had switched gradients off
        self.device: torch.device | None = None
        self.device_owner: fx.Node | None = None
        self._attribute_nodes: dict[str, fx.Node] = {}
        self._detached: dict[fx.Node, fx.Node] = {}
        self._device_node: fx.Node | None = None
        self._regions: list[list[Any]] = []  # autocast blocks: [arguments, enter node or None]

    def knows(self, module: nn.Module) -> bool:
        """Whether a module's parameters are the model's own, and not replaced for one call."""
        return all(
            id(tensor) in self.names.state for tensor in module._parameters.values() if tensor is not None
        )

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor; parameters, buffers and tensors never seen before become attributes."""
        if len(self.stale) and tensor in self.stale:
            raise StaleRead(self.stale[tensor])
        node: fx.Node | None = self.nodes.get(tensor)
        if node is None:
            node = self._attribute(self.names.state.get(id(tensor)) or self._constant(tensor), tensor)
            self.nodes[tensor] = node
        return node

    def _constant(self, tensor: Tensor) -> str:
        taken = {*self.names.state.values(), *self.constants}
        name = next(n for n in map("_tensor_constant{}".format, itertools.count()) if n not in taken)
        origin = self.names.plain.get(id(tensor))
        self.constants[name] = tensor
        if origin is None and tensor not in self.from_arrays:
            self.unknown_constants.append(name)
        what = f"tensor attribute {origin!r}" if origin else f"a tensor of shape {tuple(tensor.shape)}"
        self.report.add(Note("constant", f"{what} is kept as a constant", find_source()))
        return name

    def _attribute(self, name: str, tensor: Tensor) -> fx.Node:
        if name not in self._attribute_nodes:
            node = self.graph.create_node("get_attr", name)
            node.meta.update(value=describe(tensor), module_path=name.rpartition(".")[0], source=None)
            self._attribute_nodes[name] = node
            self.owned.add(node)
        return self._attribute_nodes[name]

    def add_placeholder(self, name: str, tensor: Tensor) -> fx.Node:
        """Declare an input."""
        node = self.graph.placeholder(name)
        node.meta.update(value=describe(tensor), module_path="", source=None)
        self.nodes[tensor] = node
        self.owned.add(node)
        if self.device_owner is None:
            self.device, self.device_owner = tensor.device, node
        return node

    def add_node(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool
    ) -> fx.Node:
        """Append a node whose arguments are given as values; ``grad`` says whether gradients were on."""
        self._enter_regions()
        node_args = tuple(self.argument(value, grad) for value in args)
        node_kwargs = {key: self.argument(value, grad) for key, value in kwargs.items()}
        node = self.graph.create_node(op, target, node_args, node_kwargs)
        node.meta.update(module_path=self.path[-1], source=find_source())
        return node

    def call(self, function: Any, *args: Any, value: Any = None) -> fx.Node:
        """Append a call that the model did not make itself; arguments are nodes and constants."""
        node = self.graph.call_function(function, args)
        node.meta.update(value=value, module_path=self.path[-1], source=find_source())
        return node

    def argument(self, value: Any, grad: bool = True) -> Any:
        """A value as an argument of a node."""
        if isinstance(value, Tensor):
            node = self.node_of(value)
            detach = grad and node in self.frozen and value.is_floating_point()
            return self._detach(node) if detach else node
        if isinstance(value, SizeInt | SizeFloat):
            return plain_sizes(value) if value.user.closed else self.emit(value.expression)
        if isinstance(value, fx.Node):
            return value
        if isinstance(value, torch.device):
            return self._device_argument(value)
        if isinstance(value, tuple) and hasattr(type(value), "_fields"):  # PackedSequence and the like
            return self.call(
                type(value), *(self.argument(item, grad) for item in value), value=describe(value)
            )
        if isinstance(value, tuple | list):
            items = [self.argument(item, grad) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {key: self.argument(item, grad) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(item, grad) for item in (value.start, value.stop, value.step)))
        if isinstance(value, type) and value in _DTYPES:
            return _DTYPES[value]
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, _PLAIN_ARGUMENTS):
            return value
        raise CaptureError(
            f"an operator was given {with_article(type(value).__name__)}, which a graph cannot hold",
            where=running_line(),
            hint="keep the module around it as one node: capture(..., skip=['its.dotted.name']), SKIP_TRACE_MODULES "
            "in a config",
        )

    def emit(self, expression: Any) -> Any:
        """The node of an expression over sizes."""
        if not isinstance(expression, Expression):
            return expression
        if expression.node is None:
            operands = tuple(self.emit(operand) for operand in expression.operands)
            expression.node = self.call(expression.function, *operands, value=expression.value)
        return expression.node

    def add_assignment(self, name: str, buffer: Tensor, value: Tensor) -> None:
        """The model replaced a buffer by another tensor: the graph writes that into the buffer."""
        node = self.call(assign, self.node_of(buffer), self.argument(value), value=describe(value))
        node.meta.update(module_path=name.rpartition(".")[0], source=None)

    def add_output(self, values: list[Any]) -> None:
        """Close the graph: attributes first, then everything else in the order it ran."""
        self.graph.output(tuple(self.argument(value) for value in values))
        first = next(node for node in self.graph.nodes if node.op != "placeholder")
        if self._device_node is not None:
            first.prepend(self._device_node)
            first = self._device_node
        for node in self._attribute_nodes.values():
            first.prepend(node)

    def _device_argument(self, device: torch.device) -> Any:
        """A device equal to the inputs' becomes theirs, so that the graph can move."""
        if device != self.device or self.device_owner is None:
            return device
        if self._device_node is None:
            self._device_node = self.call(getattr, self.device_owner, "device")
            self._device_node.meta.update(module_path="", source=None)
        return self._device_node

    def _detach(self, node: fx.Node) -> fx.Node:
        """The result of a block without gradients, if a block with gradients reads it."""
        if node not in self._detached:
            detached = self.graph.call_function(torch.detach, (node,))
            detached.meta.update({key: value for key, value in node.meta.items() if key != "mutates"})
            self._detached[node] = detached
        return self._detached[node]

    def without_grad(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """Append a node between two switches of grad mode: writing to a parameter needs it off."""
        before = self.call(torch.is_grad_enabled)
        self.call(torch._C._set_grad_enabled, False)
        node = self.add_node(op, target, args, kwargs, False)
        self.call(torch._C._set_grad_enabled, before)
        return node

    def enter_autocast(self, *arguments: Any) -> None:
        """The model opened an autocast block; it is recorded when an operation runs inside."""
        self._regions.append([arguments, None])

    def exit_autocast(self) -> None:
        """The model closed its innermost autocast block."""
        _, enter = self._regions.pop()
        if enter is not None:
            self.call(torch.amp.autocast_mode._exit_autocast, enter)

    def _enter_regions(self) -> None:
        for region in self._regions:
            if region[1] is None:
                region[1] = self.call(torch.amp.autocast_mode._enter_autocast, *region[0])
