"""Text as rows of ids: what is read as what, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.chat import Chat
from sparsebit.llm.evaluate.multiple_choice import Question, answer_questions
from sparsebit.llm.lora import add_lora, train_lora
from sparsebit.llm.tokens import (
    as_ids,
    most_positions,
    read_tokenizer,
    require_known,
    windows,
    write_tokenizer,
)
from tests.llm.models import DECODERS, MORE_DECODERS, VOCABULARY, tokenizer, tokens


def test_sequences_longer_than_a_table_of_positions_are_refused() -> None:
    assert {name for name in DECODERS if most_positions(DECODERS[name]())} == {"gpt2", "opt"}
    model, ids = DECODERS["opt"](), tokens(512)
    said = "OPTForCausalLM reads at most 64 tokens at once(.|\n)*sequences of 65(.|\n)*set "
    with pytest.raises(SparsebitError, match=f"{said}CALIBRATION.LENGTH: 64"):
        llm.quantize(model, ids, {"CALIBRATION": {"LENGTH": 65}}, progress=False)
    small = llm.quantize(model, None, {"METHOD": "rtn"}, progress=False)
    with pytest.raises(SparsebitError, match=f"{said}length=64"):
        small.evaluate(ids, length=65)
    add_lora(small, rank=1)
    with pytest.raises(SparsebitError, match=f"{said}length=64"):
        train_lora(small, ids, length=65)
    assert llm.prune(DECODERS["gpt2"](), ids, blocks=1).config.n_layer == 2


def test_positions_that_a_model_counts_from_behind_its_padding() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.RobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=34, **sizes)
    model = transformers.RobertaModel(config)
    assert most_positions(model) == 32
    model(tokens(32)[None])
    assert most_positions(MORE_DECODERS["gptj"]()) == 64  # a table that is a buffer
    assert most_positions(nn.Linear(2, 2)) is None


def test_ids_texts_and_files(tmp_path: Path) -> None:
    made = tokenizer()
    (tmp_path / "text.txt").write_text("the thin", encoding="utf-8")
    wanted = as_ids("the thin", made)
    assert torch.equal(as_ids(tmp_path / "text.txt", made), wanted)
    assert torch.equal(as_ids([wanted[:2], wanted[2:][None]]), wanted)
    made.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    assert torch.equal(as_ids("the thin", read_tokenizer(tmp_path)), wanted)
    assert read_tokenizer(tmp_path / "nothing") is None
    (tmp_path / "tokenizer.json").write_bytes(b"\xff{")
    with pytest.raises(SparsebitError, match="cannot read the tokenizer"):
        read_tokenizer(tmp_path)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    for data, made, said in (
        ("a text", None, "text needs a tokenizer"),
        (torch.ones(3), None, "token ids must be integers"),
        (torch.ones(3, dtype=torch.bool), None, r"token ids must be integers\n.*torch.bool"),
        (
            torch.ones(3, dtype=torch.int64, device="meta"),
            None,
            r"token ids must be integers\n.*on the meta device",
        ),
        (tmp_path / "gone.txt", tokenizer(), "there is no file"),
        ("gone.txt", tokenizer(), "there is no file"),
        (tmp_path / "bytes", tokenizer(), "is not UTF-8 text"),
        (7, None, "calibration data cannot be read"),
    ):
        with pytest.raises(SparsebitError, match=said):
            as_ids(data, made)  # type: ignore[arg-type]


def test_a_tokenizer_that_does_not_work_is_refused_when_it_is_read(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    place = tmp_path / "tokenizer_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"model_max_length": {}}))
    with pytest.raises(SparsebitError, match="transformers cannot read the tokenizer"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("raised", "seen"),
    [(Exception("File too large (os error 27)"), OSError), (ValueError("a template"), ValueError)],
)
def test_a_full_disk_is_one_for_tokenizers_too(raised: Exception, seen: type[Exception]) -> None:
    class Full:
        def save_pretrained(self, folder: str) -> None:
            raise raised

    with pytest.raises(seen, match=re.escape(str(raised))):
        write_tokenizer(Full(), "folder")


def test_samples_overlap_only_where_the_text_is_short() -> None:
    rows = windows(torch.arange(64), 4, 16)
    assert sorted(rows[:, 0].tolist()) == [0, 16, 32, 48]
    assert windows(torch.arange(20), 4, 16).shape == (4, 16)
    with pytest.raises(SparsebitError, match="less than one sample of 16"):
        windows(torch.arange(8), 1, 16)


def test_ids_of_another_tokenizer_are_refused_by_every_verb(tmp_path: Path) -> None:
    model, wrong, other = DECODERS["llama"](), tokens() + VOCABULARY, tokenizer()
    small = llm.quantize(model, None, {"METHOD": "rtn"}, progress=False)
    small.tokenizer = lambda text, **options: {"input_ids": [VOCABULARY + len(text)] * 4}
    verbs = {
        "quantize": lambda: llm.quantize(model, wrong, {"METHOD": "gptq"}, progress=False),
        "below zero": lambda: llm.quantize(model, -wrong, {"METHOD": "gptq"}, progress=False),
        "prune": lambda: llm.prune(model, wrong, blocks=1),
        "evaluate": lambda: small.evaluate(wrong, length=8),
        "questions": lambda: answer_questions(small.model, small.tokenizer, [Question("a", ("b", "c"), 0)]),
        "export": lambda: small.export(tmp_path / "made", "compressed-tensors", ids=wrong),
        "add_lora": lambda: add_lora(small, floats=model, ids=wrong[None]),
        "train_lora": lambda: train_lora(small, wrong, steps=1, length=8),
        "chat": lambda: list(Chat(small).answer("a")),
    }
    for name, verb in verbs.items():
        if name == "train_lora":
            add_lora(small, rank=1)
        with pytest.raises(SparsebitError) as raised:
            verb()
        said = str(raised.value)
        assert "token ids that the model does not know" in said and "0 to 95" in said, name
        assert "tokenize the text with this model's own tokenizer" in said, name
    assert not (tmp_path / "made").exists()
    require_known(as_ids("the thin", other), model)
    require_known(wrong, torch.nn.Linear(2, 2))  # it does not say which table it has
