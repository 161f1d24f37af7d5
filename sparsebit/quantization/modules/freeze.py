"""Weights stored as quantized values: remove float weights from a quantized graph, and restore them.

The parameter of a frozen weight is replaced by a tensor without memory (on the meta device). It is a plain attribute,
so shape and dtype can be read, and neither ``state_dict`` nor ``.to()`` see it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Container
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.numerics.packed import packed_shape
from sparsebit.quantization.modules.qmodules import QuantOpr
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.quantizers.frozen import Frozen
from sparsebit.storage.tensor_file import Deferred

Place = tuple[nn.Module, str]
LARGE = 2**24  # bytes of a weight


@dataclass
class _Reads:
    """The path of a weight, the quantizers that read it, and whether anything reads it unquantized."""

    places: list[Place] = field(default_factory=list)
    quantizers: dict[str, Quantizer] = field(default_factory=dict)  # by the path they are installed at
    in_float: bool = False

    @property
    def alone(self) -> Quantizer | None:
        """The quantizer of the weight, if it has exactly one and nothing else reads it."""
        found = {id(quantizer): quantizer for quantizer in self.quantizers.values()}
        return next(iter(found.values())) if len(found) == 1 and not self.in_float else None


def freeze_weights(gm: GraphModule, only: Container[str] | None = None) -> list[str]:
    """Replace float weights by their quantized values, ``only`` those of these names; returns the names.

    A weight stays in float if something reads it without its quantizer, if two quantizers read it differently, or if
    the operator is a user's own ``QuantOpr``.
    """
    frozen = []
    for reads in _weights(gm).values():
        quantizer = reads.alone
        if quantizer is None or isinstance(quantizer, Frozen) or quantizer.fake_fused:
            continue
        if only is not None and quantizer.name not in only:
            continue
        weight = getattr(*reads.places[0])
        held = Frozen(quantizer, weight)
        _install(gm, reads, held)
        # The remaining tensor keeps the dtype of the weight, and whether it requires a gradient.
        blank = torch.empty(
            weight.shape, dtype=weight.dtype, device="meta", requires_grad=weight.requires_grad
        )
        _put(reads.places, blank)
        frozen.append(quantizer.name)
    return frozen


def thaw_weights(gm: GraphModule, only: Container[str] | None = None) -> list[str]:
    """Convert frozen weights to float weights on their grids, with plain quantizers; returns their names."""
    thawed, found = [], _weights(gm)
    for key in list(found):
        reads = found.pop(key)  # so that one weight's packed values are gone before the next weight is made
        held = reads.alone
        if isinstance(held, Frozen) and (only is None or held.name in only):
            trained = getattr(*reads.places[0]).requires_grad
            quantizer, weight = held.thawed()
            _install(gm, reads, quantizer)
            _put(reads.places, nn.Parameter(weight, requires_grad=trained))
            thawed.append(held.name)
            if weight.nbytes >= LARGE:
                _give_back_memory()
    return thawed


def packed_state(gm: GraphModule) -> tuple[dict[str, Any], list[str]]:
    """The state dict as if quantized weights were frozen, and their names; the model is not changed.

    Only for weights whose quantizer is on and has nothing left to learn: plain quantizers, and AdaRound.
    """
    state: dict[str, Any] = dict(gm.state_dict())
    paths: dict[int, list[str]] = {}
    for path, module in gm.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(f"{path}." if path else "")
    names = []
    for reads in _weights(gm).values():
        quantizer = reads.alone
        if quantizer is None or not quantizer.is_enable or quantizer.TYPE not in ("uniform", "adaround"):
            continue
        weight = getattr(*reads.places[0])
        if not isinstance(weight, nn.Parameter):  # a constant, which the state dict does not have
            continue
        held: dict[str, Any] = dict(Frozen(quantizer, weight, pack=False).state_dict())
        # Packed when it is written: packing all at once would need memory for another copy.
        pack = partial(lambda quantizer, weight: Frozen(quantizer, weight).packed, quantizer, weight)
        held["packed"] = Deferred(torch.uint8, packed_shape(weight.shape, quantizer.code), pack)
        for module, attribute in reads.places:
            for prefix in paths[id(module)]:
                state.pop(f"{prefix}{attribute}", None)
        for prefix in paths[id(quantizer)]:
            for key in quantizer.state_dict():
                state.pop(f"{prefix}{key}", None)
            state |= {f"{prefix}{key}": value for key, value in held.items()}
        names.append(quantizer.name)
    return state, names


def freezable_weights(gm: GraphModule) -> list[Tensor]:
    """The weights that are frozen or can be, in their current form."""
    return [getattr(*reads.places[0]) for reads in _weights(gm).values() if reads.alone is not None]


def frozen_names(gm: GraphModule) -> list[str]:
    """The names of the frozen weights."""
    return sorted({module.name for module in gm.modules() if isinstance(module, Frozen)})


def _give_back_memory() -> None:
    """Return freed memory to the system: glibc keeps memory between small allocations, 16 MB for each weight."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _install(gm: GraphModule, reads: _Reads, quantizer: Quantizer) -> None:
    for path in reads.quantizers:
        owner, _, name = path.rpartition(".")
        setattr(gm.get_submodule(owner), name, quantizer)


def _put(places: list[Place], value: Tensor) -> None:
    for module, name in places:
        module._parameters.pop(name, None)
        module._buffers.pop(name, None)
        module.__dict__.pop(name, None)
        setattr(module, name, value)


def _weights(gm: GraphModule) -> dict[int, _Reads]:
    """Every weight that a weight's quantizer reads, by the identity of its tensor."""
    found: dict[int, _Reads] = {}
    for node in gm.graph.nodes:
        target = str(node.target)
        if node.op == "get_attr":
            _find_in_graph(gm, node, found)
        elif node.op == "call_module":
            for path, module in gm.get_submodule(target).named_modules(prefix=target):
                if not isinstance(module, Quantizer):
                    _find_in_module(module, path, found)
    return {key: reads for key, reads in found.items() if reads.quantizers}


def _find_in_graph(gm: GraphModule, node: Node, found: dict[int, _Reads]) -> None:
    """A weight that the graph reads by name, for quantizers and others."""
    owner, _, name = str(node.target).rpartition(".")
    weight = getattr(gm.get_submodule(owner), name)
    if not isinstance(weight, Tensor):
        return
    reads = found.setdefault(id(weight), _Reads())
    reads.places.append((gm.get_submodule(owner), name))
    for user in node.users:
        module = gm.get_submodule(str(user.target)) if user.op == "call_module" else None
        if isinstance(module, Quantizer) and module.side == "W":
            reads.quantizers[str(user.target)] = module
        else:
            reads.in_float = True


def _find_in_module(module: nn.Module, path: str, found: dict[int, _Reads]) -> None:
    """The parameters of a layer, and its weight if that is a plain attribute."""
    quantizer = getattr(module, "weight_quantizer", None)
    for name, weight in (*module._parameters.items(), ("weight", vars(module).get("weight"))):
        if not isinstance(weight, Tensor):
            continue
        reads = found.setdefault(id(weight), _Reads())
        reads.places.append((module, name))
        if name == "weight" and isinstance(quantizer, Quantizer) and not isinstance(module, QuantOpr):
            reads.quantizers[f"{path}.weight_quantizer"] = quantizer
        else:
            reads.in_float = True
