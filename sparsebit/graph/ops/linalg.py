"""Decompositions and solvers. They stay in float, so a row says little more than that they are known."""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named, present


def _linalg(
    name: str, *older: str, signature: str = "input", activations: tuple[str, ...] = ("input",)
) -> OpSpec:
    """A function of torch.linalg, and its older top-level spellings (where they mean the same)."""
    return OpSpec(
        name=f"linalg_{name}",
        targets=(*present(torch.linalg, name), f"aten::linalg_{name}", *named(*older)),
        family="linalg",
        signature=signature,
        aliases={"A": "input", "B": "other"},
        activations=activations,
    )


OPS = (
    _linalg("inv", "inverse"),
    _linalg("pinv", "pinverse", signature="input, rcond=1e-15, hermitian=False"),
    _linalg("det", "det"),
    _linalg("slogdet", "slogdet"),
    _linalg("cholesky", "cholesky", signature="input, upper=False"),
    _linalg("qr", signature="input, mode='reduced'"),
    _linalg("svd", signature="input, full_matrices=True"),
    _linalg("eigh", signature="input, UPLO='L'"),
    _linalg("solve", signature="input, other, left=True", activations=("input", "other")),
    _linalg("solve_triangular", signature="input, other, upper=True", activations=("input", "other")),
    _linalg("matrix_exp", "matrix_exp"),
    OpSpec(
        name="cross",
        targets=named("cross", torch.linalg.cross, "aten::linalg_cross"),
        family="linalg",
        signature="input, other, dim=-1",
        activations=("input", "other"),
    ),
    OpSpec(
        name="trace",
        targets=named("trace"),
        family="linalg",
    ),
)
