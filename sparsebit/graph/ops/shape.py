"""Data movement: every element of the result is a copy of an input element, or a fill."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.fx import Node

from sparsebit.graph.ops.spec import Answer, OpCall, OpSpec
from sparsebit.graph.ops.spellings import named


def _move(
    name: str,
    *targets: object,
    signature: str,
    activations: tuple[str, ...] = ("input",),
    view: bool = False,
    channels: str = "",
    moves: Answer = True,
    several: bool = False,
    integers: bool = False,
    sizes: str = "",
    overloads: Mapping[object, Callable[[Node], str]] | None = None,
    orders: Mapping[object, str] | None = None,
    attributes: Mapping[str, str] | None = None,
    implied: Mapping[object, Mapping[str, object]] | None = None,
    **aliases: str,
) -> OpSpec:
    overloads = overloads or {}
    return OpSpec(
        name=name,
        targets=tuple(target for target in named(name, *targets) if target not in overloads),
        family="shape",
        overloads=overloads,
        signature=signature,
        orders=orders or {},
        aliases=aliases,
        attributes=attributes or {},
        implied=implied or {},
        activations=activations,
        channels=channels,
        moves=moves,
        several=several,
        integers=integers,
        sizes=sizes,
        view=view,
    )


def _same(
    name: str, *targets: object, signature: str = "input", view: bool = True, moves: bool = True
) -> OpSpec:
    """The input again, in the same order."""
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="shape",
        signature=signature,
        moves=moves,
        keeps_zero=True,
        elementwise=True,
        view=view,
    )


def _view_or_bitcast(node: Node) -> str:
    """``x.view(torch.int32)`` reinterprets bits; with sizes it is a reshape."""
    target = node.args[1] if len(node.args) > 1 else node.kwargs.get("dtype")
    return "view_dtype" if isinstance(target, torch.dtype) else "reshape"


def _pads_with_its_own_numbers(call: OpCall) -> bool:
    """Padding with zero too: zero is a point of every grid."""
    return call.arguments.get("mode", "constant") != "constant" or not call.arguments.get("value")


_PADS = {
    getattr(nn, f"{kind}Pad{dims}d"): {"mode": mode}
    for kind, mode in (
        *(("Zero", "constant"), ("Constant", "constant"), ("Reflection", "reflect")),
        *(("Replication", "replicate"), ("Circular", "circular")),
    )
    for dims in (1, 2, 3)
} | {
    f"aten::{kind}_pad{dims}d": {"mode": mode}
    for kind, mode in (("reflection", "reflect"), ("replication", "replicate"))
    for dims in (1, 2, 3)
}

_RESHAPING = (
    _move(
        *("reshape", "view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::view_copy"),
        channels="reshape",
        sizes="shape",
        signature="input, *shape",
        view=True,
        overloads={torch.Tensor.view: _view_or_bitcast},
        size="shape",
    ),
    _move("view_dtype", "aten::view.dtype", signature="input, dtype", view=True, moves=False),
    _move("reshape_as", "view_as", signature="input, other", view=True, channels="reshape_as"),
    _move(
        "flatten",
        "ravel",
        nn.Flatten,
        signature="input, start_dim=0, end_dim=-1",
        view=True,
        channels="reshape",
    ),
    _move(
        *("unflatten", nn.Unflatten),
        channels="reshape",
        sizes="shape",
        signature="input, dim, sizes",
        view=True,
        attributes={"sizes": "unflattened_size"},
    ),
    _move("permute", "aten::permute_copy", signature="input, *dims", view=True, channels="move"),
    _move(
        *("transpose", "swapaxes", "swapdims", "aten::transpose_copy"),
        channels="move",
        signature="input, dim0, dim1",
        view=True,
        axis0="dim0",
        axis1="dim1",
    ),
    _move("t", "aten::numpy_T", "aten::t_copy", signature="input", view=True, channels="move"),
    _move("matrix_transpose", "aten::mT", signature="input", view=True, channels="move"),
    _move("adjoint", "aten::mH", "aten::matrix_H", signature="input", view=True, channels="move"),
    _move("movedim", "moveaxis", signature="input, source, destination", view=True, channels="move"),
    _move(
        "squeeze",
        "aten::squeeze_copy",
        signature="input, dim=None",
        view=True,
        channels="reshape",
        sizes="squeeze",
    ),
    _move("unsqueeze", "aten::unsqueeze_copy", signature="input, dim", view=True, channels="reshape"),
    _move("atleast_1d", signature="input", view=True, channels="move"),
    _move("atleast_2d", signature="input", view=True, channels="move"),
    _move("atleast_3d", signature="input", view=True, channels="move"),
    _move(
        "expand",
        "broadcast_to",
        "aten::expand_copy",
        signature="input, *size",
        view=True,
        shape="size",
        channels="expand",
        sizes="shape",
    ),
    _move("expand_as", signature="input, other", view=True, channels="elementwise"),
    _move(
        "broadcast_tensors",
        signature="*tensors",
        activations=("tensors",),
        view=True,
        moves=False,
        several=True,
    ),
    _move(
        "meshgrid",
        signature="*tensors, indexing=None",
        activations=("tensors",),
        view=True,
        moves=False,
        several=True,
    ),
    _move("as_strided", signature="input, size, stride, storage_offset=None", view=True, moves=False),
    _move("view_as_real", signature="input", view=True, moves=False),
    _move("view_as_complex", signature="input", view=True, moves=False),
)

_JOINING = (
    _move(
        "cat",
        "concat",
        "concatenate",
        signature="tensors, dim=0",
        activations=("tensors",),
        channels="cat",
        moves=False,
    ),
    _move("stack", signature="tensors, dim=0", activations=("tensors",), channels="stack", moves=False),
    _move("hstack", signature="tensors", activations=("tensors",), channels="hstack", moves=False),
    _move(
        "vstack", "row_stack", signature="tensors", activations=("tensors",), channels="vstack", moves=False
    ),
    _move("dstack", signature="tensors", activations=("tensors",), moves=False),
    _move("column_stack", signature="tensors", activations=("tensors",), moves=False),
    _move("block_diag", signature="*tensors", activations=("tensors",), moves=False),
    _move("cartesian_prod", signature="*tensors", activations=("tensors",), moves=False),
)

_CUTTING = (
    _move(
        *("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "aten::split_copy"),
        channels="move",
        sizes="split",
        several=True,
        signature="input, split_size, dim=0",
        view=True,
        split_size_or_sections="split_size",
        split_sizes="split_size",
    ),
    _move(
        "tensor_split",
        signature="input, indices_or_sections, dim=0",
        view=True,
        indices="indices_or_sections",
        sections="indices_or_sections",
        channels="move",
        sizes="split",
        several=True,
    ),
    _move(
        "chunk",
        "unsafe_chunk",
        signature="input, chunks, dim=0",
        view=True,
        channels="move",
        sizes="split",
        several=True,
    ),
    _move("unbind", "aten::unbind_copy", signature="input, dim=0", view=True, channels="pick", several=True),
    _move(
        "select",
        "aten::select_copy",
        signature="input, dim, index",
        view=True,
        channels="pick",
        sizes="slice",
    ),
    _move(
        "narrow",
        "narrow_copy",
        signature="input, dim, start, length",
        view=True,
        channels="move",
        sizes="slice",
    ),
    _move(
        *("slice", "aten::slice_copy"),
        channels="move",
        sizes="slice",
        signature="input, dim=0, start=None, end=None, step=1",
        view=True,
    ),
    _move(
        *("getitem", operator.getitem, torch.Tensor.__getitem__, "aten::index", "aten::_unsafe_index"),
        channels="getitem",
        sizes="getitem",
        signature="input, index",
        view=True,
        indices="index",
    ),
    OpSpec(  # windows along one axis; F.unfold is another operator, "im2col"
        name="unfold",
        targets=(torch.Tensor.unfold, "aten::unfold", "aten::unfold_copy"),
        family="shape",
        signature="input, dimension, size, step",
        channels="along_dim",
        moves=True,
        view=True,
    ),
    _move("diagonal", torch.linalg.diagonal, signature="input, offset=0, dim1=0, dim2=1", view=True),
)

_PICKING = (
    _move("index_select", signature="input, dim, index", channels="index_select"),
    _move("gather", signature="input, dim, index, *, sparse_grad=False", channels="look_up"),
    _move("take", signature="input, index"),
    _move("take_along_dim", signature="input, index, dim=None", indices="index", channels="look_up"),
    _move("masked_select", signature="input, mask"),
    _move("masked_scatter", signature="input, mask, source", activations=("input", "source"), moves=False),
    _move(
        "scatter",
        signature="input, dim, index, src, *, reduce=None",
        activations=("input", "src"),
        moves=False,
        value="src",
    ),
    _move(
        "scatter_add",
        signature="input, dim, index, src",
        activations=("input", "src"),
        moves=False,
    ),
    _move(
        "scatter_reduce",
        signature="input, dim, index, src, reduce, *, include_self=True",
        activations=("input", "src"),
        moves=False,
    ),
    _move(
        "index_add",
        signature="input, dim, index, source, *, alpha=1",
        activations=("input", "source"),
        moves=False,
    ),
    _move("index_copy", signature="input, dim, index, source", activations=("input", "source"), moves=False),
    _move("index_fill", signature="input, dim, index, value", moves=False),
    _move(
        *("index_put", "aten::_index_put_impl_", "aten::_unsafe_index_put"),
        moves=False,
        signature="input, indices, values, accumulate=False",
        activations=("input", "values"),
    ),
    _move("select_scatter", signature="input, src, dim, index", activations=("input", "src"), moves=False),
    _move(
        "slice_scatter",
        signature="input, src, dim=0, start=None, end=None, step=1",
        activations=("input", "src"),
        moves=False,
    ),
    _move(
        "diagonal_scatter",
        signature="input, src, offset=0, dim1=0, dim2=1",
        activations=("input", "src"),
        moves=False,
    ),
    _move(
        *("set_item", "sparsebit.graph.functional.set_item"),
        moves=False,
        signature="input, index, value",
        activations=("input", "value"),
        tensor="input",
    ),
    _move("nonzero", "argwhere", signature="input, *, as_tuple=False", moves=False, integers=True),
)

_ARRANGING = (
    _move(
        *("pad", *_PADS, "constant_pad_nd"),
        channels="pad",
        sizes="pad",
        signature="input, pad, mode='constant', value=None",
        attributes={"pad": "padding"},
        implied=_PADS,
        moves=_pads_with_its_own_numbers,
        padding="pad",
    ),
    _move("roll", signature="input, shifts, dims=None", channels="along_dim"),
    _move("flip", signature="input, *dims", channels="move"),
    _move("fliplr", signature="input", channels="move"),
    _move("flipud", signature="input", channels="move"),
    _move("rot90", signature="input, k=1, dims=(0, 1)"),
    _move("repeat", signature="input, *repeats", channels="move"),
    _move("tile", signature="input, *dims", channels="move"),
    _move("repeat_interleave", signature="input, repeats, dim=None, *, output_size=None", channels="move"),
    _move("pixel_shuffle", nn.PixelShuffle, signature="input, upscale_factor", channels="pixel_shuffle"),
    _move(
        "pixel_unshuffle", nn.PixelUnshuffle, signature="input, downscale_factor", channels="pixel_shuffle"
    ),
    _move(
        "channel_shuffle",
        "native_channel_shuffle",
        nn.ChannelShuffle,
        signature="input, groups",
        channels="channel_shuffle",
    ),
    _move(
        *("im2col", torch.nn.functional.unfold, nn.Unfold),
        channels="im2col",
        signature="input, kernel_size, dilation=1, padding=0, stride=1",
    ),
    _move(
        *("col2im", "fold", nn.Fold),
        signature="input, output_size, kernel_size, dilation=1, padding=0, stride=1",
        moves=False,
    ),
    _move("diag", signature="input, diagonal=0"),
    _move("diag_embed", signature="input, offset=0, dim1=-2, dim2=-1"),
)

_COPYING = (
    _same("identity", nn.Identity, "alias", "resolve_conj", "resolve_neg", "aten::lift", "aten::lift_fresh"),
    _same("contiguous", signature="input, memory_format=None"),
    _same("detach", "aten::detach_copy"),
    _same(
        "clone",
        "aten::lift_fresh_copy",
        "aten::alias_copy",
        signature="input, *, memory_format=None",
        view=False,
    ),
    _same("conj", "aten::_conj", "conj_physical", moves=False),
    _same("real", moves=False),
    _same("imag", moves=False),
    _same("tril", signature="input, diagonal=0", view=False),
    _same("triu", signature="input, diagonal=0", view=False),
)

OPS = (*_RESHAPING, *_JOINING, *_CUTTING, *_PICKING, *_ARRANGING, *_COPYING)
