"""Operators with side effects: they must not be deleted or reordered."""

from __future__ import annotations

import operator

import torch
from torch.amp import autocast_mode
from torch.autograd import grad_mode

from sparsebit.graph.ops.spellings import family, present

_effect = family("effects", activations=(), effect=True)
_mode = family("mode", activations=(), effect=True)
_CHECKS = (
    *("_assert", "_check", "_check_value", "_check_index", "_check_type", "_check_is_size", "_check_with"),
    *("_check_tensor_all", "_assert_async", "_functional_assert_async", "_assert_scalar"),
    "_assert_tensor_metadata",
)

_GRAD = (*present(torch, "set_grad_enabled"), *present(torch._C, "_set_grad_enabled"))

OPS = (
    _effect("assign", "target, value", only=("sparsebit.graph.effects.assign",)),
    _effect("setitem", "input, index, value", only=(operator.setitem, torch.Tensor.__setitem__)),
    _effect("requires_grad", "input, requires_grad=True", only=(torch.Tensor.requires_grad_,)),
    _mode("set_grad_enabled", "mode", only=tuple(dict.fromkeys(_GRAD))),
    _mode("enter_inference_mode", "*values", only=present(grad_mode, "_enter_inference_mode")),
    _mode("exit_inference_mode", "*values", only=present(grad_mode, "_exit_inference_mode")),
    _mode("enter_autocast", "*values", only=present(autocast_mode, "_enter_autocast")),
    _mode("exit_autocast", "*values", only=present(autocast_mode, "_exit_autocast")),
    _effect(
        "assert",
        "*values",
        only=(
            *dict.fromkeys((*present(torch, *_CHECKS), *(f"aten::{name}" for name in _CHECKS))),
            *("aten::sym_constrain_range", "aten::sym_constrain_range_for_size"),
            "sparsebit.graph.functional.check_branch",
        ),
    ),
)
