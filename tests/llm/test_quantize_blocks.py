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
    DECODERS,
    ROUTES,
    TRANSPOSED_EXPERTS,
    Plain,
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


@pytest.mark.parametrize(
    ("name", "dtype"),  # with a head of its own, and with a tied one
    [
        ("llama", torch.float64),
        *((name, torch.bfloat16) for name in ("llama", "gemma2", "gpt2")),
    ],
)
def test_a_model_in_another_dtype_is_quantized_in_float32(name: str, dtype: torch.dtype) -> None:
    model, ids = DECODERS[name]().to(dtype), tokens(24)[None]
    made = llm.quantize(model, tokens(), CONFIG, progress=False)
    assert {one.dtype for one in model.parameters()} == {dtype}
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
