"""Writes down what a model does while it runs, at the level of the torch API."""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.normalize import canonical_call, functional_twin, is_tensor_method, name_of
from sparsebit.graph.capture.report import CaptureReport, Note, NoteKind
from sparsebit.graph.capture.sizes import Expression, SizeFloat, SizeInt, plain_sizes
from sparsebit.graph.capture.size_names import SIZE_FUNCTIONS, CarryingMath
from sparsebit.graph.capture.source import find_source, is_foreign
from sparsebit.graph.effects import assign
from sparsebit.graph.functional import check_branch, overwrite, set_item
from sparsebit.graph.value import describe
from sparsebit.graph.value import tensors_in as infos_in

DataPolicy = Literal["refuse", "specialise"]

# Results of these are facts about a tensor's type and layout, not about its numbers.
_METADATA = {
    *("dim", "ndimension", "is_floating_point", "is_complex", "is_contiguous", "stride", "storage_offset"),
    *("element_size", "data_ptr", "get_device", "is_signed", "is_inference", "retain_grad", "register_hook"),
    *("has_names", "is_conj", "is_neg", "type", "__hash__", "is_pinned", "is_shared", "untyped_storage", "storage"),
    *("__repr__", "__str__", "__format__", "__dir__", "is_same_size", "result_type", "can_cast", "promote_types"),
    *("_is_view", "is_set_to", "is_tensor", "is_storage", "is_nested", "_is_zerotensor", "dim_order", "__sizeof__"),
    *("requires_grad_", "_set_grad_enabled", "is_distributed", "layout", "set_", "_assert", "_assert_async"),
}
# Tensors made by these depend on the shape of their tensor argument, not on its numbers.
_SHAPE_ONLY = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"),
    *("new_tensor", "size", "numel"),
}
_RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "normal"}
_DATA_SHAPED = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere"}
_TENSOR_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag", "data", "grad"}
_PLAIN_ARGUMENTS = (
    *(type(None), bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format, type(...), range),
    *(torch.device, torch._ops.OpOverload, torch.nn.attention.SDPBackend),
)


def _without_override_check(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function of torch that does not offer itself to the recorder, so that its inside shows."""
    names = function.__globals__ | {"has_torch_function": lambda *_: False} | SIZE_FUNCTIONS | {"math": CarryingMath("math")}
    copied = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


# One Python function over several operators that have to be visible by themselves.
_OPENED = {F.multi_head_attention_forward: _without_override_check(F.multi_head_attention_forward)}


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested arguments."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, slice):
        yield from tensors_in((value.start, value.stop, value.step))


class DataDependenceError(CaptureError):
    """Python control flow that depends on the numbers in the inputs."""


class StaleRead(BaseException):
    """A tensor was read whose memory a write had changed, though the graph tells that write as a new tensor."""

    def __init__(self, write: int) -> None:
        self.write = write
        super().__init__(write)


class Recorder(TorchFunctionMode):
    """An FX graph in the making.

    Tensors are known by identity, held weakly: memory is that of the model's own run. Sizes are numbers that
    remember their tensor. Everything runs for real, without autograd, so values and shapes are always at hand.
    """

    def __init__(
        self, model: nn.Module, report: CaptureReport, on_data: DataPolicy, in_place: frozenset[int] = frozenset()
    ) -> None:
        super().__init__()
        self.in_place = in_place  # writes, by their number, that must stay in place
        self.graph = fx.Graph()
        self.report = report
        self.on_data = on_data
        self.constants: dict[str, Tensor] = {}
        self.unknown_constants = 0
        self.path: list[str] = [""]
        self.quiet = 0
        self.closed = False
        self.device: torch.device | None = None
        self.device_owner: fx.Node | None = None
        self.functional_modules: dict[str, bool] = {}  # in-place leaf module → could every call be made functional?
        self._names = {
            id(tensor): name
            for name, tensor in reversed(
                [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            )
        }
        self._state = [*model.parameters(), *model.buffers()]  # keeps the ids above valid
        self._parameters = {p.untyped_storage()._cdata: p for p in model.parameters() if p.layout is torch.strided}
        self._saved: list[tuple[Tensor, Tensor]] = []
        self._attributes = {
            id(value): f"{path}.{key}" if path else key
            for path, module in model.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, Tensor)
        }
        self._nodes = WeakTensorKeyDictionary()
        self._varying = WeakTensorKeyDictionary()
        self._stale = WeakTensorKeyDictionary()  # seen through memory that a functional write did not change
        self._writes = 0
        self._decided: set[tuple[Any, ...]] = set()
        self._sizes: dict[tuple[fx.Node, int], Expression] = {}
        self._owned: set[fx.Node] = set()  # placeholders, parameters, buffers: never functionalised
        self._tainted: set[fx.Node] = set()  # depends on the numbers in the inputs
        self._random: set[fx.Node] = set()
        self._data_shaped: set[fx.Node] = set()
        self._frozen: set[fx.Node] = set()  # computed where the model had switched gradients off
        self._detached: dict[fx.Node, fx.Node] = {}
        self._attribute_nodes: dict[str, fx.Node] = {}
        self._device_node: fx.Node | None = None
        self._regions: list[list[Any]] = []  # autocast blocks: [arguments, enter node or None]

    # -- what the torch API calls ------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.quiet or torch._C._functorch.peek_interpreter_stack() is not None:
            return func(*args, **kwargs)
        name = name_of(func)
        if name == "__get__":
            return self._read_property(func, args)
        if name == "__set__":
            return self._write_property(func, args)
        if name in ("size", "numel", "nelement", "__len__") and args and isinstance(args[0], Tensor):
            return self._read_size(func, name, args, kwargs)
        if func is torch._C._set_grad_enabled:
            return func(*args)
        if func in _OPENED:
            with self:
                return _OPENED[func](*args, **kwargs)
        return self.record(func, args, kwargs)

    def _read_property(self, func: Any, args: tuple[Any, ...]) -> Any:
        name, tensor = func.__self__.__name__, args[0]
        if name == "shape":
            return self._shape(tensor)
        if name == "data":
            return self.record(Tensor.detach, (tensor,), {})
        if name == "T" and tensor.dim() == 2:
            return self.record(torch.transpose, (tensor, 0, 1), {})
        if name == "mT":
            return self.record(torch.transpose, (tensor, -2, -1), {})
        if name in _TENSOR_PROPERTIES:
            return self.record(getattr, (tensor, name), {})
        return func(*args)

    def _write_property(self, func: Any, args: tuple[Any, ...]) -> Any:
        name, tensor, value = func.__self__.__name__, args[0], args[1]
        if name == "data" and isinstance(value, Tensor) and tensor in self._nodes:
            self._nodes[tensor] = self.node_of(value)
        return self._execute(func, args, {})

    def length(self, tensor: Tensor) -> SizeInt:
        """``len(tensor)`` as a size."""
        with torch._C.DisableTorchFunction():
            return self._size(tensor, 0)

    def _read_size(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if name in ("numel", "nelement"):
            value = tensor.numel()
            expression = Expression(torch.numel, (self.node_of(tensor),), value)
            return SizeInt.of(value, expression, self, any(self._varying.get(tensor, ())))
        if name == "__len__":
            size = self._size(tensor, 0) if tensor.dim() else func(*args)
            if isinstance(size, SizeInt):
                self.size_lost(size, "len() of a tensor")
            return plain_sizes(size)
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim is None:
            return self._shape(tensor)
        if isinstance(dim, str):
            return func(*args, **kwargs)
        return self._size(tensor, dim)

    def _shape(self, tensor: Tensor) -> torch.Size:
        return torch.Size([self._size(tensor, dim) for dim in range(tensor.dim())])

    def _size(self, tensor: Tensor, dim: int) -> SizeInt:
        dim = dim + tensor.dim() if dim < 0 else plain_sizes(dim)
        value = tensor.size(dim)
        node = self.node_of(tensor)
        expression = self._sizes.get((node, dim))
        if expression is None:
            expression = self._sizes[(node, dim)] = Expression(Tensor.size, (node, dim), value)
        varying = self._varying.get(tensor, ())
        return SizeInt.of(value, expression, self, dim < len(varying) and varying[dim])

    # -- recording -------------------------------------------------------------------------------------------

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call of the torch API and write it down."""
        name = name_of(func)
        tensors = [*tensors_in(args), *tensors_in(kwargs)]
        versions = [_version(tensor) for tensor in tensors]
        grad = torch.is_grad_enabled()
        if name.endswith("_") or "out" in kwargs:
            self._save_parameters(tensors)
        result = self._execute(func, plain_sizes(args), plain_sizes(kwargs))
        mutated = [t for t, version in zip(tensors, versions, strict=True) if _version(t) != version]
        if not mutated and not any(True for _ in tensors_in(result)):
            if tensors and name not in _METADATA:
                self._numbers_read(name, tensors)
            return result
        if name == "unbind" and tensors and self.node_of(tensors[0]) in self._data_shaped:
            self._data_event("a Python loop over rows whose number depends on the data", tensors)
        if mutated and (result is None or result is mutated[0]):
            return self._record_mutation(func, name, args, kwargs, mutated[0], result, grad)
        if not mutated:
            result = _fresh(result, tensors)
        target, call_args, call_kwargs = canonical_call(func, args, kwargs)
        if call_kwargs.get("inplace") is False:
            call_kwargs = {key: value for key, value in call_kwargs.items() if key != "inplace"}
        node = self.add_node("call_function", target, call_args, call_kwargs, grad)
        if mutated:
            node.meta["mutates"] = True
        self._finish(node, result, name, tensors, (args, kwargs), grad)
        return result

    def record_module(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any) -> Any:
        """Run one leaf module and write it down as one node."""
        with torch._C.DisableTorchFunction():
            return self._record_module(module, path, args, kwargs, run)

    def _record_module(
        self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any
    ) -> Any:
        tensors = [*tensors_in(args), *tensors_in(kwargs)]
        versions = [_version(tensor) for tensor in tensors]
        grad = torch.is_grad_enabled()
        if getattr(module, "max_norm", None) is not None:  # an embedding that rescales its own rows
            self._save_parameters(list(module.parameters()))
        result = self._execute(run, (module, *plain_sizes(args)), plain_sizes(kwargs))
        mutated = [t for t, version in zip(tensors, versions, strict=True) if _version(t) != version]
        node = self.add_node("call_module", path, args, kwargs, grad)
        if mutated and getattr(module, "inplace", False) is True:
            private = all(self._take_private(tensor) for tensor in mutated)
            self.functional_modules[path] = self.functional_modules.get(path, True) and private
        if mutated:
            node.meta["mutates"] = True  # cleared when the module is replaced by one that is not in place
        else:
            result = _fresh(result, tensors)
        self._finish(node, result, type(module).__name__, tensors, (args, kwargs), grad)
        return result

    def _record_mutation(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: Tensor, result: Any, grad: bool
    ) -> Any:
        tensors = [*tensors_in(args), *tensors_in(kwargs)]
        call = self._functional_call(func, name, args, kwargs, tensor) if self._take_private(tensor) else None
        if call is not None:
            node = self.add_node("call_function", *canonical_call(*call), grad)
            self._finish(node, tensor, name, tensors, (args, kwargs), grad)
            return result
        if is_tensor_method(func) and name != "__setitem__":
            func = getattr(Tensor, name, func)
        target = operator.setitem if name == "__setitem__" else func
        before = self._switch_grad(False) if not grad else None
        node = self.add_node("call_function", target, args, kwargs, grad)
        node.meta.update(mutates=True, value=None)
        if before is not None:
            self._switch_grad(before)
        self._owned.add(node)  # whoever writes to it again writes to the same memory
        self.report.add(Note("mutation", f"{name} changes a tensor in place that others may see", find_source()))
        if result is not None:
            node.meta.pop("value")
            self._finish(node, result, name, tensors, (args, kwargs), grad)
        elif any(self.node_of(t) in self._tainted for t in tensors):
            self._tainted.add(self.node_of(tensor))
        return result

    def _functional_call(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: Tensor
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        """The same computation without the mutation, where there is one."""
        if name == "__setitem__":
            return set_item, args, kwargs
        if kwargs.get("out") is tensor:
            return func, args, {key: value for key, value in kwargs.items() if key != "out"}
        if not args or args[0] is not tensor:
            return None
        if name == "copy_":
            return overwrite, args[:2], {}
        if kwargs.get("inplace") is True:
            return func, args, {key: value for key, value in kwargs.items() if key != "inplace"}
        if func is F.relu and len(args) > 1:
            return F.relu, args[:1], {}
        if any(other.dtype != tensor.dtype for other in tensors_in(args[1:]) if other.dim()):
            return None  # in place keeps the dtype, out of place promotes it
        twin = functional_twin(name)
        return (twin, args, kwargs) if twin is not None and is_tensor_method(func) else None

    def _finish(
        self, node: fx.Node, result: Any, name: str, tensors: list[Tensor], inputs: Any, grad: bool
    ) -> None:
        sources = {self.node_of(tensor) for tensor in tensors}
        if name not in _SHAPE_ONLY and sources & self._tainted:
            self._tainted.add(node)
        if name in _RANDOM or sources & self._random:
            self._random.add(node)
            node.meta["random"] = True
        masks = name == "__getitem__" and any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:])
        if name in _DATA_SHAPED or masks or sources & self._data_shaped:
            self._data_shaped.add(node)
        if not grad:
            self._frozen.add(node)
        self._bind(node, result, tensors, inputs)

    def _bind(self, node: fx.Node, result: Any, tensors: list[Tensor], inputs: Any) -> None:
        """Remember which node each resulting tensor is; parts of a tuple are picked with getitem."""
        node.meta.setdefault("value", describe(result))
        if isinstance(result, Tensor):
            self._nodes[result] = node
            self._varying[result] = self._varying_dims(result, tensors, inputs)
            return
        pairs: Any = result.items() if isinstance(result, dict) else enumerate(result) if _is_sequence(result) else ()
        for key, item in pairs:
            if not any(True for _ in tensors_in(item)):
                continue
            part = self.add_node("call_function", operator.getitem, (node, key), {}, True)
            for group in (self._tainted, self._random, self._data_shaped, self._frozen):
                if node in group:
                    group.add(part)
            self._bind(part, item, tensors, inputs)

    def _varying_dims(self, result: Tensor, tensors: list[Tensor], inputs: Any) -> tuple[bool, ...]:
        """Which dimensions of a result follow the inputs' sizes: a guess from equal extents, used for warnings only."""
        known = [(tuple(t.shape), self._varying.get(t, ())) for t in tensors if t is not result]
        asked = {plain_sizes(size) for size in _sizes_in(inputs) if size.varies}
        flags = []
        for dim, extent in enumerate(result.shape):
            same_place = any(
                (dim < len(shape) and shape[dim] == extent and dim < len(vary) and vary[dim]) for shape, vary in known
            )
            anywhere = any(s == extent and v for shape, vary in known for s, v in zip(shape, vary, strict=False))
            fixed = any(s == extent and not v for shape, vary in known for s, v in zip(shape, vary, strict=False))
            flags.append(same_place or extent in asked or (anywhere and not fixed))
        return tuple(flags)

    def values_recorded(self) -> int:
        """How many numbers all the recorded results hold together: a measure of what the run cost."""
        infos = (info for node in self.graph.nodes for info in infos_in(node.meta.get("value")))
        return sum(info.numel for info in infos)

    def add_node(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> fx.Node:
        """Append a node whose arguments are given as values."""
        self._enter_regions()
        node_args = tuple(self.argument(value, grad) for value in args)
        node_kwargs = {key: self.argument(value, grad) for key, value in kwargs.items()}
        node = self.graph.create_node(op, target, node_args, node_kwargs)
        node.meta["module_path"] = self.path[-1]
        node.meta["source"] = find_source()
        return node

    def argument(self, value: Any, grad: bool = True) -> Any:
        """A value as an argument of a node."""
        if isinstance(value, Tensor):
            node = self.node_of(value)
            return self._detach(node) if grad and node in self._frozen and value.is_floating_point() else node
        if isinstance(value, SizeInt | SizeFloat):
            return self._emit(value.expression) if value.user is self else plain_sizes(value)
        if isinstance(value, fx.Node):
            return value
        if isinstance(value, torch.device):
            return self._device_argument(value)
        if isinstance(value, tuple) and hasattr(type(value), "_fields"):
            parts = tuple(self.argument(item, grad) for item in value)
            node = self.graph.call_function(type(value), parts)
            node.meta.update(value=describe(value), module_path=self.path[-1], source=find_source())
            return node
        if isinstance(value, tuple | list):
            items = [self.argument(item, grad) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {key: self.argument(item, grad) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(item, grad) for item in (value.start, value.stop, value.step)))
        if isinstance(value, _PLAIN_ARGUMENTS):
            return value
        if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a numpy scalar
            return value.item()
        raise CaptureError(
            f"an operator was given a {type(value).__name__}, which a graph cannot hold",
            where=str(find_source()),
            hint="skip the module around it: capture(..., skip=['its.dotted.name']) keeps it whole and in float",
        )

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor; parameters, buffers and tensors never seen before become attributes."""
        if tensor in self._stale:
            raise StaleRead(self._stale[tensor])
        node = self._nodes.get(tensor)
        if node is not None:
            return node
        name = self._names.get(id(tensor))
        if name is None:
            name = f"_tensor_constant{len(self.constants)}"
            origin = self._attributes.get(id(tensor))
            self.constants[name] = tensor
            self.unknown_constants += origin is None
            text = f"tensor attribute {origin!r}" if origin else f"a tensor of shape {tuple(tensor.shape)} made outside torch"
            self.report.add(Note("constant", f"{text} is kept as a constant", find_source()))
        node = self._attribute_nodes.get(name)
        if node is None:
            node = self.graph.create_node("get_attr", name)
            node.meta.update(value=describe(tensor), module_path=name.rpartition(".")[0], source=None)
            self._attribute_nodes[name] = node
            self._owned.add(node)
        self._nodes[tensor] = node
        return node

    def add_placeholder(self, name: str, tensor: Tensor) -> None:
        """Declare an input."""
        node = self.graph.placeholder(name)
        node.meta.update(value=describe(tensor), module_path="", source=None)
        self._nodes[tensor] = node
        self._varying[tensor] = (True,) * tensor.dim()
        self._owned.add(node)
        self._tainted.add(node)
        if self.device_owner is None:
            self.device, self.device_owner = tensor.device, node

    def add_assignment(self, name: str, buffer: Tensor, value: Tensor) -> None:
        """The model replaced a buffer by another tensor: the graph writes that into the buffer."""
        node = self.graph.call_function(assign, (self.node_of(buffer), self.argument(value)))
        node.meta.update(value=describe(value), module_path=name.rpartition(".")[0], source=None)

    def add_output(self, values: list[Any]) -> None:
        """Close the graph: attributes first, then everything else in the order it ran."""
        self.graph.output(tuple(self.argument(value) for value in values))
        first = next(node for node in self.graph.nodes if node.op != "placeholder")
        if self._device_node is not None:
            first.prepend(self._device_node)
            first = self._device_node
        for node in self._attribute_nodes.values():
            first.prepend(node)
        self.closed = True

    # -- sizes, devices, gradients, autocast -------------------------------------------------------------------

    def _emit(self, expression: Any) -> Any:
        if not isinstance(expression, Expression):
            return expression
        if expression.node is None:
            operands = tuple(self._emit(operand) for operand in expression.operands)
            node = self.graph.call_function(expression.function, operands)
            node.meta.update(value=expression.value, module_path=self.path[-1], source=find_source())
            expression.node = node
        return expression.node

    def size_lost(self, size: Any, how: str) -> None:
        """A size became a plain number; worth a warning if it can vary."""
        if not self.quiet and not self.closed and size.varies:
            self.note("size-fixed", f"{how}: {size!r} stays {size!r} whatever the input")

    def size_decided(self, size: Any, function: Callable[..., bool], operands: tuple[Any, ...], result: bool) -> None:
        """Python branched on a size: check in the graph that it would branch the same way again."""
        if self.quiet or self.closed or not any(getattr(operand, "varies", False) for operand in operands):
            return
        caller = sys._getframe(2)  # the comparison's own frame is 1
        if is_foreign(caller.f_code.co_filename):
            return  # torch checking its arguments
        key = (function, *(getattr(operand, "expression", operand) for operand in operands))
        if key in self._decided:
            return
        self._decided.add(key)
        place = str(find_source())
        self.report.add(Note("size-branch", f"a branch on a size was {result}", find_source()))
        taken = self.graph.call_function(function, tuple(self.argument(operand) for operand in operands))
        check = self.graph.call_function(check_branch, (taken, result, place))
        for node in (taken, check):
            node.meta.update(value=result if node is taken else None, module_path=self.path[-1], source=find_source())

    def note(self, kind: NoteKind, text: str) -> None:
        """Add to the report, with the model's own line."""
        self.report.add(Note(kind, text, find_source()))

    def _device_argument(self, device: torch.device) -> Any:
        if device != self.device or self.device_owner is None:
            return device
        if self._device_node is None:
            self._device_node = self.graph.call_function(getattr, (self.device_owner, "device"))
            self._device_node.meta.update(value=None, module_path="", source=None)
        return self._device_node

    def _detach(self, node: fx.Node) -> fx.Node:
        if node not in self._detached:
            detached = self.graph.call_function(torch.detach, (node,))
            detached.meta.update(node.meta)
            detached.meta.pop("mutates", None)
            self._detached[node] = detached
            if node in self._tainted:
                self._tainted.add(detached)
        return self._detached[node]

    def _switch_grad(self, enabled: bool | fx.Node) -> fx.Node | None:
        """Write down a change of grad mode, which a write into a parameter needs; returns the mode it was before."""
        before = self.graph.call_function(torch.is_grad_enabled) if enabled is False else None
        switch = self.graph.call_function(torch._C._set_grad_enabled, (enabled,))
        for node in (before, switch):
            if node is not None:
                node.meta.update(value=None, module_path=self.path[-1], source=find_source())
        return before

    def enter_autocast(self, *arguments: Any) -> None:
        """The model opened an autocast block; it is written down when something happens inside."""
        self._regions.append([arguments, None])

    def exit_autocast(self) -> None:
        """The model closed its innermost autocast block."""
        _, enter = self._regions.pop()
        if enter is not None:
            node = self.graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
            node.meta.update(value=None, module_path=self.path[-1], source=find_source())

    def _enter_regions(self) -> None:
        for region in self._regions:
            if region[1] is None:
                region[1] = self.graph.call_function(torch.amp.autocast_mode._enter_autocast, region[0])
                region[1].meta.update(value=None, module_path=self.path[-1], source=find_source())

    # -- numbers that leave the graph ----------------------------------------------------------------------------

    def _numbers_read(self, name: str, tensors: list[Tensor]) -> None:
        text = {
            "__bool__": "a branch on a tensor's value",
            "item": "item(): a tensor's value as a Python number",
            "__int__": "int(): a tensor's value as a Python number",
            "__float__": "float(): a tensor's value as a Python number",
            "__index__": "a tensor's value as an index",
            "tolist": "tolist(): a tensor's values as Python numbers",
            "numpy": "numpy(): a tensor's values outside torch",
        }.get(name, f"{name}: a tensor's value outside the graph")
        self._data_event(text, tensors)

    def _data_event(self, text: str, tensors: list[Tensor]) -> None:
        nodes = {self.node_of(tensor) for tensor in tensors}
        if nodes & self._tainted:
            if self.on_data == "refuse":
                raise DataDependenceError(
                    f"the model's control flow depends on its input data: {text}",
                    where=str(find_source()),
                    hint="rewrite the line with torch operations (torch.where, masks); or keep the module around it whole "
                    "with capture(..., skip=['its.dotted.name']); or accept the branch the example takes with "
                    "capture(..., on_data='specialise')",
                )
            self.note("data", f"{text} was fixed to what the example inputs gave")
        elif nodes & self._random:
            self.note("random", f"a random choice was fixed: {text}")

    # -- helpers -------------------------------------------------------------------------------------------------

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        grad = torch.is_grad_enabled()
        self.quiet += 1
        torch._C._set_grad_enabled(False)
        try:
            return func(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(grad)
            self.quiet -= 1

    def owns(self, module: nn.Module) -> bool:
        """Whether a module's parameters are the model's own, and not swapped in for one call."""
        return all(id(tensor) in self._names for tensor in module._parameters.values() if tensor is not None)

    def _save_parameters(self, tensors: list[Tensor]) -> None:
        """Keep the numbers of parameters that are about to be written, to put them back after the recording."""
        for tensor in tensors:
            owner = self._parameters.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None
            if owner is not None and not any(saved is owner for saved, _ in self._saved):
                self._saved.append((owner, owner.detach().clone()))

    def restore_parameters(self) -> None:
        """Undo what the model wrote into its parameters."""
        with torch.no_grad():
            for parameter, saved in self._saved:
                parameter.detach().copy_(saved)

    def _take_private(self, tensor: Tensor) -> bool:
        """Whether writing to a tensor can be told as making a new one.

        Others may look at the same memory (the tensor a view was taken from), but mostly nobody reads them again. So it
        is assumed that nobody does; whoever does raises ``StaleRead``, and the next recording keeps this write in place.
        """
        if self.node_of(tensor) in self._owned:
            return False
        ordinal = self._writes = self._writes + 1
        storage = tensor.untyped_storage()._cdata
        aliases = [
            other
            for other in list(self._nodes.keys())
            if other is not tensor and other.layout is torch.strided and other.untyped_storage()._cdata == storage
        ]
        if ordinal in self.in_place or any(self._nodes[other] in self._owned for other in aliases):
            return False
        for other in aliases:
            self._stale[other] = ordinal
        return True


class BelowRecorder(TorchDispatchMode):
    """Catches what slips below the torch API: scripted functions, vmap, C++ code."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.recorder.quiet:
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            if any("SymInt" in str(argument.type) for argument in func._schema.arguments):
                self.recorder.note("size-fixed", "work below the torch API is recorded with the example's sizes")
            return self.recorder.record(func, args, kwargs or {})


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _sizes_in(value: Any) -> Iterator[SizeInt | SizeFloat]:
    if isinstance(value, SizeInt | SizeFloat):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _sizes_in(item)
    elif isinstance(value, dict):
        yield from _sizes_in(list(value.values()))
    elif isinstance(value, slice):
        yield from _sizes_in((value.start, value.stop, value.step))


def _fresh(result: Any, inputs: list[Tensor]) -> Any:
    """A result that is the very input tensor (dropout in eval mode, a cast to the same type) as an object of its own."""
    if isinstance(result, Tensor):
        return result.detach() if any(result is tensor for tensor in inputs) else result
    if type(result) in (tuple, list):
        return type(result)([_fresh(item, inputs) for item in result])
    return result
