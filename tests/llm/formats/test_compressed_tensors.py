"""compressed-tensors files: read back bit by bit, and by transformers where the package is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsebit import llm
from sparsebit.errors import SparsebitError
from tests.llm.models import (
    _GROUPED,
    DECODERS,
    MORE_DECODERS,
    ROUTES,
    TRANSPOSED_EXPERTS,
    _from_config,
    sharp,
    tokens,
)

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed"
)


def quantized(name: str = "llama", **w: object) -> llm.LanguageModel:
    config = {"W": {"BIT": 4, "GROUP_SIZE": 32, **w}, "METHOD": "rtn"}
    return llm.quantize(sharp(name), None, config, progress=False)


def numbers(tensors: dict[str, torch.Tensor], layer: str, bits: int) -> torch.Tensor:
    """The weight by the text of the format alone: one value after the other, out of the 32-bit words."""
    rows, columns = tensors[f"{layer}.weight_shape"].tolist()
    scale = tensors[f"{layer}.weight_scale"].float()
    packed = tensors[f"{layer}.weight_packed"].tolist()
    points = torch.full((rows, scale.shape[1]), 2 ** (bits - 1))
    if f"{layer}.weight_zero_point" in tensors:
        stored = tensors[f"{layer}.weight_zero_point"].T.tolist()
        points = torch.tensor([_values(words, bits, rows) for words in stored]).T
    values = torch.tensor([_values(words, bits, columns) for words in packed])
    size = columns // scale.shape[1]
    return (values - points.repeat_interleave(size, 1)) * scale.repeat_interleave(size, 1)


def _values(words: list[int], bits: int, count: int) -> list[int]:
    stream = sum((word % 2**32) << (32 * place) for place, word in enumerate(words))
    return [(stream >> (bits * place)) % 2**bits for place in range(count)]


@pytest.mark.parametrize(
    ("bits", "scheme", "size"),
    [(2, "full-range", 32), (3, "affine", 32), (4, "symmetric", 0), (4, "affine", 16), (8, "full-range", 64)],
)
def test_the_words_hold_the_weights(tmp_path: Path, bits: int, scheme: str, size: int) -> None:
    model = quantized(BIT=bits, SCHEME=scheme, GROUP_SIZE=size)
    model.export(tmp_path / "out", "compressed-tensors")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for name, held in list(model.weights.items())[:7]:
        assert torch.equal(numbers(tensors, name.removesuffix(".weight"), bits), held.numbers()), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    weights = config["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["symmetric"]) == (bits, scheme != "affine")
    assert config["ignore"] == ["lm_head"]


@needs_engine
@pytest.mark.parametrize(
    ("bits", "scheme", "size"),
    [(2, "full-range", 32), (3, "affine", 32), (4, "symmetric", 0), (4, "affine", 16), (8, "full-range", 64)],
)
def test_transformers_reads_the_same_model(tmp_path: Path, bits: int, scheme: str, size: int) -> None:
    report = quantized(BIT=bits, SCHEME=scheme, GROUP_SIZE=size).export(
        tmp_path / "out", "compressed-tensors"
    )
    assert report.proven and report.agreement == 1.0
    assert "reads all 21 quantized weights bit for bit" in str(report)


@needs_engine
def test_mixed_widths_biases_and_float_layers(tmp_path: Path) -> None:
    rules = {"*.down_proj": {"BIT": 8}, "*.o_proj": {"BIT": 0}}
    report = quantized("qwen2", SPECIFIC=rules).export(tmp_path / "out", "compressed-tensors")
    assert report.proven, str(report)


@needs_engine
def test_a_decoder_behind_an_encoder_is_proven(tmp_path: Path) -> None:
    small = llm.quantize(ROUTES["marian"](), None, {"METHOD": "rtn"}, progress=False)
    report = small.export(tmp_path / "out", "compressed-tensors")
    assert report.proven and report.agreement == 1.0 and report.perplexity is None, str(report)


def test_layers_it_cannot_hold_are_named() -> None:
    model = llm.quantize(DECODERS["llama"](), None, {"METHOD": "rtn", "HEAD": {"BIT": 4}}, progress=False)
    with pytest.raises(SparsebitError, match=r"cannot store 'model.embed_tokens' exactly") as caught:
        model.export("never", "compressed-tensors")
    assert caught.value.expected == "HEAD.BIT: 0" and not Path("never").exists()


def test_layers_that_no_reader_packs_are_refused(tmp_path: Path) -> None:
    quantized("gpt2").save(tmp_path / "saved")  # loading it again keeps what the layers were
    with pytest.raises(SparsebitError, match=r"'transformer.h.0.attn.c_attn' exactly, and 11 more.*a Conv1D"):
        llm.LanguageModel.load(tmp_path / "saved").export(tmp_path / "out", "compressed-tensors")


@needs_engine
@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("bits", [3, 4])
def test_transformers_stacks_the_experts_of_a_file(tmp_path: Path, name: str, bits: int) -> None:
    w = {"BIT": bits, "GROUP_SIZE": 32, "SPECIFIC": {"*self_attn*": {"BIT": 8, "SCHEME": "affine"}}}
    model = (DECODERS | MORE_DECODERS)[name]()
    small = llm.quantize(model, None, {"W": w, "METHOD": "rtn"}, progress=False)
    report = small.export(tmp_path / "out", "compressed-tensors")
    assert report.proven and report.weights == len(small.weights), str(report)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["targets"][0] == "re:.*[.]experts[.].*"
    assert any(layer.endswith("mlp.gate") for layer in config["ignore"])


@needs_engine
def test_float_experts_stay_a_stack(tmp_path: Path) -> None:
    config = {"W": {"BIT": 4, "GROUP_SIZE": 32}, "METHOD": "rtn", "IGNORE": ["*experts*", "*gate"]}
    small = llm.quantize(DECODERS["mixtral"](), None, config, progress=False)
    report = small.export(tmp_path / "out", "compressed-tensors")
    assert report.proven, str(report)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"SCHEME": "affine"}, "reads experts without zero points"),
        ({"SPECIFIC": {"*layers.1*experts": {"BIT": 8}}}, "experts of one width and group size"),
        ({"SPECIFIC": {"*layers.1*experts": {"BIT": 0}}}, "does not join beside packed experts"),
    ],
)
def test_experts_that_transformers_would_read_wrongly_are_refused(
    settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(SparsebitError, match=reason):
        quantized("mixtral", **settings).export("never", "compressed-tensors")


def test_a_budget_cannot_choose_several_widths_for_experts() -> None:
    config = {
        "BUDGET": {"BITS": 5.0, "FORMATS": "ct"},
        "METHOD": "rtn",
        "CALIBRATION": {"SAMPLES": 2, "LENGTH": 16},
    }
    with pytest.raises(SparsebitError, match=r"(?s)one width for all experts.*add the experts to IGNORE"):
        llm.quantize(DECODERS["mixtral"](), tokens(), config, progress=False)


def test_models_that_ask_packed_layers_for_their_weights_are_refused() -> None:
    nanochat = _from_config("nanochat", **_GROUPED)  # while it is loaded
    jamba = _from_config("jamba", **_GROUPED, attn_layer_period=2, attn_layer_offset=1, num_experts=1)
    for model, name, asked, setting in (
        (nanochat, "model.layers.0.self_attn", "the weights of its layers", "a model of another family"),
        (jamba, r"model.layers.0.mamba.\w+", "its weight", "IGNORE: this layer"),
    ):
        small = llm.quantize(model, None, {"METHOD": "rtn"}, progress=False)
        with pytest.raises(SparsebitError, match=rf"'{name}' exactly.*asks for {asked}.*\n.*{setting}"):
            small.export("never", "compressed-tensors")
    small = llm.quantize(ROUTES["t5"](), None, {"METHOD": "rtn"}, progress=False)
    assert not any("relative_attention_bias" in name for name in small.weights)  # a table is not multiplied
    with pytest.raises(SparsebitError, match=r"SelfAttention' exactly.*asks for the weights of its layers"):
        small.export("never", "compressed-tensors")


def test_falcon_is_refused() -> None:
    with pytest.raises(
        SparsebitError, match=r"'transformer.h.0.self_attention' exactly.*Falcon's own linear"
    ):
        quantized("falcon").export("never", "compressed-tensors")


def test_llama_4_is_refused_with_float_experts_too() -> None:
    config = {"METHOD": "rtn", "W": {"BIT": 4, "GROUP_SIZE": 32}, "IGNORE": ["*.experts", "*.router"]}
    small = llm.quantize(TRANSPOSED_EXPERTS["llama4"](), None, config, progress=False)
    with pytest.raises(SparsebitError, match=r"feed_forward.experts' exactly.*experts one by one"):
        small.export("never", "compressed-tensors")
