"""Records what a model does, at the level of the torch API."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.signature import is_tensor
from sparsebit.graph.capture.call.structure import flatten, split_container
from sparsebit.graph.capture.normalize import canonical_call, is_tensor_method, name_of
from sparsebit.graph.capture.recording.data_reads import DataDependenceError, DataPolicy, describe_read
from sparsebit.graph.capture.recording.names import Names
from sparsebit.graph.capture.recording.origins import Origins
from sparsebit.graph.capture.recording.skip_work import skip_work
from sparsebit.graph.capture.recording.tape import Tape
from sparsebit.graph.capture.recording.writes import Writes, functional_call
from sparsebit.graph.capture.report import CaptureReport, Note, NoteKind
from sparsebit.graph.capture.sizes.numbers import Expression, SizeInt, plain_sizes
from sparsebit.graph.capture.source import Source, find_source, is_foreign, running_line
from sparsebit.graph.functional import check_branch
from sparsebit.graph.lending import version_of
from sparsebit.graph.opened import OPENED, run_opened
from sparsebit.graph.ops.lookup import find_call, find_function
from sparsebit.graph.value import describe, items_in, real_tensors_in

_TENSOR_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag", "data", "grad"}


class LostSize(NamedTuple):
    """A size that became a plain number: what Python did to it, the number, and the model's line."""

    how: str
    value: float
    source: Source | None


class Recorder(TorchFunctionMode):
    """Sees every call of the torch API in its context, runs it without autograd, and adds it to the tape."""

    def __init__(
        self,
        names: Names,
        report: CaptureReport,
        on_data: DataPolicy,
        in_place: frozenset[Hashable] = frozenset(),
        *,
        dry: bool = False,
    ) -> None:
        super().__init__()
        self.tape = Tape(names, report)
        self.writes = Writes(self.tape, in_place)
        self.origins = Origins()
        self.report = report
        self.on_data = on_data
        self.dry = dry  # the numbers do not matter: costly layers give zeros
        self.quiet = 0  # above zero while an operator or a leaf module runs: its inside is not recorded
        self.closed = False
        self.refusal: DataDependenceError | None = None  # kept, because the model may catch it and go on
        # By the path of an in-place leaf: whether all its calls are recorded as new values.
        self.functional_modules: dict[str, bool] = {}
        self.lost: list[LostSize] = []
        self.reads_dtype: Source | None = None  # the first line of the model that reads the dtype of a tensor
        self._sizes: dict[tuple[fx.Node, int], Expression] = {}
        self._decided: set[tuple[Any, ...]] = set()

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
        if func is Tensor.detach_:
            self.tape.nodes[args[0]] = self.tape.add_node("call_function", torch.detach, args, {}, True)
            self.tape.nodes[args[0]].meta["value"] = describe(args[0])
            return args[0]
        if name == "register_hook":
            self.note("data", "a hook on a tensor's gradient is not part of the graph")
        if func in OPENED:
            return run_opened(self, func, args, kwargs)
        return self.record(func, args, kwargs)

    def add_placeholder(self, name: str, tensor: Tensor) -> None:
        """Declare an input: values computed from its numbers depend on data."""
        self.origins.data.add(self.tape.add_placeholder(name, tensor))

    def depends_on_data(self, value: Any) -> bool:
        """Whether a value is a recorded tensor that depends on the inputs' numbers."""
        return isinstance(value, Tensor) and self.tape.nodes.get(value) in self.origins.data

    def close(self, outputs: list[Any]) -> None:
        """End the run; from now on, sizes from it are plain numbers."""
        self.tape.add_output(outputs)
        self.closed = True

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call of the torch API and record it."""
        name, tensors, grad = name_of(func), real_tensors_in(args, kwargs), torch.is_grad_enabled()
        versions = [version_of(tensor) for tensor in tensors]
        if name.endswith("_") or "out" in kwargs:
            self.writes.save(tensors)
        result = self._run(func, func, (), plain_sizes(args), plain_sizes(kwargs))
        written = [t for t, version in zip(tensors, versions, strict=True) if version_of(t) != version]
        first = tensors[0] if tensors else None
        if not written and first is not None and first.is_inference() and result is first:
            written = tensors[:1] if _looks_in_place(name) else []  # inference mode does not count writes
        if result is NotImplemented or any(isinstance(item, np.ndarray) for item in items_in((args, kwargs))):
            for tensor in real_tensors_in(result):
                self.tape.from_arrays[tensor] = True
            return result  # what is made from an array is a constant of the model
        if not written and not real_tensors_in(result):
            found = find_function(func)
            if tensors and not (found and found.spec.effect) and self._reads_numbers(func, args, kwargs):
                self._data_read(describe_read(name), tensors)
            return result
        if name == "unbind" and tensors and self.tape.node_of(tensors[0]) in self.origins.data_shaped:
            self._data_read("a Python loop over rows whose number depends on the data", tensors[:1])
        if written and (result is None or result is written[0]):
            return self._record_write(func, name, args, kwargs, written[0], result)
        if not written:
            result = _distinct(result, tensors)
        target, call_args, call_kwargs = canonical_call(func, args, kwargs)
        if call_kwargs.get("inplace") is False:
            call_kwargs = {key: value for key, value in call_kwargs.items() if key != "inplace"}
        node = self.tape.add_node("call_function", target, call_args, call_kwargs, grad)
        if written:
            node.meta["mutates"] = True
        self._finish(node, result, tensors, grad)
        return result

    def record_module(
        self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any
    ) -> Any:
        """Run one leaf module and record it as one node."""
        with torch._C.DisableTorchFunction():
            tensors, grad = real_tensors_in(args, kwargs), torch.is_grad_enabled()
            versions = [version_of(tensor) for tensor in tensors]
            if getattr(module, "max_norm", None) is not None:  # an embedding that rescales its own rows
                self.writes.save(list(module.parameters()))
            result = self._run(run, module, (module,), plain_sizes(args), plain_sizes(kwargs))
            written = [t for t, version in zip(tensors, versions, strict=True) if version_of(t) != version]
            node = self.tape.add_node("call_module", path, args, kwargs, grad)
            if written and getattr(module, "inplace", False) is True:
                private = all(self.writes.become_new_value(tensor) for tensor in written)
                self.functional_modules[path] = self.functional_modules.get(path, True) and private
            if written:
                node.meta["mutates"] = True  # cleared when the module is replaced by one that is not in place
            else:
                result = _distinct(result, tensors)
            self._finish(node, result, tensors, grad, module)
            return result

    def _record_write(
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: Tensor,
        result: Any,
    ) -> Any:
        grad = torch.is_grad_enabled()
        # Under no_grad, a write changes the numbers but not the gradient; a new value cannot do that.
        straight_through = not grad and self.tape.node_of(written) not in self.tape.frozen
        private = not straight_through and self.writes.become_new_value(written)
        call = functional_call(func, name, args, kwargs, written) if private else None
        if call is not None:
            node = self.tape.add_node("call_function", *canonical_call(*call), grad)
            self._finish(node, written, real_tensors_in(args, kwargs), grad)
            return result
        target = operator.setitem if name == "__setitem__" else func
        if is_tensor_method(func) and name != "__setitem__":
            target = getattr(Tensor, name, func)
        if grad:
            node = self.tape.add_node("call_function", target, args, kwargs, grad)
        else:
            node = self.tape.without_grad("call_function", target, args, kwargs)
        node.meta["mutates"] = True
        self.tape.owned.add(node)  # a second write goes to the same memory
        self.note("mutation", f"{name} changes a tensor in place that other code may see")
        if result is not None:
            self._finish(node, result, real_tensors_in(args, kwargs), grad or straight_through)
        else:
            node.meta["value"] = None
            source = self.tape.node_of(written)
            for tensor in real_tensors_in(args, kwargs):
                self.origins.copy(self.tape.node_of(tensor), source)
        return result

    def _finish(
        self, node: fx.Node, result: Any, tensors: list[Tensor], grad: bool, module: nn.Module | None = None
    ) -> None:
        found = find_call(node, module)
        self.origins.inherit(node, found and found.spec, (self.tape.node_of(tensor) for tensor in tensors))
        if not grad:
            self.tape.frozen.add(node)
        self._bind(node, result)

    def _bind(self, node: fx.Node, result: Any) -> None:
        """Store the node of each resulting tensor; items of a tuple get getitem nodes."""
        node.meta.setdefault("value", describe(result))
        if isinstance(result, Tensor):
            self.tape.nodes[result] = node
            return
        parts = split_container(result)
        by_name = not isinstance(result, tuple | list | Mapping)
        for key, item in zip(*parts[:2], strict=True) if parts is not None else ():
            if not flatten(item, "", is_tensor)[0]:
                continue
            place = result._fields.index(key) if hasattr(result, "_fields") else key
            pick = getattr if by_name else operator.getitem
            part = self.tape.add_node("call_function", pick, (node, place), {}, True)
            self.origins.copy(node, part)
            if node in self.tape.frozen:
                self.tape.frozen.add(part)
            self._bind(part, item)

    def _run(
        self, func: Any, target: Any, owner: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = self._execute(skip_work, (target, args, kwargs), {}) if self.dry else None
        return self._execute(func, (*owner, *args), kwargs) if result is None else result

    def _execute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        grad = torch.is_grad_enabled()
        self.quiet += 1
        torch._C._set_grad_enabled(False)
        try:
            return func(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(grad)
            self.quiet -= 1

    def _read_property(self, func: Any, args: tuple[Any, ...]) -> Any:
        name, tensor = func.__self__.__name__, args[0]
        if name == "dtype" and tensor.is_floating_point() and self.reads_dtype is None:
            reader = sys._getframe(2).f_code.co_filename  # frame 1 is __torch_function__
            self.reads_dtype = None if is_foreign(reader) else find_source()
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
        if name != "data" or not isinstance(value, Tensor):
            return self._execute(func, args, {})
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            raise CaptureError(
                "the .data of a tensor was set to another shape or dtype, which a graph cannot represent",
                where=running_line(),
                hint="make a new tensor instead of assigning to .data",
            )
        self.writes.save([tensor])
        node = self.tape.without_grad("call_function", Tensor.copy_, (tensor, value), {})
        node.meta.update(mutates=True, value=describe(tensor))
        self.tape.owned.add(node)
        self.origins.copy(self.tape.node_of(value), node)
        self.tape.nodes[tensor] = node
        return self._execute(Tensor.copy_, (tensor, value), {})

    def _read_size(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if name in ("numel", "nelement"):
            value = tensor.numel()
            expression = Expression(Tensor.numel, (self.tape.node_of(tensor),), value)
            return SizeInt.of(value, expression, self)
        if name == "__len__":
            size = self._size(tensor, 0) if tensor.dim() else func(*args)
            if isinstance(size, SizeInt):
                self.size_lost(size, "len() of a tensor")
            return plain_sizes(size)
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim is None:
            return self._shape(tensor)
        return func(*args, **kwargs) if isinstance(dim, str) else self._size(tensor, dim)

    def length(self, tensor: Tensor) -> SizeInt | None:
        """``len(tensor)`` as a size, or None if nothing is being recorded."""
        if self.quiet or self.closed or not tensor.dim():
            return None
        with torch._C.DisableTorchFunction():
            return self._size(tensor, 0)

    def _shape(self, tensor: Tensor) -> torch.Size:
        return torch.Size([self._size(tensor, dim) for dim in range(tensor.dim())])

    def _size(self, tensor: Tensor, dim: int) -> SizeInt:
        value = tensor.size(dim)  # torch's own error for a missing dimension
        place = plain_sizes(dim) % tensor.dim()
        node = self.tape.node_of(tensor)
        expression = self._sizes.get((node, place))
        if expression is None:
            expression = self._sizes[(node, place)] = Expression(Tensor.size, (node, place), value)
        made: SizeInt = SizeInt.of(value, expression, self)
        return made

    def size_lost(self, size: Any, how: str) -> None:
        """A size became a plain number: the graph keeps the example's; an error if the size depends on data."""
        if self.quiet or self.closed:
            return
        if self._counts_data(size):
            self._data_read(f"{how}, where the size depends on the data", [])
        self.lost.append(LostSize(how, plain_sizes(size), find_source()))

    def size_decided(
        self, size: Any, function: Callable[..., bool], operands: tuple[Any, ...], result: bool
    ) -> None:
        """Python branched on a size: add a check to the graph that the branch would be the same."""
        if self.quiet or self.closed:
            return
        if any(map(self._counts_data, operands)):
            self._data_read("a branch on a size that depends on the data", [])
        comparing = sys._getframe(2)  # frame 1 is the size's own method
        if is_foreign(comparing.f_code.co_filename):
            return  # torch is checking its arguments
        key = (function, *(getattr(operand, "expression", operand) for operand in operands))
        if key not in self._decided:
            self._decided.add(key)
            taken = self.tape.call(function, *map(self.tape.argument, operands), value=result)
            self.tape.call(check_branch, taken, result, str(find_source()))

    def _counts_data(self, size: Any) -> bool:
        """Whether a size is that of a result whose shape depends on the data, such as ``nonzero``."""
        operands = getattr(getattr(size, "expression", size), "operands", ()) if self.origins.counted else ()
        return any(operand in self.origins.counted or self._counts_data(operand) for operand in operands)

    def _reads_numbers(self, func: Any, args: Any, kwargs: Any) -> bool:
        call = (func, plain_sizes(args), plain_sizes(kwargs))
        return bool(self._execute(self.origins.reads_numbers, call, {}))

    def _data_read(self, text: str, tensors: list[Tensor]) -> None:
        """Numbers are read from the graph, or (without tensors) a size that depends on data."""
        nodes = {self.tape.node_of(tensor) for tensor in tensors}
        if nodes & self.origins.data or not tensors:
            if self.on_data == "refuse":
                self.refusal = DataDependenceError.of(text)
                raise self.refusal
            self.note("data", f"{text} was fixed to its value for the example inputs")
        elif nodes & self.origins.random:
            self.note("random", f"a random choice was fixed: {text}")

    def note(self, kind: NoteKind, text: str) -> None:
        """Add to the report, with the model's own line."""
        self.report.add(Note(kind, text, find_source()))


def _looks_in_place(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _distinct(result: Any, inputs: list[Tensor]) -> Any:
    """A separate tensor object for a result that is the input itself (dropout in eval mode, a cast to its own type)."""
    if isinstance(result, Tensor):
        return result.detach() if any(result is tensor for tensor in inputs) else result
    if type(result) in (tuple, list):
        return type(result)([_distinct(item, inputs) for item in result])
    return result
