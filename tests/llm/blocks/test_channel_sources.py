"""Where a scale can be moved to: found by trying, for every shape of block, and exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.blocks.channel_sources import find_channel_source, move_scale
from sparsebit.llm.blocks.find import find_stack
from sparsebit.llm.blocks.stages import find_stages
from tests.llm.models import DECODERS, stream_of, tokens


def sources(name: str) -> dict[str, str]:
    """Of each group of weights of a decoder's block: the parameter that takes up its scale."""
    model = DECODERS[name]()
    stack = find_stack(model)
    runs = stream_of(model, tokens(24)[None]).runs(stack.modules[0])
    parameters = {key: one for key, one in runs.block.named_parameters() if one.dim() == 2}
    stages = find_stages(runs, parameters)
    found = {}
    with torch.no_grad():
        wanted = runs.run()
        for index, stage in enumerate(stages):
            for group in stage.groups:
                source = find_channel_source(runs, group, stages[:index])
                if source is not None:
                    scale = 0.5 + torch.rand(int(source.channels.max()) + 1)
                    if move_scale(runs, group, source, scale):
                        found[group.leader.name.rsplit(".", 2)[-2]] = source.names[0]
        assert torch.allclose(runs.run(), wanted, rtol=1e-3, atol=1e-4)
    return found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "llama",  # with two heads sharing each value
            {
                "q_proj": "input_layernorm.weight",
                "o_proj": "self_attn.v_proj.weight",
                "gate_proj": "post_attention_layernorm.weight",
                "down_proj": "mlp.up_proj.weight",
            },
        ),
        (
            "opt",
            {"q_proj": "self_attn_layer_norm.weight", "fc1": "final_layer_norm.weight", "fc2": "fc1.weight"},
        ),
        # Values are part of c_attn; no scale passes GELU.
        ("gpt2", {"c_attn": "ln_1.weight", "c_fc": "ln_2.weight"}),
        ("gemma2", {"q_proj": "input_layernorm.weight", "down_proj": "mlp.up_proj.weight"}),
    ],
)
def test_sources_of_decoders(name: str, wanted: dict[str, str]) -> None:
    found = sources(name)
    assert wanted.items() <= found.items()
    if name == "gpt2":
        assert set(found) == set(wanted)


@pytest.mark.parametrize("stream", [0, 1e4])
def test_a_channel_that_something_else_reads_is_left_alone(stream: float) -> None:
    # A residual stream far larger than what the block adds to it does not hide the change.
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            return stream * x + y + self.linear(y)  # type: ignore[no-any-return]

    block, x = Shared().requires_grad_(False), torch.randn(2, 5, 8)
    runs = BlockRuns(block, [BlockCall((None,), {}, 0)], [x])
    before, wanted = block.norm.weight.clone(), block(x)
    (stage,) = find_stages(runs, {"linear.weight": block.linear.weight})
    source = find_channel_source(runs, stage.groups[0], [])
    assert source is not None and source.names == ("norm.weight", "norm.bias")
    assert not move_scale(runs, stage.groups[0], source, torch.full((8,), 2.0))
    assert torch.equal(block.norm.weight, before) and torch.equal(block(x), wanted)
