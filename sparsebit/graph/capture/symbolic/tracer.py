"""``QTracer``: symbolic tracing with ``torch.nn`` modules as leaves."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import fx, nn

from sparsebit.graph.capture.leaves import is_stochastic_leaf
from sparsebit.graph.capture.source import find_source
from sparsebit.graph.exclusive import CAPTURING, in_this_thread, replaced

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FACTORIES = ("zeros", "ones", "empty", "rand", "randn")  # take sizes one by one, which torch.fx cannot see


class QTracer(fx.Tracer):
    """A tracer for which ``torch.nn`` modules (but not ``Sequential``) and modules named by patterns are one node each.

    Args:
        skipped_module_names: fnmatch patterns on dotted module names; what matches becomes one node.

    Example:
        >>> tracer = QTracer(["head*"])
        >>> graph = tracer.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        >>> [node.op for node in graph.nodes]
        ['placeholder', 'call_module', 'call_module', 'output']
    """

    def __init__(self, skipped_module_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.skipped_module_names = list(skipped_module_names)
        self._paths: list[str] = [""]
        self._ours = in_this_thread()

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Trace; the parts of torch that ``torch.fx`` replaces meanwhile stay unchanged for other threads."""
        with CAPTURING, _factories_take_proxies():
            self._ours = in_this_thread()
            return super().trace(root, concrete_args)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """The value of a module's attribute: a node for a parameter of the traced model."""
        return super().getattr(attr, attr_val, parameter_proxy_cache) if self._ours() else attr_val

    def _probe(self, module_name: str, patterns: Iterable[str]) -> bool:
        """Whether a dotted module name matches one of the patterns."""
        return any(fnmatch(module_name, pattern) for pattern in patterns)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """``torch.nn`` modules other than ``Sequential``, and modules the user asked to skip."""
        from_torch = m.__module__.startswith("torch.nn") and not isinstance(m, nn.Sequential)
        return from_torch or self._probe(module_qualified_name, self.skipped_module_names)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A node with the model's own place on it."""
        node = super().create_node(*args, **kwargs)
        node.meta["source"] = find_source()
        node.meta["module_path"] = self._paths[-1]
        return node

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Trace into a module or make it a node, and keep track of the current module."""
        if not self._ours():
            return forward(*args, **kwargs)
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        self._paths.append(path)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._paths.pop()


class InputsTracer(QTracer):
    """The tracer of ``capture``: chooses which arguments are inputs, and which modules stay one node.

    Args:
        inputs: names of the arguments that become inputs.
        constants: values of other arguments; the rest keep their defaults.
        skip: as for ``QTracer``.
    """

    def __init__(self, inputs: Sequence[str], constants: Mapping[str, Any], skip: Sequence[str]) -> None:
        super().__init__(skip)
        self.inputs, self.constants = inputs, constants

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Also TorchScript modules, and modules that tracing would fix to one mode."""
        opaque = isinstance(m, torch.jit.ScriptModule) or is_stochastic_leaf(m)
        return opaque or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """A placeholder for every input; without one, ``if mask is not None`` takes the branch of the default."""
        parameters = inspect.signature(root_fn).parameters
        proxies = [self.create_proxy("placeholder", name, (), {}) for name in self.inputs]
        together = any(parameters[name].kind in VARIABLE for name in self.inputs)

        def call(root: nn.Module, *inputs: Any) -> Any:
            named = dict(self.constants) | dict(zip(self.inputs, inputs, strict=True))
            if together:
                return _taking_variable_arguments_as_one(root_fn)(root, **named)
            kinds = {name: parameters[name].kind for name in named}
            ahead = [name for name in parameters if kinds.get(name) is inspect.Parameter.POSITIONAL_ONLY]
            return root_fn(root, *(named.pop(name) for name in ahead), **named)

        return call, [self.root, *proxies]


def _taking_variable_arguments_as_one(function: Any) -> types.FunctionType:
    """A copy of a function that takes ``*args`` as one argument, and ``**kwargs`` likewise.

    Python would unpack a proxy, which has no length.
    """
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount + len(variable_parameters(function))
    flat = code.replace(
        co_argcount=count,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
    )
    return types.FunctionType(flat, function.__globals__, function.__name__, None, function.__closure__)


def variable_parameters(function: Any) -> list[str]:
    """The names of ``*args`` and ``**kwargs`` of a plain function; none if it is wrapped."""
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return []
    parameters = inspect.signature(function).parameters
    return [name for name, parameter in parameters.items() if parameter.kind in VARIABLE]


def _factories_take_proxies() -> contextlib.AbstractContextManager[None]:
    """Let ``torch.fx`` treat ``torch.zeros(x.shape[0], 8)`` like ``torch.zeros((x.shape[0], 8))``."""

    def gather(original: Any, *sizes: Any, **options: Any) -> Any:
        if len(sizes) > 1 and any(isinstance(size, fx.Proxy) for size in sizes):
            return original(sizes, **options)
        return original(*sizes, **options)

    originals = {name: getattr(torch, name) for name in _FACTORIES}
    return replaced(
        *((torch, name, functools.wraps(f)(functools.partial(gather, f))) for name, f in originals.items())
    )
