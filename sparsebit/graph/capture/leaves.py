"""Which modules stay whole in the graph."""

from __future__ import annotations

from fnmatch import fnmatchcase
from types import CodeType

from torch import nn
from torch.nn.utils import parametrize

# Containers of torch.nn, and modules whose inside has to be visible: they hide projections, matmuls and softmax.
OPENED = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
    nn.ParameterDict,
    nn.MultiheadAttention,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
# What a subclass may define and still be the torch.nn module it derives from.
_HARMLESS = {
    *("__init__", "__module__", "__doc__", "__annotations__", "__qualname__", "__firstlineno__", "__dict__"),
    *("__weakref__", "__static_attributes__", "__constants__", "__repr__", "extra_repr", "reset_parameters"),
    *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__", "__slots__", "__hash__", "_get_name"),
}


def matches_any(name: str, patterns: list[str] | tuple[str, ...]) -> bool:
    """Whether a dotted module name matches one of the fnmatch patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def torch_base(kind: type) -> type | None:
    """The ``torch.nn`` class that a module class behaves as: itself, or the base whose methods it leaves alone."""
    for index, base in enumerate(kind.__mro__):
        if base.__module__.startswith("torch.nn."):
            if base is nn.Module:
                return None
            overridden = {name for below in kind.__mro__[:index] for name in vars(below)} - _HARMLESS
            return base if not any(hasattr(base, name) for name in overridden) else None
    return None


def has_hooks(module: nn.Module) -> bool:
    """Whether calling a module runs more than its forward."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def is_torch_leaf(module: nn.Module) -> bool:
    """Whether a module is a plain ``torch.nn`` one that can stay one node."""
    if isinstance(module, OPENED) or parametrize.is_parametrized(module) or has_hooks(module):
        return False
    return torch_base(type(module)) is not None


def is_stochastic_leaf(module: nn.Module) -> bool:
    """Whether a user's module is DropPath-like: no state, no children, and a forward that asks for ``training``."""
    stateless = not any(True for _ in module.children()) and not any(True for _ in module.parameters())
    if not stateless or any(True for _ in module.buffers()) or has_hooks(module):
        return False
    code = getattr(type(module).forward, "__code__", None)
    return isinstance(code, CodeType) and "training" in code.co_names
