"""A language model compressed block by block: any decoder, packed, resumable, and the original left alone."""

from __future__ import annotations

import copy
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.llm import quantize_blocks
from sparsebit.llm.packed.linear import PackedEmbedding, PackedLinear
from tests.llm.models import (
    _GROUPED,
    DECODERS,
    ROUTES,
    TRANSPOSED_EXPERTS,
    VOCABULARY,
    Plain,
    _from_config,
    tokens,
)

CONFIG = {
    "W": {"BIT": 4, "GROUP_SIZE": 32},
    "METHOD": "gptq",
    "CALIBRATION": {"SAMPLES": 4, "LENGTH": 32},
}


def logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        output = model(ids)
    found: torch.Tensor = output.logits if hasattr(output, "logits") else output
    return found


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_every_decoder_is_quantized_and_stays_close(name: str) -> None:
    model = DECODERS[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ids = tokens(32)[None]
    wanted = logits(model, ids)
    result = llm.quantize(model, tokens(), CONFIG, progress=False)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    got = logits(result.model, ids)
    rounded = logits(llm.quantize(model, None, {**CONFIG, "METHOD": "rtn"}, progress=False).model, ids)
    assert (got - wanted).norm() < 0.5 * wanted.norm()
    assert (got - wanted).norm() < 1.1 * (rounded - wanted).norm()
    matrices = [key for key, value in before.items() if value.dim() > 1 and ".0." in key]
    inside = [record.name for record in result.records if ".0." in record.name]
    assert inside and len({one.partition("[")[0] for one in inside}) >= len(
        [key for key in matrices if "norm" not in key and not key.endswith(("gate.weight", "router.weight"))]
    )


@pytest.mark.parametrize("made_inside", [False, True])
def test_inference_mode_and_autocast_change_nothing(made_inside: bool) -> None:
    config = {**CONFIG, "METHOD": ["gptq", {"tune": {"steps": 2}}]}
    wanted = llm.quantize(DECODERS["llama"](), tokens(), config, progress=False).weights
    model = DECODERS["llama"]()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        model = DECODERS["llama"]() if made_inside else model
        small = llm.quantize(model, tokens(), config, progress=False)
    found = small.weights
    assert made_inside or small(tokens(8)[None]).logits.requires_grad  # used outside, with gradients
    assert all(torch.equal(found[name].numbers(), held.numbers()) for name, held in wanted.items())


def test_experts_that_are_multiplied_all_at_once_are_seen_one_by_one() -> None:
    model, ids = TRANSPOSED_EXPERTS["llama4"](), tokens(32)[None]
    result = llm.quantize(model, tokens(), {**CONFIG, "W": {"BIT": 8}}, progress=False)
    assert set(result.ignored.values()) == {"IGNORE: *.router"}
    experts = [
        one for one in result.records if one.name.startswith("model.layers.0.feed_forward.experts.gate_up")
    ]
    attention = next(one for one in result.records if one.name.endswith("0.self_attn.q_proj.weight"))
    assert len(experts) == 4 and sum(one.tokens for one in experts) == attention.tokens
    assert (logits(result.model, ids) - logits(model, ids)).norm() < 0.02 * logits(model, ids).norm()


def test_what_is_done_to_the_result_does_not_reach_the_given_model(tmp_path: Path) -> None:
    model = DECODERS["llama"]()
    made = llm.quantize(model, None, {"METHOD": "rtn"}, progress=False)
    made.save(tmp_path / "saved")
    loaded = llm.LanguageModel.load(tmp_path / "saved", model)
    for one in (made, loaded):
        one.model.bfloat16().requires_grad_(False)
    assert {(p.dtype, p.requires_grad) for p in model.parameters()} == {(torch.float32, True)}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])  # with a head of its own, and with a tied one
def test_a_model_in_half_precision_is_quantized_in_float32(name: str) -> None:
    model, ids = DECODERS[name]().bfloat16(), tokens(24)[None]
    made = llm.quantize(model, tokens(), CONFIG, progress=False)
    assert {one.dtype for one in model.parameters()} == {torch.bfloat16}
    again = llm.quantize(model.float(), tokens(), CONFIG, progress=False)
    assert torch.equal(logits(made.model, ids), logits(again.model, ids))
    assert {one.dtype for one in made.model.parameters()} == {torch.float32}


def test_what_is_packed_is_what_was_solved() -> None:
    result = llm.quantize(DECODERS["llama"](), tokens(), CONFIG, progress=False)
    layer = result.model.get_submodule("model.layers.1.mlp.up_proj")
    assert isinstance(layer, PackedLinear)
    held = result.weights["model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(layer.weight, held.numbers())
    assert torch.equal(held.grid.codes(held.numbers()), held.codes())
    assert held.bits.numel() == held.shape[0] * held.shape[1] // 2
    assert result.bits == pytest.approx(4.5)


def test_head_and_embedding_stay_one_tensor_when_tied() -> None:
    model = DECODERS["llama"]()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    config = {**CONFIG, "HEAD": {"BIT": 4, "GROUP_SIZE": 32}}
    result = llm.quantize(model, tokens(), config, progress=False)
    embedding = result.model.get_submodule("model.embed_tokens")
    head = result.model.get_submodule("lm_head")
    assert isinstance(embedding, PackedEmbedding) and isinstance(head, PackedLinear)
    assert embedding.packed.data_ptr() == head.packed.data_ptr()
    ids = tokens(7)
    assert torch.equal(embedding(ids), head.weight[ids])


@pytest.mark.parametrize("method", ["gptq", ["rotate", "awq", "gptq", {"tune": {"steps": 4}}]])
def test_a_run_that_was_stopped_goes_on_to_the_same_result(
    method: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIG, "METHOD": method}
    whole = llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)
    solved: list[str] = []
    solve = quantize_blocks.solve_block

    def stopped(*args: object, **kwargs: object) -> object:
        if len(solved) == 2:
            raise KeyboardInterrupt
        solved.append("block")
        return solve(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(quantize_blocks, "solve_block", stopped)
    with pytest.raises(KeyboardInterrupt):
        llm.quantize(DECODERS["llama"](), tokens(), config, folder=tmp_path, progress=False)
    assert len(list(tmp_path.iterdir())) == 2
    solved[:] = ["one is enough"]
    resumed = llm.quantize(DECODERS["llama"](), tokens(), config, folder=tmp_path, progress=False)
    assert len(solved) == 2
    for name, held in whole.weights.items():
        assert torch.equal(held.bits, resumed.weights[name].bits)
        assert torch.equal(held.grid.scale, resumed.weights[name].grid.scale)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    assert len(list(tmp_path.iterdir())) == 3, "they stay until the model is saved"


def test_what_one_block_was_solved_with_is_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    compress, seen = quantize_blocks._compress, []

    def watched(*args: Any) -> Any:
        assert not any(one() is not None for one in seen)
        found = compress(*args)
        seen.extend(weakref.ref(one.solved.latent) for one in found[0])
        return found

    monkeypatch.setattr(quantize_blocks, "_compress", watched)
    llm.quantize(DECODERS["llama"](), tokens(), CONFIG, progress=False)
    assert len(seen) == 21


def test_blocks_of_another_run_are_refused(tmp_path: Path) -> None:
    """Another config, and another model of the same shapes."""
    llm.quantize(DECODERS["llama"](), tokens(), CONFIG, folder=tmp_path, progress=False)
    trained = DECODERS["llama"]()
    trained.model.layers[0].mlp.up_proj.weight.data[0, 0] += 1  # type: ignore[union-attr,index]
    for model, config in ((DECODERS["llama"](), {**CONFIG, "W": {"BIT": 3}}), (trained, CONFIG)):
        with pytest.raises(SparsebitError, match="belongs to another run"):
            llm.quantize(model, tokens(), config, folder=tmp_path, progress=False)


def test_a_folder_gives_the_same_as_the_module(tmp_path: Path) -> None:
    model = DECODERS["llama"]()
    model.save_pretrained(tmp_path)
    from_module = llm.quantize(model, tokens(), CONFIG, progress=False)
    from_folder = llm.quantize(tmp_path, tokens(), CONFIG, progress=False)
    for name, held in from_module.weights.items():
        assert torch.equal(held.bits, from_folder.weights[name].bits), name
    ids = tokens(16)[None]
    assert torch.equal(logits(from_module.model, ids), logits(from_folder.model, ids))


@pytest.mark.parametrize("method", ["gptq", "wanda", ["gptq", {"tune": {"steps": 1, "scale_lr": 50.0}}]])
def test_experts_that_no_token_reaches_are_named_and_rounded(method: object) -> None:
    config = {
        "W": {"BIT": 4, "SPARSITY": 0.1 if method == "wanda" else 0},
        "METHOD": method,
        "CALIBRATION": {"SAMPLES": 1, "LENGTH": 1},  # one token, which two of four experts get
    }
    result = llm.quantize(DECODERS["mixtral"](), tokens(), config, progress=False)
    unreached = [record for record in result.records if not record.tokens]
    assert len(unreached) == 3 * 2 * 2 and all("experts" in record.name for record in unreached)
    for record in result.records:
        assert (record in unreached) == record.remark.startswith("no token reached it"), record
    assert "model.layers.0.mlp.gate.weight" in result.ignored


def test_what_token_ids_do_not_reach_stays_in_float_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Seeing(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.eyes = nn.ModuleList(nn.Sequential(nn.Linear(32, 16)) for _ in range(2))
            for block in self.blocks:
                block.append(nn.Linear(32, 32))
                block[-1].forward = lambda x: x  # type: ignore[method-assign]

    model = Seeing().eval()
    result = llm.quantize(model, tokens(), CONFIG, progress=False)
    assert [message.split(":")[0] for message in caplog.messages] == [
        "2 weights stay in float (the block was not seen to multiply by it as a matrix)",
        "2 weights stay in float (the model does not call its block)",
    ]
    assert set(result.ignored) == {
        *(f"eyes.{i}.0.weight" for i in (0, 1)),
        *(f"blocks.{i}.4.weight" for i in (0, 1)),
    }
    eye = result.model.get_submodule("eyes.0.0").weight
    assert torch.equal(eye, model.eyes[0][0].weight) and eye.data_ptr() != model.eyes[0][0].weight.data_ptr()
    assert len(llm.quantize(model, None, {"METHOD": "rtn"}, progress=False).records) == 8


@pytest.mark.parametrize("name", ["albert", "bart", "xlm"])
def test_models_of_other_shapes_are_saved_and_read_again(name: str, tmp_path: Path) -> None:
    model, ids = ROUTES[name](), tokens(16)[None]
    config = {**CONFIG, "METHOD": "rtn", "HEAD": {"BIT": 8}}
    made = llm.quantize(model, tokens(), config, progress=False)
    planned = [key for key, one in model.named_parameters() if one.dim() == 2 and "embed" not in key]
    assert {key.partition("[")[0] for key in made.weights} >= {key for key in planned if ".layers." in key}
    made.save(tmp_path / "own")
    made.save_pretrained(tmp_path / "pretrained")
    llm.register_transformers()
    model.save_pretrained(tmp_path / "float")
    read = [
        llm.LanguageModel.load(tmp_path / "own").model,
        type(model).from_pretrained(tmp_path / "pretrained"),  # type: ignore[attr-defined]
        llm.quantize(tmp_path / "float", tokens(), config, progress=False).model,
    ]
    assert all(torch.equal(logits(one, ids), logits(made.model, ids)) for one in read)
    embeddings = [one for one in made.model.modules() if isinstance(one, nn.Embedding | PackedEmbedding)]
    assert sum(isinstance(one, PackedEmbedding) for one in embeddings) == (3 if name == "bart" else 1)


@pytest.mark.parametrize("measure", ["kl", "loss"])
def test_a_budget_reaches_every_list_of_blocks(measure: str) -> None:
    config = {**CONFIG, "METHOD": "rtn", "BUDGET": {"BITS": 5, "SAMPLES": 1, "MEASURE": measure}}
    made = llm.quantize(ROUTES["bart"](), tokens(), config, progress=False)
    assert len(made.records) == 2 * 6 + 2 * 10 and made.bits <= 5
    assert len({record.code for record in made.records}) > 1


def test_data_is_asked_for_where_it_is_needed() -> None:
    with pytest.raises(SparsebitError, match="'gptq' needs calibration data"):
        llm.quantize(DECODERS["llama"](), None, CONFIG)


@pytest.mark.parametrize("ids", [None, tokens()])
def test_a_layer_that_cannot_be_solved_is_named(ids: torch.Tensor | None) -> None:
    config = {**CONFIG, "METHOD": "rtn", "W": {"GROUP_SIZE": 48, "SPECIFIC": {"*0.self_attn*": {"BIT": 0}}}}
    with pytest.raises(SparsebitError, match=r"groups of 48\n.*where: .*model.layers.0.mlp.gate_proj.weight"):
        llm.quantize(DECODERS["llama"](), ids, config, progress=False)


def test_specific_rules_set_bits_by_layer_and_must_match() -> None:
    config = copy.deepcopy(CONFIG) | {
        "W": {"BIT": 4, "SPECIFIC": {"*.down_proj": {"BIT": 8}, "*.q_proj": {"BIT": 0}}}
    }
    result = llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)
    codes = {record.name: record.code for record in result.records}
    assert codes["model.layers.0.mlp.down_proj.weight"] == "int8_full"
    assert result.ignored["model.layers.0.self_attn.q_proj.weight"] == "BIT: 0"
    with pytest.raises(SparsebitError, match="no layer matches"):
        llm.quantize(DECODERS["llama"](), tokens(), {**CONFIG, "W": {"SPECIFIC": {"*.nothing": {"BIT": 8}}}})


def test_what_is_quantized_already_or_not_a_model_is_refused(tmp_path: Path) -> None:
    small = llm.quantize(DECODERS["llama"](), None, {"METHOD": "rtn"}, progress=False)
    small.save(tmp_path / "small")
    for given in (small, small.model, tmp_path / "small"):
        with pytest.raises(SparsebitError, match="quantized already"):
            llm.quantize(given, None, {"METHOD": "rtn"}, progress=False)  # type: ignore[arg-type]
    for wrong, said in ((3, "an int"), (None, "None")):
        with pytest.raises(SparsebitError, match=rf"takes a torch.nn.Module or a folder\n.*got: +{said}"):
            llm.quantize(wrong, tokens(), CONFIG)  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match=r"takes a torch.nn.Module or a folder[\s\S]*a dict"):
        llm.quantize({}, None, {"METHOD": "rtn"})  # type: ignore[arg-type]


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_in_another_type_is_quantized_in_float32(dtype: torch.dtype) -> None:
    model = DECODERS["llama"]().to(dtype)
    found = llm.quantize(model, tokens(), CONFIG, progress=False).model
    wide = llm.quantize(model.float(), tokens(), CONFIG, progress=False).model
    assert torch.equal(logits(found, tokens(8)[None]), logits(wide, tokens(8)[None]))


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


def test_a_device_that_is_not_used_is_an_error() -> None:
    config = {"METHOD": "rtn", "DEVICE": f"cuda:{torch.cuda.device_count()}"}
    with pytest.raises(ConfigError, match="DEVICE: expected auto, cpu or a GPU of this machine"):
        llm.quantize(DECODERS["llama"](), None, config)
    with pytest.raises(
        SparsebitError, match=r"(?s)the model is on 'cpu'.*where: +DEVICE.*model.to\('meta'\)"
    ):
        llm.quantize(DECODERS["llama"](), None, {"METHOD": "rtn", "DEVICE": "meta"})


def test_a_head_that_is_not_found_is_an_error() -> None:
    with pytest.raises(SparsebitError, match=r"(?s)Plain does not say which layers.*where: +HEAD"):
        llm.quantize(Plain(), None, {"METHOD": "rtn", "HEAD": {"BIT": 4}})


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
