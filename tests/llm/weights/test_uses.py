"""Products with weights are seen however they are written."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.llm.weights.uses import Matrix, Use, WatchWeights


def test_every_spelling_of_a_product() -> None:
    parameters = {"w": nn.Parameter(torch.randn(4, 6)), "t": nn.Parameter(torch.randn(6, 4))}
    stack = nn.Parameter(torch.randn(3, 4, 6))
    x, seen = torch.randn(2, 6), list[Use]()
    with WatchWeights({**parameters, "stack": stack}, seen.append), torch.no_grad():
        F.linear(x, parameters["w"])
        x @ parameters["w"].T
        x @ parameters["t"]
        torch.addmm(torch.zeros(4), x, parameters["t"])
        F.linear(x, stack[2])
        x @ stack[1].T
        x @ torch.randn(6, 4)  # not a parameter
        F.linear(x, parameters["w"][:2])  # not all of one
    assert [use.matrix for use in seen] == [
        Matrix("w"),
        Matrix("w"),
        Matrix("t", None, transposed=True),
        Matrix("t", None, transposed=True),
        Matrix("stack", 2),
        Matrix("stack", 1),
    ]
    assert all(use.inputs is x for use in seen[:6])
    with WatchWeights(parameters, seen.append), torch.no_grad():
        parameters["w"] @ x.T  # the weight on the left
    assert seen[6].matrix == Matrix("w") and torch.equal(seen[6].inputs, x)
    seen.clear()
    with WatchWeights({"stack": stack}, seen.append), torch.no_grad():
        torch.bmm(torch.stack([torch.zeros(2, 4), torch.ones(2, 4), torch.eye(2, 4)]), stack)
        torch.bmm(torch.ones(3, 2, 6), stack.mT)  # held as [out, in]
        torch.baddbmm(torch.zeros(3, 2, 6), torch.ones(3, 2, 4), stack)
    assert [(use.matrix.expert, len(use.inputs)) for use in seen[:3]] == [(0, 0), (1, 2), (2, 2)]
    assert [use.matrix.transposed for use in seen] == 3 * [True] + 3 * [False] + 3 * [True]
    seen.clear()
    attention = nn.MultiheadAttention(8, 2)
    with WatchWeights(dict(attention.named_parameters()), seen.append), torch.no_grad():
        attention(*3 * [torch.randn(5, 1, 8)])
    assert [use.matrix.name for use in seen] == ["in_proj_weight", "out_proj.weight"]
    assert str(Matrix("stack", 2)) == "stack[2]" and str(Matrix("w")) == "w"
