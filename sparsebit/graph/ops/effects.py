"""Nodes that are run for what they do: they must neither be deleted nor change places."""

from __future__ import annotations

import operator

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import present


def _effect(
    name: str,
    *targets: object,
    signature: str = "*values",
    activations: tuple[str, ...] = (),
    family: str = "effects",
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=tuple(dict.fromkeys(targets)),
        family=family,
        signature=signature,
        activations=activations,
        effect=True,
    )


_CHECKS = (
    *("_assert", "_check", "_check_value", "_check_index", "_check_type", "_check_is_size", "_check_with"),
    *("_check_tensor_all", "_assert_async", "_functional_assert_async", "_assert_scalar"),
    "_assert_tensor_metadata",
)

OPS = (
    _effect("assign", "sparsebit.graph.effects.assign", signature="target, value"),
    _effect("setitem", operator.setitem, torch.Tensor.__setitem__, signature="input, index, value"),
    _effect("requires_grad", torch.Tensor.requires_grad_, signature="input, requires_grad=True"),
    _effect(
        "set_grad_enabled",
        *(*present(torch, "set_grad_enabled"), *present(torch._C, "_set_grad_enabled")),
        signature="mode",
        family="mode",
    ),
    _effect(
        "enter_inference_mode", *present(torch.autograd.grad_mode, "_enter_inference_mode"), family="mode"
    ),
    _effect("exit_inference_mode", *present(torch.autograd.grad_mode, "_exit_inference_mode"), family="mode"),
    _effect("enter_autocast", *present(torch.amp.autocast_mode, "_enter_autocast"), family="mode"),
    _effect("exit_autocast", *present(torch.amp.autocast_mode, "_exit_autocast"), family="mode"),
    _effect(
        "assert",
        *(*present(torch, *_CHECKS), *(f"aten::{name}" for name in _CHECKS)),
        *("aten::sym_constrain_range", "aten::sym_constrain_range_for_size"),
        "sparsebit.graph.functional.check_branch",
    ),
)
