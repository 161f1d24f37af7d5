"""Decompositions and solvers. They stay in float, so a row says little more than that they are known."""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import family, named, present

_row = family("linalg")
_TWO = ("input", "other")


def _linalg(name: str, signature: str = "input", *older: str, **fields: object) -> OpSpec:
    """A function of torch.linalg, and its older top-level spellings (where they mean the same)."""
    targets = (*present(torch.linalg, name), f"aten::linalg_{name}", *named(*older))
    return _row(f"linalg_{name}", signature, only=targets, aliases={"A": "input", "B": "other"}, **fields)


OPS = (
    _linalg("inv", "input", "inverse"),
    _linalg("pinv", "input, rcond=1e-15, hermitian=False", "pinverse"),
    _linalg("det", "input", "det"),
    _linalg("slogdet", "input", "slogdet"),
    _linalg("cholesky", "input, upper=False", "cholesky"),
    _linalg("qr", "input, mode='reduced'"),
    _linalg("svd", "input, full_matrices=True"),
    _linalg("eigh", "input, UPLO='L'"),
    _linalg("solve", "input, other, left=True", activations=_TWO),
    _linalg("solve_triangular", "input, other, upper=True", activations=_TWO),
    _linalg("matrix_exp", "input", "matrix_exp"),
    _row("cross", "input, other, dim=-1", torch.linalg.cross, "aten::linalg_cross", activations=_TWO),
    _row("trace"),
)
