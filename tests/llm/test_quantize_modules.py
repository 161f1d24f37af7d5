"""Modules of a user's own, compressed block by block: what they multiply by, share, count and return."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from tests.llm.models import _GROUPED, DECODERS, VOCABULARY, Plain, _from_config, tokens
from tests.llm.test_quantize_blocks import CONFIG, logits


class SquareBlock(nn.Module):
    """Multiplies by a parameter of its own that is square, so that its shape does not say which axis is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.linear = nn.Parameter(torch.randn(64, 64) / 8), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(torch.relu(x @ self.matrix))


class SquareModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.blocks = nn.ModuleList(SquareBlock() for _ in range(2))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


def test_a_square_matrix_stored_as_in_by_out_keeps_its_orientation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = SquareModel().eval()
    ids = tokens(32)[None]
    wanted = logits(model, ids)
    result = llm.quantize(model, tokens(), {**CONFIG, "W": {"BIT": 8, "GROUP_SIZE": 32}}, progress=False)
    assert (logits(result.model, ids) - wanted).norm() < 0.02 * wanted.norm()
    result.save(tmp_path / "saved")
    loaded = llm.LanguageModel.load(tmp_path / "saved", model)
    assert torch.equal(logits(loaded.model, ids), logits(result.model, ids))


def test_attention_of_torch_is_quantized() -> None:
    torch.manual_seed(0)
    model = Plain()
    model.blocks = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2))
    result, ids = llm.quantize(model, tokens(), CONFIG, progress=False), tokens(8)[None]
    assert not result.ignored and len(result.weights) == 2 * 4
    state = model.state_dict() | {name: held.numbers() for name, held in result.weights.items()}
    model.load_state_dict(state)
    assert torch.allclose(logits(result.model, ids), logits(model.eval(), ids), atol=1e-5)


class _Counting(nn.Linear):
    """Counts its calls in a buffer."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__(32, 32)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def test_buffers_that_calibration_changes_get_their_values_back() -> None:
    model = Plain()
    model.blocks = nn.ModuleList(nn.Sequential(_Counting(), nn.Linear(32, 32)) for _ in range(2))
    result = llm.quantize(model, tokens(), CONFIG, progress=False)
    assert [float(one) for one in result.model.buffers() if one.dim() == 0] == [0, 0]


class _Pair(Plain):
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(input_ids + positions)


def test_models_that_cannot_run_on_token_ids_are_named() -> None:
    with pytest.raises(SparsebitError, match=r"(?s)_Pair raised TypeError on token ids.*int64\[1, 32\]"):
        llm.quantize(_Pair(), tokens(), CONFIG, progress=False)
    model = Plain()
    model.embed = nn.Linear(32, 32)  # type: ignore[assignment]
    with pytest.raises(
        SparsebitError, match=r"(?s)Plain raised RuntimeError.*models.py:\d+ in Plain.forward"
    ):
        llm.quantize(model, tokens(), CONFIG, progress=False)
    model.blocks = nn.ModuleList(torch.jit.script(block) for block in model.blocks)
    with pytest.raises(SparsebitError, match=r"(?s)of TorchScript modules cannot.*where: +blocks.0"):
        llm.quantize(model, None, {"METHOD": "rtn"}, progress=False)


def test_what_a_call_with_gradients_left_in_a_module_is_copied_too() -> None:
    model = DECODERS["llama"]()
    with torch.enable_grad():
        model.model.layers[0].state = model(tokens(8)[None]).logits.sum()  # as recurrent layers keep one
    llm.quantize(model, None, {"METHOD": "rtn"}, progress=False)
    assert model.model.layers[0].state.requires_grad


class _Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bli,oi->blo", x, self.weight)


def test_a_model_of_which_nothing_is_quantized_is_an_error() -> None:
    model = Plain()
    model.blocks = nn.ModuleList(_Einsum() for _ in range(2))
    with pytest.raises(SparsebitError, match=r"(?s)no weight of Plain was quantized.*not seen.*METHOD: rtn"):
        llm.quantize(model, tokens(), CONFIG, progress=False)
    assert len(llm.quantize(model, None, {**CONFIG, "METHOD": "rtn"}, progress=False).weights) == 2


class _Sharing(nn.Module):
    """One block of several, with a module that all have, a weight that it has twice, and one of the embedding."""

    def __init__(self, mlp: nn.Module, embed: nn.Embedding) -> None:
        super().__init__()
        self.mlp = mlp
        self.up, self.gate, self.out = (nn.Linear(32, 32) for _ in range(3))
        self.gate.weight, self.out.weight = self.up.weight, embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.out(self.up(x) * self.gate(x).tanh()) + self.mlp(x)
        return found


def _sharing() -> Plain:
    torch.manual_seed(0)
    model = Plain()
    model.embed = nn.Embedding(32, 32)
    mlp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    model.blocks = nn.ModuleList(_Sharing(mlp, model.embed) for _ in range(3))
    return model.eval()


@pytest.mark.parametrize("bits", [4, 0])
@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_whatever_blocks_share_is_compressed_in_all_of_them(tmp_path: Path, method: str, bits: int) -> None:
    config = {**CONFIG, "METHOD": method, "W": {"BIT": bits, "GROUP_SIZE": 32, "SPARSITY": 0.5}}
    ids = tokens() % 32
    found = llm.quantize(_sharing(), ids, config, folder=tmp_path / "blocks", progress=False)
    plain: Any = _sharing()
    for index, block in enumerate(plain.blocks):
        block.mlp = copy.deepcopy(block.mlp)
        for layer in ("mlp.0", "mlp.2", "up", "gate", "out"):
            name = f"blocks.{index}.{layer}.weight"
            record = next(one for one in found.records if one.name == name)
            held = found.weights[name].numbers() if bits else found.model.get_parameter(name)
            assert record.bits == pytest.approx(4.5 if bits else 32)
            assert float((held == 0).float().mean()) > 0.45
            block.get_submodule(layer).weight = nn.Parameter(held)
    first, second = plain.blocks[0], plain.blocks[2]
    assert torch.equal(first.up.weight, first.gate.weight)
    assert torch.equal(first.mlp[0].weight, second.mlp[0].weight)
    wanted = plain(ids[None, :16])
    assert torch.allclose(found(ids[None, :16]), wanted, atol=1e-5)
    resumed = llm.quantize(_sharing(), ids, config, folder=tmp_path / "blocks", progress=False)
    assert torch.equal(resumed(ids[None, :16]), found(ids[None, :16]))
    found.save(tmp_path / "saved")
    loaded = llm.LanguageModel.load(tmp_path / "saved", _sharing())
    assert torch.equal(loaded(ids[None, :16]), found(ids[None, :16]))


def test_blocks_that_share_weights_share_the_packed_ones(tmp_path: Path) -> None:
    model = _from_config(
        "zamba2",
        **{**_GROUPED, "num_hidden_layers": 4, "num_key_value_heads": 4},
        layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid"],
        n_mamba_heads=8,
        mamba_headdim=16,
        attention_head_dim=32,
        attention_hidden_size=128,
        num_mem_blocks=1,
    )
    found = llm.quantize(model, tokens(), CONFIG, progress=False)
    first, second = (
        found.weights[f"model.layers.{i}.shared_transformer.self_attn.q_proj.weight"] for i in (1, 3)
    )
    assert first.bits.data_ptr() == second.bits.data_ptr()
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name in found.weights:
                parameter.copy_(found.weights[name].numbers())
    ids = tokens(16)[None]
    wanted = found(ids).logits
    assert torch.allclose(wanted, plain(ids).logits, atol=1e-5)
    model.save_pretrained(tmp_path / "float")
    found.save(tmp_path / "saved")  # with its infinite time_step_limit
    from_folder = llm.quantize(tmp_path / "float", tokens(), CONFIG, progress=False)
    for other in (from_folder, llm.LanguageModel.load(tmp_path / "saved")):
        assert torch.equal(other(ids).logits, wanted)
    with pytest.raises(SparsebitError, match="Zamba2ForCausalLM shares weights between its blocks"):
        llm.quantize(model, tokens(), {**CONFIG, "METHOD": ["awq", "gptq"]}, progress=False)
    with pytest.raises(SparsebitError, match="store it once for several layers"):
        found.export(tmp_path / "packed", "compressed-tensors")


def test_several_hidden_states_for_each_token_come_before_the_sequences() -> None:
    kinds = ["sliding_attention", "full_attention"]
    model = _from_config(
        "gemma3n_text",
        **{**_GROUPED, "num_hidden_layers": 2},
        layer_types=kinds,
        head_dim=16,
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=96,
        hidden_size_per_layer_input=16,
        activation_sparsity_pattern=[0.5, 0.0],
        altup_num_inputs=2,
        laurel_rank=8,
    )
    found = llm.quantize(model, tokens(), CONFIG, progress=False)
    assert any("mlp.down_proj" in name for name in found.weights)
