"""Data movement: every element of the result is a copy of an input element, or a fill."""

from __future__ import annotations

import operator

import torch
from torch import nn
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall, nodes_in
from sparsebit.graph.ops.spellings import family, named
from sparsebit.graph.value import TensorInfo

_move = family("shape", moves=True)
_view = family("shape", moves=True, view=True)
_cut = family("shape", moves=True, view=True, channels="move", sizes="split", several=True)
_recast = family("shape", view=True)  # the same memory, other numbers or several tensors
_join = family("shape", activations=("tensors",))
_write = family("shape", activations=("input", "src"))
_same = family("shape", keeps_zero=True, elementwise=True, view=True)  # the input again, in the same order
_DIM = "input, dim=0"


def _view_or_bitcast(node: Node) -> str:
    """``x.view(torch.int32)`` reinterprets bits; with sizes it is a reshape."""
    target = node.args[1] if len(node.args) > 1 else node.kwargs.get("dtype")
    return "view_dtype" if isinstance(target, torch.dtype) else "reshape"


def _pads_with_its_own_numbers(call: OpCall) -> bool:
    """Padding with zero too: zero is a point of every grid."""
    return call.arguments.get("mode", "constant") != "constant" or not call.arguments.get("value")


def _has_mask(node: Node) -> bool:
    """Whether an index holds a mask, which selects as many elements as it has ones."""
    infos = [item.meta.get("value") for item in nodes_in((node.args[1:], node.kwargs))]
    return any(isinstance(info, TensorInfo) and info.dtype in (torch.bool, torch.uint8) for info in infos)


def _repeats_by_tensor(node: Node) -> bool:
    """Whether a tensor says how often each element is repeated; it may be the only argument."""
    repeats = node.kwargs.get("repeats", next(iter(node.args[1:] or node.args), None))
    return isinstance(repeats, Node) and isinstance(repeats.meta.get("value"), TensorInfo)


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
    _view(
        "reshape",
        "input, *shape",
        only=tuple(
            target
            for target in named(
                *("reshape", "view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::view_copy")
            )
            if target is not torch.Tensor.view
        ),
        overloads={torch.Tensor.view: _view_or_bitcast},
        aliases={"size": "shape"},
        channels="reshape",
        sizes="shape",
    ),
    _recast("view_dtype", "input, dtype", "aten::view.dtype"),
    _view("reshape_as", "input, other", "view_as", channels="reshape_as"),
    _view("flatten", "input, start_dim=0, end_dim=-1", "ravel", nn.Flatten, channels="reshape"),
    _view(
        "unflatten",
        "input, dim, sizes",
        nn.Unflatten,
        attributes={"sizes": "unflattened_size"},
        channels="reshape",
        sizes="shape",
    ),
    _view("permute", "input, *dims", "aten::permute_copy", channels="move"),
    _view(
        "transpose",
        "input, dim0, dim1",
        *("swapaxes", "swapdims", "aten::transpose_copy"),
        aliases={"axis0": "dim0", "axis1": "dim1"},
        channels="move",
    ),
    _view("t", "input", "aten::numpy_T", "aten::t_copy", channels="move"),
    _view("matrix_transpose", "input", "aten::mT", channels="move"),
    _view("adjoint", "input", "aten::mH", "aten::matrix_H", channels="move"),
    _view("movedim", "input, source, destination", "moveaxis", channels="move"),
    _view("squeeze", "input, dim=None", "aten::squeeze_copy", channels="reshape", sizes="squeeze"),
    _view("unsqueeze", "input, dim", "aten::unsqueeze_copy", channels="reshape"),
    *(_view(f"atleast_{dims}d", channels="move") for dims in (1, 2, 3)),
    _view(
        "expand",
        "input, *size",
        *("broadcast_to", "aten::expand_copy"),
        aliases={"shape": "size"},
        channels="expand",
        sizes="shape",
    ),
    _view("expand_as", "input, other", channels="elementwise"),
    _recast("broadcast_tensors", "*tensors", activations=("tensors",), several=True),
    _recast("meshgrid", "*tensors, indexing=None", activations=("tensors",), several=True),
    _recast("as_strided", "input, size, stride, storage_offset=None"),
    _recast("view_as_real"),
    _recast("view_as_complex"),
)

_JOINING = (
    _join("cat", "tensors, dim=0", "concat", "concatenate", channels="cat"),
    _join("stack", "tensors, dim=0", channels="stack"),
    _join("hstack", "tensors", channels="hstack"),
    _join("vstack", "tensors", "row_stack", channels="vstack"),
    _join("dstack", "tensors"),
    _join("column_stack", "tensors"),
    _join("block_diag", "*tensors"),
    _join("cartesian_prod", "*tensors"),
)

_CUTTING = (
    _cut(
        "split",
        "input, split_size, dim=0",
        *("split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "aten::split_copy"),
        aliases={"split_size_or_sections": "split_size", "split_sizes": "split_size"},
    ),
    _cut(
        "tensor_split",
        "input, indices_or_sections, dim=0",
        aliases=dict.fromkeys(("indices", "sections"), "indices_or_sections"),
    ),
    _cut("chunk", "input, chunks, dim=0", "unsafe_chunk"),
    _view("unbind", _DIM, "aten::unbind_copy", channels="pick", several=True),
    _view("select", "input, dim, index", "aten::select_copy", channels="pick", sizes="slice"),
    _view("narrow", "input, dim, start, length", "narrow_copy", channels="move", sizes="slice"),
    _view(
        "slice", f"{_DIM}, start=None, end=None, step=1", "aten::slice_copy", channels="move", sizes="slice"
    ),
    _view(
        "getitem",
        "input, index",
        *(operator.getitem, torch.Tensor.__getitem__, "aten::index", "aten::_unsafe_index"),
        aliases={"indices": "index"},
        channels="getitem",
        sizes="getitem",
        data_sized=_has_mask,
    ),
    _view(  # windows along one axis; F.unfold is another operator, "im2col"
        "unfold",
        "input, dimension, size, step",
        only=(torch.Tensor.unfold, "aten::unfold", "aten::unfold_copy"),
        channels="along_dim",
    ),
    _view("diagonal", "input, offset=0, dim1=0, dim2=1", torch.linalg.diagonal),
)

_PICKING = (
    _move("index_select", "input, dim, index", channels="index_select"),
    _move("gather", "input, dim, index, *, sparse_grad=False", channels="look_up"),
    _move("take", "input, index"),
    _move("take_along_dim", "input, index, dim=None", aliases={"indices": "index"}, channels="look_up"),
    _move("masked_select", "input, mask", data_sized=True),
    _write("masked_scatter", "input, mask, source", activations=("input", "source")),
    _write("scatter", "input, dim, index, src, *, reduce=None", aliases={"value": "src"}),
    _write("scatter_add", "input, dim, index, src"),
    _write("scatter_reduce", "input, dim, index, src, reduce, *, include_self=True"),
    _write("index_add", "input, dim, index, source, *, alpha=1", activations=("input", "source")),
    _write("index_copy", "input, dim, index, source", activations=("input", "source")),
    _write("index_fill", "input, dim, index, value", activations=("input",)),
    _write(
        "index_put",
        "input, indices, values, accumulate=False",
        *("aten::_index_put_impl_", "aten::_unsafe_index_put"),
        activations=("input", "values"),
    ),
    _write("select_scatter", "input, src, dim, index"),
    _write("slice_scatter", "input, src, dim=0, start=None, end=None, step=1"),
    _write("diagonal_scatter", "input, src, offset=0, dim1=0, dim2=1"),
    _write(
        "set_item",
        "input, index, value",
        "sparsebit.graph.functional.set_item",
        activations=("input", "value"),
        aliases={"tensor": "input"},
    ),
    _move("nonzero", "input, *, as_tuple=False", "argwhere", moves=False, integers=True, data_sized=True),
)

_ARRANGING = (
    _move(
        "pad",
        "input, pad, mode='constant', value=None",
        *(*_PADS, "constant_pad_nd"),
        aliases={"padding": "pad"},
        attributes={"pad": "padding"},
        implied=_PADS,
        channels="pad",
        moves=_pads_with_its_own_numbers,
        sizes="pad",
    ),
    _move("roll", "input, shifts, dims=None", channels="along_dim"),
    _move("flip", "input, *dims", channels="move"),
    _move("fliplr", channels="move"),
    _move("flipud", channels="move"),
    _move("rot90", "input, k=1, dims=(0, 1)"),
    _move("repeat", "input, *repeats", channels="move"),
    _move("tile", "input, *dims", channels="move"),
    _move(
        "repeat_interleave",
        "input, repeats, dim=None, *, output_size=None",
        channels="move",
        data_sized=_repeats_by_tensor,
    ),
    _move("pixel_shuffle", "input, upscale_factor", nn.PixelShuffle, channels="pixel_shuffle"),
    _move("pixel_unshuffle", "input, downscale_factor", nn.PixelUnshuffle, channels="pixel_shuffle"),
    _move(
        *("channel_shuffle", "input, groups", "native_channel_shuffle", nn.ChannelShuffle),
        channels="channel_shuffle",
    ),
    _move(
        "im2col",
        "input, kernel_size, dilation=1, padding=0, stride=1",
        *(torch.nn.functional.unfold, nn.Unfold),
        channels="im2col",
    ),
    _move(
        "col2im",
        "input, output_size, kernel_size, dilation=1, padding=0, stride=1",
        *("fold", nn.Fold),
        moves=False,
    ),
    _move("diag", "input, diagonal=0"),
    _move("diag_embed", "input, offset=0, dim1=-2, dim2=-1"),
)

_COPYING = (
    _same(
        "identity",
        "input",
        *(nn.Identity, "alias", "resolve_conj", "resolve_neg", "aten::lift", "aten::lift_fresh"),
        moves=True,
    ),
    _same("contiguous", "input, memory_format=None", moves=True),
    _same("detach", "input", "aten::detach_copy", moves=True),
    _same(
        "clone",
        "input, *, memory_format=None",
        *("aten::lift_fresh_copy", "aten::alias_copy"),
        moves=True,
        view=False,
    ),
    _same("conj", "input", "aten::_conj", "conj_physical"),
    _same("real"),
    _same("imag"),
    _same("tril", "input, diagonal=0", moves=True, view=False),
    _same("triu", "input, diagonal=0", moves=True, view=False),
)

OPS = (*_RESHAPING, *_JOINING, *_CUTTING, *_PICKING, *_ARRANGING, *_COPYING)
