"""A block while it is learned: on its grid at every moment, with the right gradients, written at the end."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall
from sparsebit.llm.methods.learned_block import LearnedBlock, LearnedMatrix
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import SolvedMatrix, WeightSpec
from sparsebit.llm.weights.uses import Matrix
from sparsebit.numerics import CodeType


def solved(weight: torch.Tensor, code: str = "uint3", *, name: str = "weight") -> SolvedMatrix:
    spec = WeightSpec(code=CodeType.parse(code), group_size=8)
    return SolvedMatrix(Matrix(name), Rtn(steps=8).solve(weight, None, spec), 1, 0.0)


def test_it_starts_from_what_was_solved() -> None:
    for code in ("uint3", "int4_full", "nf4", "fp8_e4m3"):
        one = solved(torch.randn(4, 16), code)
        assert torch.allclose(LearnedMatrix(one).weight(), one.solved.weight), code


def test_gradients_are_those_of_the_straight_through_rule() -> None:
    learned = LearnedMatrix(solved(torch.randn(4, 16)))
    with torch.no_grad():
        learned.steps += 3 * torch.randn(8, 8)  # some beyond the range
    for tensor in (learned.steps, learned.factor, learned.zero_point):
        tensor.requires_grad_()
    pull = torch.randn(4, 16)
    (learned.weight() * pull).sum().backward()
    steps, factor, point = (
        one.detach().clone() for one in (learned.steps, learned.factor, learned.zero_point)
    )
    for tensor in (steps, factor, point):
        tensor.requires_grad_()
    base = learned.one.solved.grid.scale.float()  # type: ignore[union-attr]
    scale = base * factor
    scale = scale + (scale.half().float() - scale).detach()
    rounded = steps + (steps.round() - steps).detach()
    whole = (point + (point.round() - point).detach())[:, None]
    inside = torch.where(rounded > 7 - whole, 7 - whole, rounded)  # not minimum: it halves gradients of ties
    values = torch.where(inside < -whole, -whole, inside) * scale[:, None]
    (values * pull.reshape(8, 8)).sum().backward()
    assert learned.steps.grad is not None and learned.factor.grad is not None
    assert torch.allclose(learned.factor.grad, factor.grad, atol=1e-5)
    assert torch.allclose(learned.zero_point.grad, point.grad, atol=1e-5)
    assert torch.allclose(learned.steps.grad, steps.grad, atol=1e-6)


def test_what_was_learned_lies_on_a_grid_of_stored_scales() -> None:
    learned = LearnedMatrix(solved(torch.randn(4, 16)))
    with torch.no_grad():
        learned.factor *= 1.1
        learned.steps += 0.7
        learned.zero_point += 0.6
    found = learned.finish("tuned").solved
    assert found.grid.scale.dtype == torch.float16 and found.remark == "tuned"
    assert torch.equal(found.grid.zero_point, found.grid.zero_point.round())
    assert torch.equal(found.grid.snap(found.weight), found.weight)


def test_gradient_of_a_scale_is_its_quantized_value() -> None:
    one = solved(torch.randn(2, 8), "int4")
    learned = LearnedMatrix(one)
    learned.factor.requires_grad_()
    learned.weight().sum().backward()
    assert learned.factor.grad is not None
    assert torch.allclose(learned.factor.grad, one.solved.weight.sum(1), atol=1e-6)


def test_pruned_weights_stay_zero() -> None:
    one = solved(torch.randn(2, 8), "int4")
    kept = torch.tensor([[1, 0, 0, 1] * 2] * 2, dtype=torch.bool)
    learned = LearnedMatrix(one._replace(solved=one.solved._replace(kept=kept)))
    with torch.no_grad():
        learned.steps += 3
    assert not learned.weight()[~kept].any()


def test_the_block_is_called_with_learned_weights_and_written_at_the_end() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).requires_grad_(False)
    before = block[0].weight.clone()
    learned = LearnedBlock(block, [solved(before, name="0.weight")])
    x, call = torch.randn(3, 8), BlockCall((None,), {}, 0)
    out = learned.run(call, x, learned.tensors())
    assert torch.equal(block[0].weight, before) and not torch.allclose(out, block(x))
    learned.write()
    assert torch.allclose(block(x), out) and set(learned.vectors) == {"0.bias", "1.weight", "1.bias"}


def test_one_expert_of_a_stack_is_learned_and_the_others_stay() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = nn.Parameter(torch.randn(2, 8, 8), requires_grad=False)

    block = Experts()
    one = solved(block.stack[1].T.contiguous())
    learned = LearnedBlock(block, [one._replace(matrix=Matrix("stack", 1, transposed=True))])
    found = learned.tensors()["stack"]
    assert torch.equal(found[0], block.stack[0]) and torch.allclose(found[1].T, one.solved.weight)
