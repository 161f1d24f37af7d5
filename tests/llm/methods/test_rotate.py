"""Rotation: the same model in float, for every decoder that it takes, and a refusal for the others."""

from __future__ import annotations

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.blocks.find import find_stack
from sparsebit.llm.blocks.route import Route
from sparsebit.llm.blocks.solve import run_block
from sparsebit.llm.methods.rotate import Rotate, make_rotation, rotate_block
from tests.llm.models import DECODERS, latent_attention, stream_of, tokens


@pytest.mark.parametrize("size", [64, 36, 9])
def test_rotations_are_orthogonal(size: int) -> None:
    turn = make_rotation(size, 3)
    assert torch.allclose(turn @ turn.T, torch.eye(size, dtype=torch.float64), atol=1e-12)
    assert not torch.equal(turn, make_rotation(size, 4))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_rotated_decoder_computes_the_same(name: str) -> None:
    model, ids = DECODERS[name](), tokens(24)[None]
    wanted = model(ids).logits.detach()
    stack = find_stack(model)
    before = [block.self_attn.v_proj.weight.clone() for block in stack.modules]
    prepare = Rotate().start(model, Route.unseen(stack.names))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    stream = stream_of(model, ids)
    for block in stack.modules:
        prepare(stream.runs(block), lambda name: None)
        stream.advance(run_block(stream.runs(block)))
    assert (model(ids).logits - wanted).norm() < 1e-4 * wanted.norm()
    for block, weight in zip(stack.modules, before, strict=True):
        assert torch.equal(block.input_layernorm.weight, torch.ones(64))
        only_stream = rotated_values(name, block=0) if block is stack.modules[0] else None
        assert only_stream is None or not torch.allclose(only_stream, block.self_attn.v_proj.weight)
        assert not torch.allclose(weight, block.self_attn.v_proj.weight)


def test_norms_inside_attention_stay_where_they_are() -> None:
    model, ids = latent_attention().requires_grad_(False), tokens(24)[None]
    wanted, stack = model(ids).logits, find_stack(model)
    prepare = Rotate().start(model, Route.unseen(stack.names))
    stream = stream_of(model, ids)
    for block in stack.modules:
        prepare(stream.runs(block), lambda name: None)
        stream.advance(run_block(stream.runs(block)))
    assert (model(ids).logits - wanted).norm() < 1e-4 * wanted.norm()


def rotated_values(name: str, block: int) -> torch.Tensor:
    """The values of a block when only the residual stream is turned: heads must be turned besides."""
    model, ids = DECODERS[name](), tokens(24)[None]
    stack = find_stack(model)
    stream = stream_of(model, ids)
    turn = make_rotation(64, 0)
    hidden = (stream.hidden[0].double() @ turn).float()
    runs = BlockRuns(stack.modules[block].requires_grad_(False), [stream.calls[block][0]], [hidden])
    rotate_block(runs, turn, head_seed=None)
    found: torch.Tensor = stack.modules[block].self_attn.v_proj.weight  # type: ignore[union-attr, assignment]
    return found


def test_outliers_are_spread_and_rounding_gains() -> None:
    model, ids = DECODERS["llama"](), tokens(64)[None]
    model.config.tie_word_embeddings = True
    model.tie_weights()
    with torch.no_grad():
        for layer in model.model.layers:
            for weight in (
                layer.self_attn.q_proj.weight,
                layer.mlp.gate_proj.weight,
                layer.mlp.up_proj.weight,
            ):
                weight[:, 5] *= 30
    before = {key: value.clone() for key, value in model.state_dict().items()}
    wanted = model(ids).logits.detach()
    config = {"W": {"BIT": 4, "GROUP_SIZE": 0}, "CALIBRATION": {"SAMPLES": 4, "LENGTH": 32}}
    errors = []
    for method in (["rtn"], ["rotate", "rtn"]):
        result = llm.quantize(model, tokens(), {**config, "METHOD": method}, progress=False)
        errors.append(float((result.model(ids).logits.detach() - wanted).norm()))
    assert errors[1] < 0.8 * errors[0]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.config.tie_word_embeddings and not result.model.config.tie_word_embeddings


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("opt", "the last norm and the head"),
        ("gpt2", "the last norm and the head"),
        ("mixtral", "mlp.experts.gate_up_proj is not rotated"),
    ],
)
def test_other_norms_and_experts_are_refused(name: str, reason: str) -> None:
    config = {"W": {"BIT": 4}, "METHOD": ["rotate", "rtn"], "CALIBRATION": {"SAMPLES": 2, "LENGTH": 16}}
    with pytest.raises(SparsebitError, match=f"rotate: .*{reason}"):
        llm.quantize(DECODERS[name](), tokens(), config, progress=False)
