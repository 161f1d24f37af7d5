"""The order in which the weights of a block are solved."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.blocks.find import find_stack
from sparsebit.llm.blocks.stages import Stage, find_stages
from sparsebit.llm.folders.source import run_experts_in_turn
from tests.llm.models import DECODERS, stream_of, tokens


def stages_of(name: str) -> list[Stage]:
    model = DECODERS[name]()
    run_experts_in_turn(model)
    block = find_stack(model).modules[0]
    parameters = {key: one for key, one in block.named_parameters() if one.dim() > 1}
    return find_stages(stream_of(model, tokens(24)[None]).runs(block), parameters)


def test_weights_that_read_one_tensor_are_one_group_and_groups_follow_each_other() -> None:
    names = [
        [m.name.split(".")[-2] for g in stage.groups for m in g.matrices] for stage in stages_of("llama")
    ]
    assert names == [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]]
    assert all(stage.single for stage in stages_of("llama"))


def test_numbers_in_names_of_ordinary_layers_mean_nothing() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False)
    stages = find_stages(
        BlockRuns(block, [BlockCall((None,), {}, 0)], [torch.randn(2, 8)]), dict(block.named_parameters())
    )
    assert [stage.groups[0].leader.name for stage in stages] == ["0.weight", "1.weight"]


def test_experts_of_one_kind_are_one_stage_with_those_that_were_not_reached() -> None:
    experts = [stage for stage in stages_of("mixtral") if not stage.single]
    kinds = [{str(group.leader) for group in stage.groups} for stage in experts]
    for kind, key in zip(kinds, ("gate_up_proj", "down_proj"), strict=True):
        assert kind == {f"mlp.experts.{key}[{index}]" for index in range(4)}
