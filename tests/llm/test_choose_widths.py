"""Bits by budget: never above it, together where engines fuse, and better than the same bits everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.config.llm import FORMAT_NAMES
from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.llm.choose_widths import require_formats, stored_bytes
from sparsebit.llm.formats import FORMATS
from sparsebit.llm.formats.format import kind_of, layers_of
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.numerics import CodeType
from tests.llm.models import DECODERS, sharp, tokens

pytest.importorskip("scipy")


def quantize(model: torch.nn.Module, budget: dict[str, Any], bits: int = 4) -> llm.LanguageModel:
    config = {
        "W": {"BIT": bits, "GROUP_SIZE": 32},
        "BUDGET": budget,
        "METHOD": "rtn",
        "CALIBRATION": {"SAMPLES": 4, "LENGTH": 32},
    }
    return llm.quantize(model, tokens(), config, progress=False)


@pytest.mark.parametrize("measure", ["kl", "loss"])
def test_the_budget_is_kept_and_spent_where_it_counts(measure: str) -> None:
    model, ids = sharp("llama"), tokens(64)[None]
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:] = 0  # costs nothing to round
        model.model.layers[1].mlp.down_proj.weight[:] = 0
    result = quantize(model, {"BITS": 3.6, "MEASURE": measure})
    assert 3.3 < result.bits <= 3.6
    codes = {record.name.removeprefix("model.layers."): record.code for record in result.records}
    assert codes["1.self_attn.o_proj.weight"] == codes["1.mlp.down_proj.weight"] == "int2_full"
    for layer in range(3):
        for fused in (
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            ("mlp.gate_proj", "mlp.up_proj"),
        ):
            assert len({codes[f"{layer}.{name}.weight"] for name in fused}) == 1
    assert len(set(codes.values())) > 1
    wanted = model(ids).logits.detach()
    even = llm.quantize(model, None, {"W": {"BIT": 3, "GROUP_SIZE": 32}, "METHOD": "rtn"}, progress=False)
    lost = [(one.model(ids).logits.detach() - wanted).norm() for one in (result, even)]
    assert lost[0] < lost[1]


def test_bytes_and_only_the_widths_that_are_allowed() -> None:
    result = quantize(DECODERS["llama"](), {"BYTES": 60_000, "WIDTHS": [3, 8]})
    assert sum(held.nbytes for held in result.weights.values()) <= 60_000
    assert {record.code for record in result.records} == {"int3_full", "int8_full"}


def test_a_rule_for_some_layers_keeps_their_width() -> None:
    rules = {"*.down_proj": {"BIT": 8}, "*.k_proj": {"BIT": 4}, "*.o_proj": {"BIT": "nf4"}}
    config = {
        "W": {"SPECIFIC": rules},
        "BUDGET": {"BITS": 4.5, "SAMPLES": 1},
        "METHOD": "rtn",
        "CALIBRATION": {"SAMPLES": 1, "LENGTH": 32},
    }
    result = llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)
    codes: dict[str, set[str]] = {}
    for record in result.records:
        codes.setdefault(record.name.split(".")[-2], set()).add(record.code)
    assert codes["down_proj"] == {"int8_full"} and codes["o_proj"] == {"nf4"}
    assert codes["q_proj"] == codes["k_proj"] == codes["v_proj"] == {"int4_full"}  # engines fuse them


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(SparsebitError, match=r"no weight to choose a width for\n(.|\n)*leave BUDGET out"):
        config = {"W": {"BIT": "nf4"}, "BUDGET": {"BITS": 4}, "CALIBRATION": {"SAMPLES": 1, "LENGTH": 32}}
        llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)
    with pytest.raises(SparsebitError, match=r"compressed-tensors cannot store.*Falcon"):
        quantize(DECODERS["falcon"](), {"BITS": 4, "FORMATS": ["ct"]})
    with pytest.raises(
        SparsebitError, match=r"(?s)no choice of widths fits.*raise the budget to at least 2\.50 bits"
    ):
        quantize(DECODERS["llama"](), {"BITS": 1.0})
    with pytest.raises(SparsebitError, match=r"(?s)groups of 48.*where: +model.layers.0.self_attn.q_proj"):
        config = {**config, "W": {"GROUP_SIZE": 48}}
        llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)
    with pytest.raises(SparsebitError, match="BUDGET needs calibration data"):
        llm.quantize(DECODERS["llama"](), None, {"BUDGET": {"BITS": 4}, "METHOD": "rtn"}, progress=False)
    with pytest.raises(ConfigError, match=r"BUDGET.BYTES: expected BITS or BYTES, got both"):
        quantize(DECODERS["llama"](), {"BITS": 4, "BYTES": 1})


def test_only_widths_that_the_formats_hold_and_at_their_size(tmp_path: Path) -> None:
    model = sharp("llama")
    result = quantize(model, {"BITS": 6.0, "FORMATS": ["gguf", "genai"]})
    codes = {record.code for record in result.records}
    # Two and three bits would take the room of four in a gguf file.
    assert codes == {"int4_full", "int8_full"}
    report = result.export(tmp_path / "out", "onnxruntime-genai", ids=torch.arange(3, 9))
    assert report.ok, str(report)
    layers = [kind_of(model, layer, held) for layer, held in layers_of(result)]
    in_file = 8 * sum(FORMATS["onnxruntime-genai"]().nbytes(kind) for kind in layers)
    # Its scales are float32.
    assert result.bits < in_file / sum(kind.shape[0] * kind.shape[1] for kind in layers) <= 6.0
    packed = {record.code for record in quantize(model, {"BITS": 3.6, "FORMATS": "ct"}).records}
    assert {"int2_full", "int3_full"} & packed


@pytest.mark.parametrize(
    ("settings", "formats", "message"),
    [
        (
            {"SCHEME": "affine"},
            ["gguf"],
            r"gguf cannot store 'model.layers.0.self_attn.q_proj' exactly: with zero",
        ),
        (
            {"GROUP_SIZE": 8},
            ["openvino"],
            r"(?s)openvino cannot store 'model.*16 to 256 input.*GROUP_SIZE: 32",
        ),
        ({}, ["gptq"], r"(?s)gptq has one width for all layers.*set W.BIT"),
        ({"HEAD": 4}, ["ct"], r"(?s)compressed-tensors cannot store 'model.embed_tokens'.*HEAD.BIT: 0"),
    ],
)
def test_what_a_format_cannot_hold_is_said_before_the_work(
    settings: dict[str, Any], formats: list[str], message: str
) -> None:
    weights = {"BIT": 4, "GROUP_SIZE": 32, **{key: one for key, one in settings.items() if key != "HEAD"}}
    config = {
        "W": weights,
        "HEAD": {"BIT": settings.get("HEAD", 0)},
        "BUDGET": {"BITS": 5.0, "FORMATS": formats},
        "METHOD": "rtn",
        "CALIBRATION": {"SAMPLES": 2, "LENGTH": 16},
    }
    with pytest.raises(SparsebitError, match=message):
        llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)


@pytest.mark.parametrize("name", ["gguf", "openvino", "compressed-tensors"])
def test_formats_of_engines_are_for_models_of_transformers(name: str) -> None:
    with pytest.raises(SparsebitError, match=f"{name} needs a transformers model"):
        require_formats(nn.Linear(2, 2), None, [name])  # type: ignore[arg-type]


def test_formats_of_the_config_are_those_that_are_written() -> None:
    assert set(FORMAT_NAMES) == set(FORMATS)
    with pytest.raises(SparsebitError, match="gguf files cannot be written for opt"):
        quantize(DECODERS["opt"](), {"BITS": 5.0, "FORMATS": "gguf"})
    with pytest.raises(ConfigError, match=r"BUDGET.FORMATS: .*did you mean 'gguf'"):
        quantize(DECODERS["llama"](), {"BITS": 5.0, "FORMATS": "ggfu"})


def test_bytes_are_those_of_the_packed_weight() -> None:
    spec = WeightSpec(code=CodeType("uint", 3), group_size=16)
    assert stored_bytes((4, 64), spec) == 4 * 24 + 16 * (2 + 3 / 8)
