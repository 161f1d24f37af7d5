"""Tuning: against the least-squares solution where there is one, and undone where it does not help."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from sparsebit import llm
from sparsebit.errors import ConfigError
from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.signround import SignRound
from sparsebit.llm.methods.solver import SolvedMatrix, WeightSpec
from sparsebit.llm.methods.tune import Tune
from sparsebit.llm.tokens import windows
from sparsebit.llm.weights.uses import Matrix
from sparsebit.numerics import CodeType
from tests.llm.models import DECODERS, tokens

CALL = BlockCall((None,), {}, 0)


def one_layer() -> tuple[nn.Linear, list[Tensor], list[Tensor], SolvedMatrix]:
    torch.manual_seed(0)
    block = nn.Linear(16, 4, bias=False).requires_grad_(False)
    mixing = torch.randn(16, 16)
    hidden = [torch.randn(64, 16) @ mixing for _ in range(4)]
    targets = [block(x) for x in hidden]
    spec = WeightSpec(code=CodeType("int", 3), group_size=None, scale_dtype=torch.float32)
    solved = Rtn().solve(block.weight.clone(), None, spec)
    block.weight.copy_(solved.weight)
    return block, hidden, targets, SolvedMatrix(Matrix("weight"), solved, 256, 0.0)


def test_scales_alone_come_to_the_least_squares_solution() -> None:
    block, hidden, targets, one = one_layer()
    # All targets of one size, so that relative errors are ordinary ones and each row has a solution of its own.
    steps = one.solved.weight / one.solved.grid.scale[:, None]
    (found,) = Tune(steps=600, scale_lr=1e-2, weight_lr=0.0).tune(
        BlockRuns(block, [CALL] * 4, hidden), targets, [one]
    )
    outputs, wanted = torch.cat(hidden) @ steps.T, torch.cat(targets)
    weight = 1 / wanted.square().sum(1, keepdim=True)
    best = (weight * outputs * wanted).sum(0) / (weight * outputs.square()).sum(0)
    assert torch.allclose(found.solved.grid.scale, best, rtol=2e-3)
    assert torch.equal(block.weight, found.solved.weight)
    assert found.solved.remark.startswith("tuned: error of the block ")


def test_rounding_is_learned_too() -> None:
    block, hidden, targets, one = one_layer()
    only_scales = Tune(steps=200, scale_lr=1e-2, weight_lr=0.0)
    losses = []
    for settings in (only_scales, dataclasses.replace(only_scales, weight_lr=2e-2)):
        block.weight.copy_(one.solved.weight)
        settings.tune(BlockRuns(block, [CALL] * 4, hidden), targets, [one])
        losses.append(float((torch.cat(hidden) @ block.weight.T - torch.cat(targets)).square().mean()))
    assert losses[1] < 0.8 * losses[0]


def test_what_does_not_help_is_undone_and_said() -> None:
    block, hidden, targets, one = one_layer()
    (found,) = Tune(steps=3, scale_lr=50.0).tune(BlockRuns(block, [CALL] * 4, hidden), targets, [one])
    assert torch.equal(block.weight, one.solved.weight) and torch.equal(
        found.solved.weight, one.solved.weight
    )
    assert "tuning did not reduce the error" in found.solved.remark


@pytest.mark.parametrize("method", [Tune(scale_lr=0.0, norm_lr=0.0), SignRound(scale_reach=0.0)])
def test_a_block_with_nothing_to_learn_stays_and_says_so(method: Tune | SignRound) -> None:
    block, hidden, targets, one = one_layer()
    grid = Rtn().solve(block.weight.clone(), None, WeightSpec(code=CodeType("nf4", 4), group_size=None))
    (found,) = method.tune(BlockRuns(block, [CALL] * 4, hidden), targets, [one._replace(solved=grid)])
    assert found.solved.weight is grid.weight and found.solved.remark == "tuning had nothing to learn"
    with pytest.raises(ConfigError, match="there is nothing to learn"):
        Tune(scale_lr=0, norm_lr=0, weight_lr=0)


def test_norms_of_a_decoder_are_tuned_and_the_model_comes_closer() -> None:
    model, ids = DECODERS["llama"](), tokens(64)[None]
    config = {"W": {"BIT": 2, "GROUP_SIZE": 32}, "CALIBRATION": {"SAMPLES": 4, "LENGTH": 32}}
    wanted = model(ids).logits.detach()
    errors = []
    for method in ("rtn", ["rtn", {"tune": {"steps": 20}}]):
        result = llm.quantize(model, tokens(), {**config, "METHOD": method}, progress=False)
        errors.append(float((result.model(ids).logits.detach() - wanted).norm()))
    norm = result.model.get_parameter("model.layers.0.input_layernorm.weight")
    assert errors[1] < errors[0]
    assert not torch.equal(norm, model.get_parameter("model.layers.0.input_layernorm.weight"))
    # The recorded loss is that of the tuned weight on its inputs in the tuned model.
    last, inputs = result.records[-1], list[Tensor]()
    layer = result.model.get_submodule(last.name.removesuffix(".weight"))
    layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        result.model(windows(tokens(), 4, 32))
        right, wrong = (inputs[0] @ one.T for one in (model.get_parameter(last.name), layer.weight))
    lost = float((right - wrong).square().sum() / right.square().sum())
    assert last.loss == pytest.approx(lost, rel=1e-3)
