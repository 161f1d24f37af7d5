"""Linear layers with 2:4 weights on the GPU: cuSPARSELt's kernels, in the layers where they are faster.

They are faster with many vectors and slower with few, so every layer is measured with the numbers of vectors in an
example. Products in int8 (``int8_linear``) are measured too, where the caller allows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from sparsebit.display import as_text, in_notebook
from sparsebit.errors import SparsebitError, with_article
from sparsebit.graph.run import evaluating
from sparsebit.sparse.compressed_linear import CompressedLinear
from sparsebit.sparse.int8_linear import SIZES, Int8Linear

# Medians of so many rounds; in each, all products are called so often, one after the other.
ROUNDS, CALLS = 7, 10
# cuSPARSELt numbers its algorithms for a product from 0; on an H200 it has 21 for bfloat16 and 25 for int8.
ALGORITHMS = range(64)

# Measured once in a process: microseconds of a dense product and of those of layers, and the algorithms of these.
_measured: dict[tuple[Any, ...], tuple[tuple[float, ...], tuple[int, ...]]] = {}


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

    The model is changed, for inference: these layers are replaced by others with compressed weights, without gradients.
    Save it before. The products of each layer are measured with as many vectors as the example has, also to find the
    fastest of cuSPARSELt's algorithms. A measurement is reused for layers of the same size in this process.

    Layers with hooks stay dense, and so do layers whose attributes the model reads, such as ``layer.weight.dtype``.

    Args:
        model: on a GPU, in float16 or bfloat16. Only ``nn.Linear`` layers are considered.
        example_inputs, example_kwargs: the arguments of one call, of the size that the model will be used with.
        int8: also measure products in int8, and use them where they are the fastest. They round weights by output and
            inputs by vector, so results change: evaluate the model afterwards.
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
    layers = []
    for name, module in found.items():
        shape = tuple(module.weight.shape)
        reason = refused.get(name) or why_not_replaced(model, module, vectors.get(name))
        layers.append(
            SparseLinear(name, shape, reason=reason)
            if reason
            else _choose(model, name, module, vectors[name], int8, in_cuda_graph)
        )
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


def why_not_replaced(model: nn.Module, layer: nn.Module, vectors: Counter[int] | None) -> str:
    """The reason why another layer cannot stand in the place of one; empty if it can."""
    if layer is model:
        return "dense: the model is this layer; nn.Sequential(model) can hold another one"
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "dense: the layer has hooks"
    if vectors is None:
        return "dense: the model reads attributes of the layer"
    return "" if vectors else "dense: the example does not use it"


class _Watched(nn.Module):
    """Stands in for a layer, counts its vectors, and notes when its attributes are read."""

    def __init__(self, layer: nn.Module, vectors: Counter[int]) -> None:
        super().__init__()
        self.__dict__.update(layer=layer, vectors=vectors, is_read=False)  # the layer is no child of it

    def forward(self, input: Tensor) -> Any:
        self.vectors.update([input.numel() // input.shape[-1]])
        return self.layer(input)

    def __getattr__(self, name: str) -> Any:
        self.__dict__["is_read"] = True
        return getattr(self.layer, name)


def count_vectors(
    model: nn.Module, layers: Mapping[str, nn.Module], inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Counter[int]]:
    """How many vectors each layer multiplies in one call of the model, and how often.

    Layers that the model does more with than to call them are left out.
    """
    if not inputs and not kwargs:
        raise SparsebitError(
            "which kernel is faster depends on how many vectors a layer is given",
            expected="example inputs of the size that the model will be used with",
            hint="use_sparse_kernels(model, batch)",
        )
    watched = {layer: _Watched(layer, Counter()) for layer in layers.values()}
    _exchange(model, watched)
    try:
        with evaluating(model), torch.no_grad():
            model(*inputs, **kwargs)
    finally:
        _exchange(model, {one: layer for layer, one in watched.items()})
    return {
        name: watched[layer].vectors
        for name, layer in layers.items()
        if not watched[layer].__dict__["is_read"]
    }


def _exchange(model: nn.Module, others: Mapping[Any, nn.Module]) -> None:
    """Put other modules in the places of some, wherever the model holds them."""
    for parent in list(model.modules()):
        for own, child in parent._modules.items():
            if child in others:
                parent._modules[own] = others[child]


def measure_products(
    linear: nn.Linear, layers: list[CompressedLinear], vectors: int, in_cuda_graph: bool
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Median microseconds of the dense product and those of other layers, and the algorithms of these.

    They are called in turns, in the way the model calls them.
    """
    weight, kinds = linear.weight, tuple(type(layer) for layer in layers)
    where = (weight.dtype, weight.device, linear.bias is not None, in_cuda_graph)
    key = (tuple(weight.shape), vectors, kinds, *where)
    if key not in _measured:
        x = torch.randn(vectors, weight.shape[1], dtype=weight.dtype, device=weight.device)
        with torch.no_grad(), torch.cuda.device(weight.device):
            algorithms = tuple(find_algorithm(layer, x) for layer in layers)
            for layer, algorithm in zip(layers, algorithms, strict=True):
                layer.algorithms = {vectors: algorithm}
            products = [_repeat(way, x, in_cuda_graph) for way in (linear, *layers)]
            rounds = [[_time(multiply) for multiply in products] for _ in range(ROUNDS + 1)]
        # The first round warms up.
        _measured[key] = (
            tuple(sorted(times)[ROUNDS // 2] for times in zip(*rounds[1:], strict=True)),
            algorithms,
        )
    return _measured[key]


def find_algorithm(layer: CompressedLinear, x: Tensor) -> int:
    """The number of cuSPARSELt's fastest algorithm for a product, without the time to launch it.

    The default, 0, takes up to three times as long. Raises RuntimeError for sizes that none takes.
    """
    times: dict[int, float] = {}
    for algorithm in ALGORITHMS:
        layer.algorithms = {len(x): algorithm}
        try:
            replay = _repeat(layer, x, in_cuda_graph=True)
        except RuntimeError:  # there is no algorithm of this number
            if not times:
                raise
            break
        times[algorithm] = min(_time(replay) for _ in range(3))
    return min(times, key=times.__getitem__)


def _time(function: Callable[[], None]) -> float:
    """Microseconds of one of ``CALLS`` calls."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return 1000 * milliseconds / CALLS


def _repeat(multiply: Callable[[Tensor], Tensor], x: Tensor, in_cuda_graph: bool) -> Callable[[], None]:
    """A function that makes the same product ``CALLS`` times, or replays a graph that does."""

    def repeat() -> None:
        for _ in range(CALLS):
            multiply(x)

    if not in_cuda_graph:
        return repeat
    multiply(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeat()
    return graph.replay


def _choose(
    model: nn.Module, name: str, module: nn.Linear, vectors: Counter[int], int8: bool, in_cuda_graph: bool
) -> SparseLinear:
    """Measure one layer, and use the product that is the fastest over one call of the model."""
    shape, total = tuple(module.weight.shape), sum(vectors.elements())
    kinds: list[type[CompressedLinear]] = [CompressedLinear]
    kinds += [Int8Linear] * (int8 and not any(size % SIZES for size in shape))
    try:
        layers = [kind(module.weight, module.bias).train(module.training) for kind in kinds]
        found = {count: measure_products(module, layers, count, in_cuda_graph) for count in vectors}
    except RuntimeError as error:  # torch says so for sizes that its kernels do not take
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return SparseLinear(name, shape, total, reason=f"dense: {reason}")
    us = [
        sum(calls * found[count][0][way] for count, calls in vectors.items()) for way in range(1 + len(kinds))
    ]
    fastest = us.index(min(us))
    if fastest:
        layer = layers[fastest - 1]
        layer.algorithms = {count: found[count][1][fastest - 1] for count in vectors}
        _exchange(model, {module: layer})
    in_int8 = us[2] if Int8Linear in kinds else None
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
