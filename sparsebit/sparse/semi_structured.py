"""Linear layers with 2:4 weights on the GPU: torch's semi-structured kernels, in the layers where they are faster.

They are faster with many vectors and slower with few, so every layer is measured with the number of vectors in an
example. Products in int8 (``int8_linear``) are measured too, where the caller allows them.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from sparsebit.display import as_text, in_notebook
from sparsebit.errors import SparsebitError, with_article
from sparsebit.graph.run import evaluating
from sparsebit.sparse.int8_linear import SIZES, Int8Linear

# Medians of so many rounds; in each, both products are called so often, one after the other.
ROUNDS, CALLS = 7, 10

_times: dict[tuple[Any, ...], tuple[float, ...]] = {}  # dense, 2:4 and int8, measured once in a process


@dataclass(frozen=True)
class SparseLinear:
    """The decision for one layer.

    Attributes:
        layer: its dotted name.
        shape: of its weight, (outputs, inputs).
        vectors: how many it multiplies in one call of the model.
        dense_us, sparse_us, int8_us: microseconds of the dense and the 2:4 product, and of that in int8, in one call of
            the model; None if it was not measured.
        used: whether the layer has a 2:4 kernel now.
        int8: whether that kernel multiplies in int8.
        reason: why it was not measured.
    """

    layer: str
    shape: tuple[int, ...]
    vectors: int = 0
    dense_us: float | None = None
    sparse_us: float | None = None
    int8_us: float | None = None
    used: bool = False
    int8: bool = False
    reason: str = ""


@dataclass(frozen=True)
class SparseKernelReport:
    """The linear layers of a model, and which of them have 2:4 kernels now."""

    layers: tuple[SparseLinear, ...]

    _repr_html_ = in_notebook

    def __rich__(self) -> Table:
        used = sum(layer.used for layer in self.layers)
        table = Table(title=f"2:4 kernels in {used} of {len(self.layers)} linear layers")
        for header in ("layer", "weight", "vectors", "dense us", "2:4 us", "2:4 int8 us", "chosen"):
            table.add_column(header, justify="right" if header.endswith("us") else "left")
        for layer in self.layers:
            measured = (layer.dense_us, layer.sparse_us, layer.int8_us)
            times = [f"{us:.1f}" if us is not None else "" for us in measured]
            chosen = layer.reason or ("2:4 int8" if layer.int8 else "2:4" if layer.used else "dense")
            weight = "x".join(str(size) for size in layer.shape)
            table.add_row(layer.layer, weight, str(layer.vectors or ""), *times, chosen)
        return table

    __str__ = as_text


def use_sparse_kernels(
    model: nn.Module,
    *example_inputs: Any,
    int8: bool = False,
    in_cuda_graph: bool = False,
    **example_kwargs: Any,
) -> SparseKernelReport:
    """Give linear layers with 2:4 weights the GPU's 2:4 kernels if these are faster on inputs like the example.

    The model is changed, for inference: the weights of these layers become compressed tensors without gradients. Save
    it before. The products of each layer are measured with as many vectors as the example has; a measurement is reused
    for layers of the same size in this process.

    Args:
        model: on a GPU, in float16 or bfloat16. Only ``nn.Linear`` layers are considered.
        example_inputs, example_kwargs: the arguments of one call, of the size that the model will be used with.
        int8: also measure products in int8, and use them where they are the fastest. They round weights by output and
            inputs by vector, so results change: evaluate the model afterwards. Layers with hooks, and layers whose
            attributes the model reads, such as ``layer.weight.dtype``, are left out.
        in_cuda_graph: the model will run in a CUDA graph, as with ``torch.compile(model, mode="reduce-overhead")``, so
            measure the products without the time to launch them. A launch of a 2:4 kernel takes longer than many
            products.

    Returns:
        Every linear layer with its times and the choice; print it.
    """
    if not isinstance(model, nn.Module):
        raise SparsebitError(
            "use_sparse_kernels takes a torch.nn.Module", got=with_article(type(model).__name__)
        )
    found = {name or "(model)": module for name, module in model.named_modules() if is_plain_linear(module)}
    refused = {name: reason for name, module in found.items() if (reason := why_dense(module.weight))}
    if len(refused) == len(found):
        raise _refusal(refused)
    candidates = {name: module for name, module in found.items() if name not in refused}
    vectors = count_vectors(model, candidates, example_inputs, example_kwargs)
    bare = find_bare(model, candidates, example_inputs, example_kwargs) if int8 else set[str]()
    layers = []
    for name, module in found.items():
        shape = tuple(module.weight.shape)
        if name in refused:
            layers.append(SparseLinear(name, shape, reason=refused[name]))
        elif not vectors[name]:
            layers.append(SparseLinear(name, shape, reason="dense: the example does not use it"))
        else:
            layers.append(_choose(model, name, module, vectors[name], name in bare, in_cuda_graph))
    return SparseKernelReport(tuple(layers))


def is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module multiplies by its stored ``weight`` directly."""
    return (
        isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        and not is_parametrized(module)
    )


def is_two_of_four(weight: Tensor) -> bool:
    """Whether at most two of every four consecutive weights along the inputs are nonzero.

    Example:
        >>> is_two_of_four(torch.tensor([[0.0, 1.0, 2.0, 0.0]])), is_two_of_four(torch.ones(1, 4))
        (True, False)
    """
    if weight.dim() != 2 or weight.shape[1] % 4:
        return False
    return bool(((weight.detach().reshape(-1, 4) != 0).sum(1) <= 2).all())


def why_dense(weight: Tensor) -> str:
    """The reason why a weight cannot use the kernels; empty if it can."""
    if not weight.is_cuda:
        return f"dense: on {weight.device}, not on a GPU"
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return f"dense: {str(weight.dtype).removeprefix('torch.')}, not float16 or bfloat16"
    return "" if is_two_of_four(weight) else "dense: the weight is not 2:4"


def count_vectors(
    model: nn.Module, layers: Mapping[str, nn.Module], inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Counter[int]]:
    """How many vectors each layer multiplies in one call of the model, and how often it is called."""
    if not inputs and not kwargs:
        raise SparsebitError(
            "which kernel is faster depends on how many vectors a layer is given",
            expected="example inputs of the size that the model will be used with",
            hint="use_sparse_kernels(model, batch)",
        )
    seen: dict[str, Counter[int]] = {name: Counter() for name in layers}

    def count(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[0] if args else kwargs["input"]
            seen[name].update([x.numel() // x.shape[-1]])

        return look

    handles = [
        module.register_forward_pre_hook(count(name), with_kwargs=True) for name, module in layers.items()
    ]
    try:
        with evaluating(model), torch.no_grad():
            model(*inputs, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


class _Watched(nn.Module):
    """Stands in for a layer, and notes when its attributes are read."""

    def __init__(self, layer: nn.Module, note: Callable[[], None]) -> None:
        super().__init__()
        self.__dict__.update(layer=layer, note=note)  # the layer is no child of it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        self.note()
        return getattr(self.layer, name)


def find_bare(
    model: nn.Module, layers: Mapping[str, nn.Module], inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> set[str]:
    """The layers that have no hooks, and that the model does nothing with but call them."""
    bare = {
        name for name, layer in layers.items() if not layer._forward_hooks and not layer._forward_pre_hooks
    }
    watched = {layers[name]: _Watched(layers[name], functools.partial(bare.discard, name)) for name in bare}
    places = [
        (parent, own, watched[child])
        for parent in model.modules()
        for own, child in parent._modules.items()
        if child in watched
    ]
    try:
        for parent, own, one in places:
            parent._modules[own] = one
        with evaluating(model), torch.no_grad():
            model(*inputs, **kwargs)
    finally:
        for parent, own, one in places:
            parent._modules[own] = one.layer
    return bare


def compress(weight: Tensor) -> Tensor:
    """A 2:4 weight as nonzero values and their positions; raises RuntimeError for sizes that kernels do not support."""
    with warnings.catch_warnings():
        # Of the class, whose objects no caller sees: that its own methods may change.
        warnings.filterwarnings("ignore", "The PyTorch API of SparseSemiStructuredTensor", UserWarning)
        compressed: Tensor = torch.sparse.to_sparse_semi_structured(weight.detach().contiguous())
    return compressed


def measure_products(
    weight: Tensor,
    compressed: Tensor,
    bias: Tensor | None,
    vectors: int,
    layer: nn.Module | None = None,
    in_cuda_graph: bool = False,
) -> tuple[float, ...]:
    """Median microseconds of the dense product, the 2:4 product and that of an int8 layer, if there is one.

    They are called in turns, in the way the model calls them.
    """
    kind = (weight.dtype, weight.device, bias is not None, layer is not None, in_cuda_graph)
    key = (tuple(weight.shape), vectors, *kind)
    if key not in _times:
        x = torch.randn(vectors, weight.shape[1], dtype=weight.dtype, device=weight.device)
        ways: list[Callable[[Tensor], Tensor]] = [
            functools.partial(F.linear, weight=held, bias=bias) for held in (weight, compressed)
        ]
        ways += [] if layer is None else [layer]
        spans: list[list[float]] = [[] for _ in ways]
        with torch.no_grad(), torch.cuda.device(weight.device):
            products = [_repeat(way, x, in_cuda_graph) for way in ways]
            for _ in range(ROUNDS + 1):
                for multiply, times in zip(products, spans, strict=True):
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    multiply()
                    end.record()
                    end.synchronize()
                    times.append(1000 * start.elapsed_time(end) / CALLS)
        # The first round warms up.
        _times[key] = tuple(sorted(times[1:])[ROUNDS // 2] for times in spans)
    return _times[key]


def _repeat(multiply: Callable[[Tensor], Tensor], x: Tensor, in_cuda_graph: bool) -> Callable[[], None]:
    """A function that makes the same product ``CALLS`` times, or replays a graph that does."""

    def repeat() -> None:
        for _ in range(CALLS):
            multiply(x)

    if not in_cuda_graph:
        return repeat
    repeat()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeat()
    return graph.replay


def _choose(
    model: nn.Module, name: str, module: Any, vectors: Counter[int], int8: bool, in_cuda_graph: bool
) -> SparseLinear:
    """Measure one layer, and use the product that is the fastest over one call of the model."""
    weight, total = module.weight, sum(vectors.elements())
    shape = tuple(weight.shape)
    # A model that is the layer cannot get another one in its place.
    takes_int8 = int8 and module is not model and not any(size % SIZES for size in shape)
    try:
        compressed = compress(weight)
        rounded = Int8Linear(weight, module.bias) if takes_int8 else None
        times = {
            count: measure_products(weight, compressed, module.bias, count, rounded, in_cuda_graph)
            for count in vectors
        }
    except RuntimeError as error:  # torch says so for sizes that its kernels do not take
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return SparseLinear(name, shape, total, reason=f"dense: {reason}")
    us = [
        sum(calls * times[n][way] for n, calls in vectors.items()) for way in range(2 + (rounded is not None))
    ]
    fastest = us.index(min(us))
    if fastest == 1:
        module.weight = nn.Parameter(compressed, requires_grad=False)
    elif fastest == 2:
        assert rounded is not None
        rounded.train(module.training)
        for parent in model.modules():
            for own in [own for own, child in parent._modules.items() if child is module]:
                setattr(parent, own, rounded)
    in_int8 = us[2] if rounded is not None else None
    return SparseLinear(name, shape, total, us[0], us[1], in_int8, used=fastest > 0, int8=fastest == 2)


def _refusal(refused: Mapping[str, str]) -> SparsebitError:
    if not refused:
        return SparsebitError(
            "this model has no nn.Linear layer to give 2:4 kernels to",
            hint="call it on the float module, not on a quantized or captured one with layers of its own",
        )
    shown = [f"{name} ({reason.removeprefix('dense: ')})" for name, reason in list(refused.items())[:3]]
    more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
    return SparsebitError(
        "no linear layer can have 2:4 kernels",
        expected="a model on a GPU, in float16 or bfloat16, with weights of which two of every four are zero",
        got=", ".join(shown) + more,
        hint="prune it with SPARSER.TYPE nm and NM 2:4, then model.to('cuda', torch.bfloat16)",
    )
