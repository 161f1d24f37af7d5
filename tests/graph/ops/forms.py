"""Ways to write one call: as a module, as a function with arguments by place or by name, as an aten operator."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.graph.ops.sampling import (
    Sample,
    boolean,
    integer,
    parameter,
    positive,
    real,
    sample,
)

aten = torch.ops.aten
X, IMAGE, INDEX = real(2, 4, 6), real(2, 4, 8, 8), integer(2, 5)
W, B = parameter(6, 4, 3, 3), parameter(6)
SCALE, SHIFT, MEAN, VAR = parameter(4), parameter(4), real(4), positive(4)
TABLE = parameter(7, 4)


def conv2d() -> nn.Conv2d:
    layer = nn.Conv2d(4, 6, 3, stride=2, padding=1)
    layer.weight, layer.bias = W, B
    return layer


def with_parameters(layer: Any, **tensors: Tensor) -> Any:
    for name, tensor in tensors.items():
        setattr(layer, name, tensor)
    return layer


# Ways to write one call; the arguments named must come out the same from all of them.
FORMS: dict[str, tuple[tuple[str, ...], tuple[Sample, ...]]] = {
    "conv2d": (
        ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
        (
            sample(conv2d(), IMAGE),
            sample(F.conv2d, IMAGE, W, B, 2, 1),
            sample(F.conv2d, IMAGE, W, bias=B, stride=(2, 2), padding=[1, 1]),
            sample(F.conv2d, input=IMAGE, weight=W, bias=B, stride=2, padding=1),
            sample(aten.conv2d.default, IMAGE, W, B, [2, 2], [1, 1]),
            sample(aten.convolution.default, IMAGE, W, B, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
            sample(torch.convolution, IMAGE, W, B, (2, 2), (1, 1), (1, 1), False, (0, 0), 1),
        ),
    ),
    "conv_transpose2d": (
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
        (
            sample(F.conv_transpose2d, IMAGE, parameter(4, 6, 3, 3), None, 2, 1, 1, 1, 1),
            sample(with_parameters(nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, bias=False)), IMAGE),
            sample(
                aten.convolution.default,
                IMAGE,
                parameter(4, 6, 3, 3),
                None,
                [2, 2],
                [1, 1],
                [1, 1],
                True,
                [1, 1],
                1,
            ),
        ),
    ),
    "linear": (
        ("input", "weight", "bias"),
        (
            sample(with_parameters(nn.Linear(6, 5), weight=parameter(5, 6), bias=parameter(5)), X),
            sample(F.linear, X, parameter(5, 6), parameter(5)),
            sample(aten.linear.default, X, parameter(5, 6), parameter(5)),
        ),
    ),
    "batch_norm": (
        ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
        (
            sample(
                with_parameters(
                    nn.BatchNorm1d(4), weight=SCALE, bias=SHIFT, running_mean=MEAN, running_var=VAR
                ).eval(),
                X,
            ),
            sample(F.batch_norm, X, MEAN, VAR, SCALE, SHIFT),
            sample(F.batch_norm, X, weight=SCALE, bias=SHIFT, running_mean=MEAN, running_var=VAR),
            sample(torch.batch_norm, X, SCALE, SHIFT, MEAN, VAR, False, 0.1, 1e-5, True),
            sample(aten.batch_norm.default, X, SCALE, SHIFT, MEAN, VAR, False, 0.1, 1e-5, True),
        ),
    ),
    "instance_norm": (
        ("input", "running_mean", "running_var", "weight", "bias", "eps"),
        (
            sample(with_parameters(nn.InstanceNorm1d(4, affine=True), weight=SCALE, bias=SHIFT), X),
            sample(F.instance_norm, X, None, None, SCALE, SHIFT),
            sample(torch.instance_norm, X, SCALE, SHIFT, None, None, True, 0.1, 1e-5, False),
            sample(aten.instance_norm.default, X, SCALE, SHIFT, None, None, True, 0.1, 1e-5, False),
        ),
    ),
    "layer_norm": (
        ("input", "normalized_shape", "weight", "bias", "eps"),
        (
            sample(with_parameters(nn.LayerNorm(6), weight=parameter(6), bias=parameter(6)), X),
            sample(F.layer_norm, X, (6,), parameter(6), parameter(6)),
            sample(torch.layer_norm, X, (6,), parameter(6), parameter(6), 1e-5),
            sample(aten.layer_norm.default, X, [6], parameter(6), parameter(6)),
            sample(aten.native_layer_norm.default, X, [6], parameter(6), parameter(6), 1e-5),
        ),
    ),
    "group_norm": (
        ("input", "num_groups", "weight", "bias", "eps"),
        (
            sample(with_parameters(nn.GroupNorm(2, 4), weight=SCALE, bias=SHIFT), X),
            sample(F.group_norm, X, 2, SCALE, SHIFT),
            sample(aten.group_norm.default, X, 2, SCALE, SHIFT),
            sample(aten.native_group_norm.default, X, SCALE, SHIFT, 2, 4, 6, 2, 1e-5),
        ),
    ),
    "embedding": (
        ("input", "weight"),
        (
            sample(with_parameters(nn.Embedding(7, 4), weight=TABLE), INDEX),
            sample(F.embedding, INDEX, TABLE),
            sample(torch.embedding, TABLE, INDEX),
            sample(aten.embedding.default, TABLE, INDEX),
        ),
    ),
    "dropout": (
        ("input", "p", "training"),
        (
            sample(nn.Dropout(0.3), X),
            sample(F.dropout, X, 0.3),
            sample(torch.dropout, X, 0.3, True),
            sample(aten.dropout.default, X, 0.3, True),
        ),
    ),
    "softmax": (
        ("input", "dim"),
        (
            sample(nn.Softmax(-1), X),
            sample(F.softmax, X, -1),
            sample(torch.softmax, X, dim=-1),
            sample(torch.Tensor.softmax, X, -1),
            sample(aten.softmax.int, X, -1),
            sample(aten._softmax.default, X, -1, False),
        ),
    ),
    "leaky_relu": (
        ("input", "negative_slope"),
        (
            sample(nn.LeakyReLU(0.2), X),
            sample(F.leaky_relu, X, 0.2),
            sample(F.leaky_relu_, X, 0.2),
            sample(aten.leaky_relu.default, X, 0.2),
        ),
    ),
    "max_pool2d": (
        ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
        (
            sample(nn.MaxPool2d(2, padding=1), IMAGE),
            sample(F.max_pool2d, IMAGE, 2, padding=1),
            sample(torch.max_pool2d, IMAGE, 2, 2, 1),
            sample(aten.max_pool2d.default, IMAGE, [2, 2], [], [1, 1]),
            sample(aten.max_pool2d_with_indices.default, IMAGE, [2, 2], [2, 2], [1, 1]),
        ),
    ),
    "pad": (
        ("input", "pad", "mode"),
        (
            sample(nn.ReflectionPad1d((1, 2)), X),
            sample(F.pad, X, (1, 2), "reflect"),
            sample(aten.reflection_pad1d.default, X, [1, 2]),
        ),
    ),
    "interpolate": (
        ("input", "size", "mode", "align_corners"),
        (
            sample(nn.UpsamplingBilinear2d(size=(9, 9)), IMAGE),
            sample(F.interpolate, IMAGE, (9, 9), mode="bilinear", align_corners=True),
            sample(aten.upsample_bilinear2d.default, IMAGE, [9, 9], True),
        ),
    ),
    "add": (
        ("input", "other", "alpha"),
        (
            sample(operator.add, X, X),
            sample(torch.add, X, X),
            sample(torch.Tensor.add, X, other=X),
            sample(torch.Tensor.add_, X, X),
            sample(aten.add.Tensor, X, X),
        ),
    ),
    "sub": (
        ("input", "other"),
        (
            sample(operator.sub, 1.0, X),
            sample(torch.rsub, X, 1.0),
            sample(torch.Tensor.__rsub__, X, 1.0),
            sample(aten.rsub.Scalar, X, 1.0),
        ),
    ),
    "matmul": (
        ("input", "other"),
        (
            sample(operator.matmul, X, parameter(6, 3)),
            sample(torch.matmul, X, parameter(6, 3)),
            sample(torch.Tensor.matmul, X, other=parameter(6, 3)),
            sample(aten.matmul.default, X, parameter(6, 3)),
        ),
    ),
    "addmm": (
        ("input", "mat1", "mat2", "beta", "alpha"),
        (
            sample(torch.addmm, B, real(5, 4), parameter(4, 6)),
            sample(torch.Tensor.addmm, B, real(5, 4), mat2=parameter(4, 6)),
            sample(aten.addmm.default, B, real(5, 4), parameter(4, 6)),
        ),
    ),
    "mean": (
        ("input", "dim", "keepdim"),
        (
            sample(torch.mean, X, (1, 2), True),
            sample(torch.Tensor.mean, X, dim=(1, 2), keepdim=True),
            sample(torch.mean, X, axis=(1, 2), keepdims=True),
            sample(aten.mean.dim, X, [1, 2], True),
        ),
    ),
    "std": (
        ("input", "dim", "unbiased"),
        (
            sample(torch.std, X, False),
            sample(torch.Tensor.std, X, unbiased=False),
            sample(aten.std.default, X, False),
        ),
    ),
    "reshape": (
        ("input", "shape"),
        (
            sample(torch.reshape, X, (2, -1)),
            sample(torch.Tensor.reshape, X, 2, -1),
            sample(torch.Tensor.view, X, 2, -1),
            sample(torch.Tensor.view, X, (2, -1)),
            sample(aten.view.default, X, [2, -1]),
            sample(aten.reshape.default, X, [2, -1]),
        ),
    ),
    "permute": (
        ("input", "dims"),
        (
            sample(torch.permute, X, (0, 2, 1)),
            sample(torch.Tensor.permute, X, 0, 2, 1),
            sample(torch.Tensor.permute, X, (0, 2, 1)),
            sample(aten.permute.default, X, [0, 2, 1]),
        ),
    ),
    "transpose": (
        ("input", "dim0", "dim1"),
        (
            sample(torch.transpose, X, 1, 2),
            sample(torch.swapaxes, X, axis0=1, axis1=2),
            sample(torch.Tensor.transpose, X, 1, 2),
            sample(aten.transpose.int, X, 1, 2),
        ),
    ),
    "flatten": (
        ("input", "start_dim", "end_dim"),
        (sample(nn.Flatten(), X), sample(torch.flatten, X, 1), sample(aten.flatten.using_ints, X, 1)),
    ),
    "split": (
        ("input", "split_size", "dim"),
        (
            sample(torch.split, X, [1, 3], 1),
            sample(torch.Tensor.split, X, [1, 3], dim=1),
            sample(torch.split_with_sizes, X, [1, 3], 1),
            sample(aten.split_with_sizes.default, X, [1, 3], 1),
        ),
    ),
    "cat": (
        ("tensors", "dim"),
        (
            sample(torch.cat, [X, X], 1),
            sample(torch.cat, [X, X], axis=1),
            sample(aten.cat.default, [X, X], 1),
        ),
    ),
    "expand": (
        ("input", "size"),
        (
            sample(torch.Tensor.expand, real(4, 1), 4, 5),
            sample(torch.broadcast_to, real(4, 1), (4, 5)),
            sample(aten.expand.default, real(4, 1), [4, 5]),
        ),
    ),
    "where": (
        ("condition", "input", "other"),
        (
            sample(torch.where, boolean(6), X, 0.0),
            sample(torch.Tensor.where, X, boolean(6), 0.0),
            sample(aten.where.ScalarOther, boolean(6), X, 0.0),
        ),
    ),
    "to": (
        ("input", "dtype", "device", "other"),
        (
            sample(torch.Tensor.half, X),
            sample(torch.Tensor.to, X, torch.float16),
            sample(torch.Tensor.to, X, dtype=torch.float16),
            sample(torch.Tensor.type, X, torch.float16),
            sample(aten.to.dtype, X, torch.float16),
            sample(aten._to_copy.default, X, dtype=torch.float16),
        ),
    ),
    "arange": (
        ("start", "end", "step"),
        (
            sample(torch.arange, 5),
            sample(torch.arange, 0, 5),
            sample(torch.arange, end=5),
            sample(aten.arange.default, 5),
            sample(aten.arange.start, 0, 5),
        ),
    ),
    "randint": (
        ("low", "high", "size"),
        (
            sample(torch.randint, 9, (2, 3)),
            sample(torch.randint, 0, 9, (2, 3)),
            sample(torch.randint, high=9, size=(2, 3)),
            sample(aten.randint.default, 9, [2, 3]),
        ),
    ),
    "scaled_dot_product_attention": (
        ("query", "key", "value", "attn_mask", "is_causal", "scale"),
        (
            sample(F.scaled_dot_product_attention, X, X, X, None, 0.0, True),
            sample(F.scaled_dot_product_attention, X, X, X, is_causal=True),
            sample(aten.scaled_dot_product_attention.default, X, X, X, is_causal=True),
        ),
    ),
}
