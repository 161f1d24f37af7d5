"""What blocks are called with, recorded without running them, is what they are called with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import (
    BlockCall,
    BlockRuns,
    find_hidden,
    hidden_in,
    outputs_of,
    run_model,
)
from sparsebit.llm.blocks.find import find_stack
from sparsebit.llm.blocks.solve import run_block
from sparsebit.llm.weights.uses import Use, WatchWeights
from tests.llm.models import DECODERS, VOCABULARY, stream_of, tokens


class Logits(nn.Module):
    """A decoder inside a module that knows nothing of caches."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = DECODERS["llama"]()

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.decoder(tokens).logits
        return logits


def test_a_decoder_inside_another_module_runs_without_a_cache() -> None:
    model, seen = Logits().eval(), list[object]()
    block = find_stack(model).modules[0]
    block.register_forward_hook(
        lambda module, args, kwargs, output: seen.append(kwargs.get("past_key_values")), with_kwargs=True
    )
    run_model(model, tokens(8).view(1, 8))
    assert seen == [None] and model.decoder.config.use_cache is True


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_blocks_in_turn_give_what_the_model_gives(name: str) -> None:
    model = DECODERS[name]()
    stack, ids, seen = find_stack(model), tokens(48).view(2, 24), []
    with torch.no_grad():
        stream = stream_of(model, ids)
        handle = stack.modules[-1].register_forward_hook(lambda module, args, output: seen.append(output))
        model(ids)
        handle.remove()
        for block in stack.modules:
            stream.advance(run_block(stream.runs(block)))
        rest = stream.run_rest(0).logits
    assert torch.equal(stream.hidden[0], hidden_in(seen[0])) and torch.equal(rest, model(ids).logits)


def test_hidden_states_are_the_first_floating_point_tensor() -> None:
    states = torch.zeros(2, 3)
    assert find_hidden((None, torch.zeros(2, 3, dtype=torch.long), states), {}) == (2, states)
    assert find_hidden((), {"mask": None, "hidden_states": states}) == ("hidden_states", states)
    with pytest.raises(SparsebitError, match="called without hidden states"):
        find_hidden((1,), {})
    with pytest.raises(SparsebitError, match="a block returned no hidden states"):
        hidden_in({"a": nn.Identity()})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bloom", {"hidden_size": 64, "n_layer": 3, "n_head": 4}),  # biases for each head of each sequence
        ("t5", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_heads": 4}),  # and a common one
    ],
)
def test_blocks_that_share_a_position_bias(name: str, settings: dict[str, int]) -> None:
    transformers = pytest.importorskip("transformers")
    kind = {"bloom": transformers.BloomForCausalLM, "t5": transformers.T5EncoderModel}[name]
    model = kind(kind.config_class(vocab_size=VOCABULARY, **settings)).eval()
    ids = tokens(512)
    config = {
        "W": {"BIT": 8},
        "METHOD": "gptq",
        "HEAD": {"BIT": 8},
        "CALIBRATION": {"SAMPLES": 4, "LENGTH": 16},
    }
    made = llm.quantize(model, ids, config, progress=False)
    with torch.no_grad():
        wanted, found = (outputs_of(run_model(one, ids[None, :16])) for one in (model, made.model))
    assert (found - wanted).norm() < 0.02 * wanted.norm()
    assert all(record.loss < 1e-3 and record.tokens == 64 for record in made.records[:-2])


def test_blocks_run_in_bfloat16_where_that_is_asked_for() -> None:
    torch.manual_seed(0)
    block, hidden = nn.Linear(64, 64).requires_grad_(False), torch.randn(1, 5, 64)
    runs = BlockRuns(block, [BlockCall((None,), {}, 0)], [hidden])
    wanted = F.linear(hidden.bfloat16(), block.weight.bfloat16(), block.bias.bfloat16()).float()
    assert torch.equal(run_block(replace(runs, half=True))[0][0], wanted)
    assert torch.equal(run_block(runs)[0][0], block(hidden))
    assert replace(runs, half=True).on([hidden]).half  # the float model runs in the same arithmetic
    assert not replace(runs, half=True).first_sequence().half  # what is found by trying needs all digits


def test_what_watches_weights_sees_them_in_bfloat16_too() -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(1, 5, 64), torch.randn(64, 64)
    seen: list[Use] = []
    runs = BlockRuns(nn.Identity(), [], [inputs], half=True)
    with runs.products(), WatchWeights({"weight": weight}, seen.append):
        F.linear(inputs, weight)
    assert [use.matrix.name for use in seen] == ["weight"] and seen[0].inputs is inputs


def test_a_sequence_that_is_longer_than_a_table_is_refused() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Embedding(64, 4)

        def forward(self, input_ids: Tensor) -> Tensor:
            found: Tensor = self.places(torch.arange(input_ids.shape[1]))
            return found

    with pytest.raises(SparsebitError, match=r"(?s)a row that one of its tables.*sequences of 80 tokens"):
        run_model(Placed(), tokens(80)[None])
