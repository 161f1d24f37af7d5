"""Operators with access to their quantizers: the library's own leaves, and those that users register.

A leaf of the captured graph whose weight or input is quantized is replaced by a copy of a subclass, ``QConv2d`` for
``Conv2d``. It shares the parameters under the same names and shows its quantizers as ``weight_quantizer`` and
``input_quantizer``. To rewrite an operator with quantizers inside, derive from ``QuantOpr`` and register the class
for the operator it replaces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.batches import Call
from sparsebit.errors import PlugInError, RegistryError, SparsebitError, running_plug_in
from sparsebit.graph.capture.snapshot import undisturbed
from sparsebit.graph.ops import OPS
from sparsebit.graph.ops.lookup import is_own_class
from sparsebit.graph.passes.edit import shallow_copy
from sparsebit.graph.run import evaluating
from sparsebit.graph.value import TensorInfo, describe, kind_text
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.quantizers.recomputed import recompute_input
from sparsebit.quantization.switches import switch

Kind = TypeVar("Kind", bound="type[nn.Module]")

QMODULES: dict[object, type[nn.Module]] = {}


def register_qmodule(sources: Sequence[object], *, replace: bool = False) -> Callable[[Kind], Kind]:
    """Class decorator: use this class in place of every one of ``sources`` in a model.

    A source is a module class, a function, or a method such as ``torch.Tensor.softmax``. The class is constructed with
    ``(org_module, config=None)`` for a module, and with ``(node, config)`` for a function, whose constant arguments
    are then in ``node.args`` and ``node.kwargs``; it is called with the tensors only.
    """

    def add(cls: Kind) -> Kind:
        if not isinstance(cls, type) or not issubclass(cls, nn.Module):
            raise RegistryError(
                f"{cls!r:.80} is not a module", hint="derive it from sparsebit.quantization.QuantOpr"
            )
        single = isinstance(sources, type | str) or not isinstance(sources, Iterable)
        wrong = [sources] if single else [one for one in sources if not _is_source(one)]
        if wrong or not sources:
            raise RegistryError(
                f"{wrong[0] if wrong else sources!r:.80} is not a source",
                expected="a list of module classes, functions or methods, such as [nn.Linear, torch.softmax]",
            )
        for source in sources:
            if source in QMODULES and not replace:
                raise RegistryError(
                    f"{source!r} is already replaced by {QMODULES[source].__name__}",
                    hint="pass replace=True to override it on purpose",
                )
            QMODULES[source] = cls
        return cls

    return add


def _is_source(source: object) -> bool:
    return callable(source) and not isinstance(source, nn.Module)


def unregister_qmodule(cls: type[nn.Module]) -> None:
    """Remove a registered class."""
    for source in [source for source, found in QMODULES.items() if found is cls]:
        del QMODULES[source]


def registered_for(gm: GraphModule, node: Node) -> type[nn.Module] | None:
    """The user's class for a node, if there is one."""
    if node.op == "call_module":
        return QMODULES.get(type(gm.get_submodule(str(node.target))))
    return QMODULES.get(node.target) if node.op == "call_function" else None


class QuantOpr(nn.Module):
    """Base class of operators with quantizers inside.

    A subclass keeps its weight, if any, as ``self.weight`` and calls ``self.input_quantizer`` and
    ``self.weight_quantizer`` in its ``forward``. Both are made from the config after construction.
    """

    input_quantizer: Quantizer
    weight_quantizer: Quantizer | None
    weight: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.weight = None
        self.input_quantizer = nn.Identity()  # type: ignore[assignment]  # until the config's are made
        self.weight_quantizer = nn.Identity()  # type: ignore[assignment]

    def set_quant(self, w_quant: bool = False, a_quant: bool = False) -> None:
        """Switch the quantizers on or off."""
        switch(self.input_quantizer, a_quant)
        switch(self.weight_quantizer, w_quant)


class Reader:
    """An operator with access to the quantizers of its inputs: a leaf of the graph, or a view of a function."""

    input_quantizers: tuple[Quantizer, ...] = ()

    @property
    def input_quantizer(self) -> Quantizer | None:
        """The quantizer on the first tensor it reads that has one."""
        return self.input_quantizers[0] if self.input_quantizers else None

    def set_quant(self, w_quant: bool = False, a_quant: bool = False) -> None:
        """Switch the weight's quantizer, and those on the tensors it reads, on or off."""
        for quantizer in self.input_quantizers:
            switch(quantizer, a_quant)
        switch(getattr(self, "weight_quantizer", None), w_quant)


@functools.cache
def _leaf_class(kind: type[nn.Module], run: Callable[..., Tensor] | None) -> type[nn.Module]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        assert run is not None
        weight = self.weight_quantizer(self.weight)
        hooks = recompute_input(args[0]) if args and not torch.compiler.is_compiling() else None
        if hooks is None:
            return run(self, weight, *args, **kwargs)
        with hooks:
            return run(self, weight, *args, **kwargs)

    methods: dict[str, Any] = (
        {} if run is None else {"forward": forward, "run_with_weight": staticmethod(run)}
    )
    return type(f"Q{kind.__name__}", (Reader, kind), {**methods, "stands_for": kind, "__module__": __name__})


def quantized_leaf(module: nn.Module, op: str | None, weight_quantizer: Quantizer | None) -> nn.Module:
    """A copy of a leaf that shares its parameters, shows its quantizers, and quantizes its weight if requested."""
    if isinstance(module, Reader):
        return module
    if weight_quantizer is not None and (op is None or OPS[op].with_weight is None):
        raise SparsebitError(
            f"{type(module).__name__} cannot be run with a quantized weight",
            hint="give its OpSpec with_weight=, a function of the module, the weight and the inputs",
        )
    run = OPS[op].with_weight if weight_quantizer is not None and op is not None else None
    kind = _leaf_class(type(module), run)  # type: ignore[arg-type]
    leaf: nn.Module = object.__new__(kind)
    leaf.__dict__.update(vars(shallow_copy(module)))  # not __init__, which would make new parameters
    if weight_quantizer is not None:
        leaf.weight_quantizer = weight_quantizer
    return leaf


def require_same_results(gm: GraphModule, example: Call) -> None:
    """Run what users registered on the example: ``with_weight`` must compute what its module computes.

    A class in place of an operator may compute something else, but of the same shape and type.
    """
    kinds: dict[nn.Module, Any] = {leaf: type(leaf) for leaf in gm.modules()}
    checks: dict[nn.Module, Callable[..., None]] = {
        leaf: _compare_results
        for leaf, kind in kinds.items()
        if hasattr(kind, "run_with_weight") and is_own_class(kind.stands_for)
    }
    for node in gm.graph.nodes:
        if node.op == "call_module" and isinstance(leaf := gm.get_submodule(str(node.target)), QuantOpr):
            checks[leaf] = functools.partial(_compare_kinds, node)
    if not any(example) or not checks:
        return
    with ExitStack() as stack:
        stack.enter_context(undisturbed(gm))
        stack.enter_context(evaluating(gm, if_possible=True))
        stack.enter_context(torch.no_grad())
        for leaf, check in checks.items():
            handle = leaf.register_forward_pre_hook(check, with_kwargs=True)
            stack.callback(handle.remove)
        gm(*example.args, **example.kwargs)


def _compare_kinds(node: Node, leaf: QuantOpr, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = type(leaf).__qualname__
    with running_plug_in(f"{name} cannot run in place of {node.name!r}", leaf):
        found = leaf.forward(*args, **kwargs)
    before = node.meta.get("value")
    if isinstance(before, TensorInfo) and (after := describe(found)) != before:
        raise PlugInError(
            f"the result of {name} cannot take the place of that of {node.name!r}",
            expected=kind_text(before),
            got=kind_text(after),
        )


def _compare_results(leaf: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = leaf.stands_for.__name__
    exact = leaf.stands_for.forward(leaf, *args, **kwargs)
    with running_plug_in(f"with_weight(module, weight, *inputs) of {name} failed", leaf.stands_for):
        found = leaf.run_with_weight(leaf, leaf.weight, *args, **kwargs)
    if not isinstance(found, Tensor) or (found.shape, found.dtype) != (exact.shape, exact.dtype):
        raise PlugInError(
            f"with_weight of {name} does not return a tensor like that of its forward",
            expected=kind_text(exact),
            got=kind_text(found),
        )
    if (found - exact).norm() > 1e-3 * exact.norm():
        raise PlugInError(
            f"with_weight of {name} does not compute what its forward computes, given the same weight",
            hint="register the operator with another with_weight=, or leave the layer in float",
        )


def show_inputs(leaf: nn.Module, quantizers: tuple[Quantizer, ...]) -> None:
    """Let a leaf show the quantizers of its inputs, without owning them."""
    object.__setattr__(leaf, "input_quantizers", quantizers)
