"""Samples of data movement: views, joins, cuts, gathers, rearrangements, copies."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

from sparsebit.graph.functional import set_item
from tests.graph.ops.sampling import Sample, boolean, distinct, real, sample

_SHAPE = (2, 4, 6)


def _movers() -> dict[str, tuple[Sample, ...]]:
    x, image = distinct(*_SHAPE), distinct(2, 8, 4, 4)
    index = torch.tensor([2, 0, 3])
    grid = torch.tensor([[[0, 2], [1, 3]], [[3, 1], [0, 0]]])
    return {
        "reshape": (
            sample(torch.reshape, x, (2, -1)),
            sample(torch.Tensor.view, x, (8, 6)),
            sample(torch.Tensor.view, x, -1),
            sample(torch.reshape, x.transpose(1, 2), (2, -1)),
        ),
        "view_dtype": (sample(torch.Tensor.view, x, torch.int32),),
        "reshape_as": (sample(torch.Tensor.view_as, x, real(8, 6)),),
        "flatten": (sample(torch.flatten, x, 1), sample(nn.Flatten(), x), sample(torch.ravel, x)),
        "unflatten": (sample(nn.Unflatten(1, (2, 2)), x), sample(torch.unflatten, x, -1, (2, 3))),
        "permute": (sample(torch.permute, x, (0, 2, 1)), sample(torch.Tensor.permute, x, 2, 1, 0)),
        "transpose": (sample(torch.transpose, x, 1, 2), sample(torch.swapaxes, x, axis0=0, axis1=1)),
        "t": (sample(torch.t, distinct(3, 4)), sample(getattr, distinct(3, 4), "T")),
        "matrix_transpose": (sample(getattr, x, "mT"),),
        "adjoint": (sample(torch.adjoint, x), sample(getattr, x, "mH")),
        "movedim": (sample(torch.movedim, x, 0, 2),),
        "squeeze": (sample(torch.squeeze, distinct(2, 1, 4), 1), sample(torch.squeeze, distinct(2, 1, 4))),
        "unsqueeze": (sample(torch.unsqueeze, x, 1),),
        "atleast_1d": (sample(torch.atleast_1d, x),),
        "atleast_2d": (sample(torch.atleast_2d, distinct(3)),),
        "atleast_3d": (sample(torch.atleast_3d, distinct(3, 4)),),
        "expand": (
            sample(torch.Tensor.expand, distinct(2, 1, 4), (2, 3, -1)),
            sample(torch.broadcast_to, distinct(4), (3, 4)),
        ),
        "expand_as": (sample(torch.Tensor.expand_as, distinct(2, 1, 4), real(2, 3, 4)),),
        "broadcast_tensors": (sample(torch.broadcast_tensors, distinct(3, 1), distinct(4)),),
        "meshgrid": (sample(torch.meshgrid, distinct(3), distinct(4), indexing="ij"),),
        "as_strided": (sample(torch.as_strided, x, (3, 4), (4, 1)),),
        "view_as_real": (sample(torch.view_as_real, torch.complex(distinct(2, 4), distinct(2, 4))),),
        "view_as_complex": (sample(torch.view_as_complex, distinct(2, 4, 2)),),
        "cat": (sample(torch.cat, [x, x], 1), sample(torch.concat, (x, distinct(*_SHAPE)), dim=-1)),
        "stack": (sample(torch.stack, [x, x], 1),),
        "hstack": (sample(torch.hstack, [x, x]),),
        "vstack": (sample(torch.vstack, [x, x]),),
        "dstack": (sample(torch.dstack, [x, x]),),
        "column_stack": (sample(torch.column_stack, [distinct(3), distinct(3, 2)]),),
        "block_diag": (sample(torch.block_diag, distinct(2, 3), distinct(3, 2)),),
        "cartesian_prod": (sample(torch.cartesian_prod, distinct(3), distinct(2)),),
        "split": (
            sample(torch.split, x, 2, 1),
            sample(torch.split, x, [1, 3], dim=1),
            sample(torch.split_with_sizes, x, [1, 3], 1),
        ),
        "tensor_split": (sample(torch.tensor_split, x, 3, 1),),
        "chunk": (sample(torch.chunk, x, 2, dim=1),),
        "unbind": (sample(torch.unbind, x, 1),),
        "select": (sample(torch.select, x, 1, 2),),
        "narrow": (sample(torch.narrow, x, 1, 1, 2),),
        "slice": (sample(torch.ops.aten.slice.Tensor, x, 1, 1, 3),),
        "getitem": (
            sample(operator.getitem, x, (slice(None), 0)),
            sample(operator.getitem, x, (slice(None), index)),
            sample(operator.getitem, [x, x], 1),
        ),
        "unfold": (sample(torch.Tensor.unfold, x, 2, 3, 1),),
        "diagonal": (sample(torch.diagonal, x, dim1=1, dim2=2),),
        "index_select": (sample(torch.index_select, x, 1, index),),
        "gather": (sample(torch.gather, x, 1, grid),),
        "take": (sample(torch.take, x, index),),
        "take_along_dim": (sample(torch.take_along_dim, x, grid.repeat(1, 1, 3), 1),),
        "masked_select": (sample(torch.masked_select, x, boolean(*_SHAPE)),),
        "masked_scatter": (sample(torch.masked_scatter, x, boolean(*_SHAPE), distinct(*_SHAPE) + 100),),
        "scatter": (
            sample(torch.scatter, x, 1, grid, distinct(*grid.shape) + 100),
            sample(torch.scatter, x, 1, grid, value=0.0),
        ),
        "scatter_add": (sample(torch.scatter_add, x, 1, grid, distinct(*grid.shape) + 100),),
        "scatter_reduce": (sample(torch.scatter_reduce, x, 1, grid, distinct(*grid.shape) + 100, "sum"),),
        "index_add": (sample(torch.index_add, x, 1, index, distinct(2, 3, 6)),),
        "index_copy": (sample(torch.index_copy, x, 1, index, distinct(2, 3, 6) + 100),),
        "index_fill": (sample(torch.index_fill, x, 1, index, 0.0),),
        "index_put": (
            sample(torch.index_put, x, (torch.tensor([0, 1]), torch.tensor([2, 3])), distinct(2, 6) + 100),
        ),
        "select_scatter": (sample(torch.select_scatter, x, distinct(2, 6) + 100, 1, 0),),
        "slice_scatter": (sample(torch.slice_scatter, x, distinct(2, 2, 6) + 100, 1, 0, 2),),
        "diagonal_scatter": (sample(torch.diagonal_scatter, distinct(4, 4), distinct(4) + 100),),
        "set_item": (sample(set_item, x, (slice(None), 0), distinct(2, 6) + 100),),
        "nonzero": (sample(torch.nonzero, boolean(*_SHAPE)),),
        "pad": (
            sample(F.pad, x, (1, 2, 3, 0)),
            sample(nn.ReflectionPad1d(2), x),
            sample(nn.ZeroPad2d(1), image),
            sample(nn.ReplicationPad2d((1, 2, 0, 1)), image),
            sample(F.pad, x, (1, 1), mode="circular"),
        ),
        "roll": (sample(torch.roll, x, 1, 1), sample(torch.roll, x, (1, 2), dims=(0, 2))),
        "flip": (sample(torch.flip, x, (1,)),),
        "fliplr": (sample(torch.fliplr, x),),
        "flipud": (sample(torch.flipud, x),),
        "rot90": (sample(torch.rot90, x, 1, (1, 2)),),
        "repeat": (sample(torch.Tensor.repeat, x, (1, 2, 1)), sample(torch.Tensor.repeat, x, 2, 1, 1, 1)),
        "tile": (sample(torch.tile, x, (2,)),),
        "repeat_interleave": (sample(torch.repeat_interleave, x, 2, dim=1),),
        "pixel_shuffle": (sample(nn.PixelShuffle(2), image), sample(F.pixel_shuffle, image, 2)),
        "pixel_unshuffle": (sample(nn.PixelUnshuffle(2), image),),
        "channel_shuffle": (sample(nn.ChannelShuffle(2), image),),
        "im2col": (sample(F.unfold, image, 2), sample(nn.Unfold(3, padding=1), image)),
        "col2im": (
            sample(nn.Fold((4, 4), 2), distinct(2, 8, 9)),
            sample(F.fold, distinct(2, 8, 9), (4, 4), 2),
        ),
        "diag": (sample(torch.diag, distinct(4)), sample(torch.diag, distinct(4, 4))),
        "diag_embed": (sample(torch.diag_embed, x),),
        "identity": (sample(nn.Identity(), x),),
        "contiguous": (sample(torch.Tensor.contiguous, x),),
        "detach": (sample(torch.Tensor.detach, x), sample(getattr, x, "data")),
        "clone": (sample(torch.clone, x),),
        "conj": (sample(torch.conj, x), sample(torch.conj, torch.complex(distinct(2, 4), distinct(2, 4)))),
        "real": (sample(torch.real, x),),
        "imag": (sample(torch.imag, torch.complex(distinct(2, 4), distinct(2, 4))),),
        "tril": (sample(torch.tril, x),),
        "triu": (sample(torch.triu, x, 1),),
        "fftshift": (sample(torch.fft.fftshift, x),),
        "ifftshift": (sample(torch.fft.ifftshift, x),),
        "pack_sequence": (sample(rnn.pack_sequence, [distinct(5, 3), distinct(2, 3)]),),
        "pack_padded_sequence": (
            sample(rnn.pack_padded_sequence, distinct(5, 3, 4), torch.tensor([5, 3, 2])),
        ),
        "pad_packed_sequence": (
            sample(
                rnn.pad_packed_sequence, rnn.pack_padded_sequence(distinct(5, 3, 4), torch.tensor([5, 3, 2]))
            ),
        ),
        "pad_sequence": (sample(rnn.pad_sequence, [distinct(5, 3), distinct(2, 3)]),),
        "packed_sequence": (sample(rnn.PackedSequence, distinct(5, 3), torch.tensor([3, 2])),),
    }


SAMPLES: dict[str, tuple[Sample, ...]] = _movers()
