"""Smaller language models of the same class: fewer hidden channels, heads and blocks; saved, loaded, generating."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from tests.llm.decoder.family_models import family_model
from tests.llm.models import (
    _GROUPED,
    _PAIR,
    DECODERS,
    MORE_DECODERS,
    ROUTES,
    TRANSPOSED_EXPERTS,
    VOCABULARY,
    Plain,
    _from_config,
    encoder,
    sharp,
    tokens,
)

FAMILIES: dict[str, Callable[[], nn.Module]] = {**DECODERS, **MORE_DECODERS, "bert": encoder}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    **TRANSPOSED_EXPERTS,
    "gemma4_text": lambda: _from_config(
        "gemma4_text",
        **_GROUPED,
        head_dim=16,
        hidden_size_per_layer_input=16,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
}
# Classes that divide one width by the number of heads: no config of theirs has fewer heads of the same width.
WIDTH_BY_HEADS = {"gpt2", "opt", "gpt_neox", "falcon", "falcon_grouped", "falcon_alibi", "gptj", "bert"}
CHANGED = {
    "gpt2": {"n_inner": 192},
    "gptj": {"n_inner": 192},
    "opt": {"ffn_dim": 96},
    "falcon": {"ffn_hidden_size": 192},
    "falcon_grouped": {"ffn_hidden_size": 192},
    "falcon_alibi": {"ffn_hidden_size": 192},
    "qwen2_moe": {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 128},
    "qwen3_moe": {"moe_intermediate_size": 64},
}
IDS = tokens(12)[None]


def make(name: str) -> Any:
    """A model of a family, no two elements of any of its matrices equal: what is left of one can be recognized."""
    model: Any = {**FAMILIES, **OTHERS}[name]()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                count = parameter.numel()
                values = torch.randperm(count, generator=generator).float().add(0.5).div(count).sub(0.5)
                parameter.copy_(values.reshape(parameter.shape))
    return model


def run(model: Any) -> Tensor:
    with torch.no_grad():
        return model(IDS)[0]  # type: ignore[no-any-return]


def masked(model: Any, small: nn.Module) -> Any:
    """The original with zeros for every element that the smaller model does not hold."""
    full = copy.deepcopy(model)
    left = dict(small.named_parameters())
    with torch.no_grad():
        for name, parameter in full.named_parameters():
            if parameter.dim() > 1:
                kept = torch.isin(parameter, left[name])
                assert int(kept.sum()) == left[name].numel(), name
                parameter *= kept
            elif parameter.shape != left[name].shape:  # of channels that nothing else reads now
                parameter.fill_(0.0)
    return full


def saved_and_loaded(small: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> Any:
    small.save_pretrained(folder)
    caplog.clear()
    again = type(small).from_pretrained(folder).eval()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    return again


def generates(model: Any) -> None:
    """With the cache as without it."""
    options = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    with_cache, without = (model.generate(IDS, use_cache=use, **options) for use in (True, False))
    assert torch.equal(with_cache, without) and with_cache.shape == (1, IDS.shape[1] + 2)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_hidden_channels_and_heads_of_every_family(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make(name)
    heads = 0.0 if name in WIDTH_BY_HEADS else 0.5
    small: Any = llm.prune(model, tokens(64), hidden=0.25, heads=heads)
    assert type(small) is type(model)
    want = CHANGED.get(name, {"intermediate_size": 96})
    if heads:
        want = {**want, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
        want |= {"num_key_value_heads": 2} if name == "phi" else {}
    before, after = model.config.to_dict(), small.config.to_dict()
    assert {key: after[key] for key in want} == want
    assert {key for key in after if after[key] != before.get(key)} <= set(want)
    assert torch.allclose(run(small), run(masked(model, small)), atol=1e-4)
    again = saved_and_loaded(small, tmp_path, caplog)
    assert torch.equal(run(again), run(small))
    if name != "bert":
        generates(again)


def test_a_number_of_heads_that_transformers_does_not_save_is_refused() -> None:
    model = family_model("llama", num_key_value_heads=4, head_dim=16)
    with pytest.raises(SparsebitError, match=r"does not save a LlamaConfig with(.|\n)*num_attention_heads=3"):
        llm.prune(model, heads=0.25)


def test_a_config_with_settings_for_each_layer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make("gemma4_text")
    small: Any = llm.prune(model, tokens(64), heads=0.5)
    assert torch.allclose(run(small), run(masked(model, small)), atol=1e-4)
    assert torch.equal(run(saved_and_loaded(small, tmp_path, caplog)), run(small))


@pytest.mark.parametrize("name", sorted(WIDTH_BY_HEADS))
def test_a_class_without_a_width_of_heads_says_so(name: str) -> None:
    model = FAMILIES[name]()
    names = "n_embd / n_head" if name in ("gpt2", "gptj") else "hidden_size / num_attention_heads"
    with pytest.raises(
        SparsebitError,
        match=rf"no config of {type(model).__name__} has fewer heads of the same width\n"
        rf"  got: +the class computes the width of a head as {names} \(64 / 4\): fewer heads would be wider\n"
        r"  next: +remove hidden channels or blocks instead, or take the result as a graph",
    ):
        llm.prune(model, heads=0.5)


@pytest.mark.parametrize("way", ["eager", "batched_mm"])
def test_experts_that_are_computed_one_by_one_are_pruned_as_a_stack(way: str) -> None:
    model = make("mixtral")
    if not hasattr(model, "get_experts_implementation"):
        pytest.skip("this transformers computes experts in one way only")
    model.set_experts_implementation(way)
    small: Any = llm.prune(model, tokens(64), hidden=0.25)
    assert model.get_experts_implementation() == small.get_experts_implementation() == {"": way}
    assert small.config.intermediate_size == 96
    assert torch.allclose(run(small), run(masked(model, small)), atol=1e-4)


def test_experts_that_hold_their_rows_last_leave_the_residual_stream_alone() -> None:
    model = make("llama4")
    small: Any = llm.prune(model, tokens(64), hidden=0.5)
    assert small.config.intermediate_size == 32 and small.config.hidden_size == 64
    assert torch.allclose(run(small), run(masked(model, small)), atol=1e-4)


def test_widths_and_blocks_together(tmp_path: Path) -> None:
    model = sharp("llama")
    small: Any = llm.prune(model, tokens(), hidden=0.25, heads=0.5, blocks=1)
    config = small.config
    assert (config.intermediate_size, config.num_attention_heads, config.num_hidden_layers) == (96, 2, 2)
    assert model.config.num_hidden_layers == 3 and len(model.model.layers) == 3
    twice: Any = llm.prune(small, tokens(), hidden=0.34)
    assert twice.config.intermediate_size == 64
    made = llm.quantize(twice, None, {"METHOD": ["rtn"]}, progress=False)
    assert made.export(tmp_path / "small", "compressed-tensors").ok


def test_weights_keep_their_type_and_what_is_trained(tmp_path: Path) -> None:
    model: Any = DECODERS["llama"]()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.bfloat16()  # not the buffers
        parameter.requires_grad_("norm" in name)
    small = llm.prune(model, hidden=0.5)
    for name, parameter in small.named_parameters():
        assert parameter.dtype == torch.bfloat16 and parameter.requires_grad == ("norm" in name), name
    assert {buffer.dtype for buffer in small.buffers()} == {torch.float32}  # the frequencies of the positions
    model.bfloat16().save_pretrained(tmp_path)
    small = llm.prune(tmp_path, hidden=0.5)
    assert {parameter.dtype for parameter in small.parameters()} == {torch.bfloat16} == {small.config.dtype}  # type: ignore[union-attr]


def test_a_model_that_also_reads_images_is_described_by_the_text_part_of_its_config(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    wide = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**wide, "vocab_size": 96, "num_key_value_heads": 2, "head_dim": 16}
    config = transformers.AutoConfig.for_model(
        "gemma3", text_config=text, vision_config={**wide, "image_size": 28, "patch_size": 14}
    )
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    small: Any = llm.prune(model, tokens(32), hidden=0.25, heads=0.5, blocks=1)
    left = small.config.text_config
    assert (left.intermediate_size, left.num_attention_heads, left.num_key_value_heads) == (96, 2, 1)
    assert left.num_hidden_layers == len(left.layer_types) == 1
    assert small.config.vision_config.intermediate_size == 128
    small.save_pretrained(tmp_path)
    assert torch.equal(run(type(small).from_pretrained(tmp_path).eval()), run(small))


def test_the_values_of_a_head_are_no_heads() -> None:
    with pytest.raises(
        SparsebitError, match=r"heads=0.5 of Llama4ForCausalLM: none can be removed\n.*none was found"
    ):
        llm.prune(make("llama4"), heads=0.5)


def test_layers_of_one_step_stay_as_they_are() -> None:
    model = family_model("llama", intermediate_size=32)
    with pytest.raises(
        SparsebitError, match=r"(?s)none can be removed.*more than 32, which are removed 32 at a"
    ):
        llm.prune(model, hidden=0.5)
    transformers = pytest.importorskip("transformers")
    languages = {"languages": ("en_XX",), "default_language": "en_XX", "adapter_reduction_factor": 2}
    config = transformers.XmodConfig(**{**_GROUPED, **languages, "num_hidden_layers": 2}, is_decoder=False)
    small: Any = llm.prune(transformers.XmodForMaskedLM(config).eval(), tokens(64), hidden=0.25)
    assert small.config.intermediate_size == 96
    assert small.roberta.encoder.layer[0].output.adapter_modules["en_XX"].dense1.out_features == 32


def test_a_model_is_pruned_after_it_was_saved(tmp_path: Path) -> None:
    model: Any = _from_config("apertus", **_GROUPED)
    model.save_pretrained(tmp_path)  # leaves a string in the config, of which this class cannot be built
    small: Any = llm.prune(model, tokens(64), hidden=0.25)
    assert small.config.intermediate_size == 96


@pytest.mark.parametrize("name", ["t5", "pegasus", "t5gemma"])
def test_encoder_and_decoder_get_narrower_together(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    if name == "t5gemma":
        part = {**_GROUPED, "head_dim": 16, "num_hidden_layers": 2}
        config = transformers.T5GemmaConfig(encoder=part, decoder=part, vocab_size=VOCABULARY)
        model = transformers.T5GemmaForConditionalGeneration(config).eval()
    elif name == "pegasus":
        config = transformers.PegasusConfig(**_PAIR, vocab_size=VOCABULARY)
        model = transformers.PegasusForConditionalGeneration(config).eval()
    else:
        model = ROUTES[name]()
    small: Any = llm.prune(model, tokens(64), hidden=0.25)
    before, after = (
        [key for key, one in net.state_dict().items() if width in one.shape and one.dim() == 2]
        for net, width in ((model, 128), (small, 96))
    )
    assert {*before} <= {*after} and any("encoder" in key for key in before)
    assert any("decoder" in key for key in before)
    small.save_pretrained(tmp_path)
    assert type(small).from_pretrained(tmp_path).state_dict().keys() == small.state_dict().keys()


def test_a_wrapped_model_is_taken_and_weights_without_numbers_are_named() -> None:
    small: Any = llm.prune(nn.DataParallel(DECODERS["llama"]()), hidden=0.5)
    assert type(small).__name__ == "LlamaForCausalLM" and small.config.intermediate_size == 64
    with pytest.raises(SparsebitError, match=r"has a shape but no values \(device 'meta'\)"):
        llm.prune(DECODERS["llama"]().to("meta"), hidden=0.5)


def test_tied_weights_stay_tied() -> None:
    model: Any = DECODERS["llama"]()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    small: Any = llm.prune(model, tokens(), hidden=0.5, heads=0.5)
    assert small.lm_head.weight is small.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "nothing to prune was given"),
        ({"blocks": 1, "data": None}, "choosing blocks needs data"),
        ({"blocks": 3}, "3 of 3 blocks cannot be removed"),
        ({"blocks": 0.5}, r"blocks: expected a whole number, at least 0\n  got: 0.5"),
        ({"hidden": 1.5}, r"hidden: expected a number, at least 0 and less than 1\n  got: 1.5"),
        ({"hidden": "0.5"}, r"hidden: expected a number, at least 0 and less than 1\n  got: '0.5'"),
        (
            {"hidden": 0.1},
            r"0 of 128 would be removed[\s\S]*from 0.25 to 0.75: they are removed 32 at a time",
        ),
        ({"heads": 0.3}, r"0 of 2 would be removed[\s\S]*from 0.5 to 0.5: they are removed 1 at a time"),
        ({"hidden": 0.5, "data": torch.zeros(0, dtype=torch.long)}, "the data holds no tokens"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(SparsebitError, match=told):
        llm.prune(DECODERS["llama"](), **{"data": tokens(), **arguments})


def test_what_is_not_a_float_model_of_transformers_is_refused() -> None:
    with pytest.raises(SparsebitError, match=r"Plain is not a transformers model[\s\S]*use sparsebit.prune"):
        llm.prune(Plain(), hidden=0.5)
    with pytest.raises(SparsebitError, match="int is not a transformers model"):
        llm.prune(3, hidden=0.5)  # type: ignore[arg-type]
    made = llm.quantize(DECODERS["llama"](), None, "w8", progress=False)
    for quantized in (made, made.model):
        with pytest.raises(
            SparsebitError, match=r"quantized weights cannot be pruned\n  next: prune the float"
        ):
            llm.prune(quantized, hidden=0.5)  # type: ignore[arg-type]
