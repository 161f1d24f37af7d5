"""torch.export's example models (part of torch) through our capture: the graph must answer as the model does."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch._export.db.case import SupportLevel
from torch._export.db.examples import all_examples
from torch.utils import _pytree as pytree

from benchmarks.peers.tests.suite import NotApplicable, Suite
from sparsebit import capture
from sparsebit.errors import SparsebitError


def run_export_examples() -> Suite:
    """Every example that torch.export itself supports; the others are for us as for it."""
    suite = Suite(
        "torch.export examples",
        f"models of torch {torch.__version__} (torch._export.db); sparsebit.capture stands in for torch.export",
    )
    for name, case in sorted(all_examples().items()):
        suite.run(name, partial(_check, case))
    return suite


def _check(case: Any) -> None:
    model, args, kwargs = case.model.eval(), case.example_args, case.example_kwargs
    with torch.no_grad():
        try:
            expected = copy.deepcopy(model)(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        except Exception as error:
            raise NotApplicable(f"the model does not run in eager mode: {type(error).__name__}") from None
        try:
            graph = capture(copy.deepcopy(model), copy.deepcopy(args), copy.deepcopy(kwargs))
        except SparsebitError as error:
            if case.support_level == SupportLevel.NOT_SUPPORTED_YET:
                raise NotApplicable(
                    "torch.export does not support it either, and our error says why"
                ) from None
            raise error
        _compare(expected, graph(*copy.deepcopy(args), **copy.deepcopy(kwargs)))


def _compare(expected: Any, got: Any) -> None:
    for left, right in zip(pytree.tree_leaves(expected), pytree.tree_leaves(got), strict=True):
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(right, left)
        else:
            assert left == right, f"{right!r} instead of {left!r}"
