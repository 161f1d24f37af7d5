"""The proof of an exported file: it finds wrong weights, predictions and tokens, and an engine that fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from sparsebit import llm
from sparsebit.llm.engines.rounding import Rounding, rounded_inputs
from sparsebit.llm.evaluate.perplexity import log_probabilities
from sparsebit.llm.proof import prove
from tests.llm.formats.gguf.trained_tokenizers import byte_level
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import tokens

WRONG = "model.layers.1.mlp.up_proj.weight"


class Stub:
    """An engine that runs the model itself, with faults that a test asks for."""

    name, tolerance = "stub", 1e-6
    longest: int | None = None

    def __init__(self, model: llm.LanguageModel, fault: str = "") -> None:
        self.model, self.fault, self.unpacked = model, fault, False
        self.modules = ("no_such_module",) if fault == "missing" else ()

    def open(self, path: Path) -> Stub:
        if self.fault == "load":
            raise RuntimeError("bad magic")
        return self

    def weight(self, name: str) -> torch.Tensor:
        assert self.unpacked, "by the first prediction, as compressed-tensors does"
        found = self.model.weights[name].numbers()
        return found * 1.001 if self.fault == "weight" and name == WRONG else found

    def rounding(self, name: str) -> Rounding | None:
        return Rounding(32, torch.float16) if self.fault == "rounds" else None

    def token_ids(self, path: Path, texts: Sequence[str]) -> list[list[int]]:
        found = [list(self.model.tokenizer(text)["input_ids"]) for text in texts]
        return [ids[1:] for ids in found] if self.fault == "tokens" else found

    @torch.no_grad()
    def log_probabilities(self, ids: torch.Tensor) -> torch.Tensor:
        self.unpacked = True
        layers = [name.removesuffix(".weight") for name in self.model.weights if "[" not in name]
        finer = Rounding(16, torch.float32)  # rounds other values than the proof does, as engines do
        with rounded_inputs(self.model.model, dict.fromkeys(layers if self.fault == "rounds" else (), finer)):
            found = log_probabilities(self.model.model, ids[None])[0][-4:]
        return found.roll(1, -1) if self.fault == "logits" else found


def test_each_fault_is_found_and_said(tmp_path: Path) -> None:
    model = quantized()
    model.tokenizer = byte_level("gpt-2")
    (tmp_path / "file").write_bytes(bytes(10**6))
    said = {}
    for fault in ("", "rounds", "weight", "logits", "tokens", "load", "missing"):
        report = prove(model, tmp_path / "file", "a format", Stub(model, fault), tokens(8))
        said[fault] = str(report)
        assert report.ok == (fault in ("", "rounds", "missing"))
        assert report.proven == (fault in ("", "rounds"))
    assert "a format, 1.0 MB" in said[""] and "stub reads all 21 quantized weights bit for bit" in said[""]
    assert "agrees at 100.0% of the positions" in said[""]
    assert re.search(r"perplexity of 3 tokens: (\S+), in torch \1$", said[""], re.M)
    assert f"stub reads {WRONG} differently" in said["weight"]
    assert "it splits 5 texts into the same tokens as the tokenizer" in said[""]
    assert (
        "it splits 5 of 5 texts into tokens that differ from the tokenizer's, such as 'The rain"
        in said["tokens"]
    )
    assert "nats, more than its arithmetic explains (1e-06)" in said["logits"]
    assert "nats apart in torch at most" in said["logits"]
    assert "rounds activations to 8 bits before 21 layers, which costs" in said["rounds"]
    assert "stub cannot run it: RuntimeError: bad magic" in said["load"]
    assert "not checked in an engine: stub needs no_such_module, not installed" in said["missing"]


def test_a_text_longer_than_the_context_of_the_file_is_cut(tmp_path: Path) -> None:
    model = quantized()
    (tmp_path / "file").write_bytes(b"")
    engine = Stub(model)
    for engine.longest, cut in ((8, 0), (6, 6)):
        report = prove(model, tmp_path / "file", "a format", engine, tokens(8))
        assert report.proven and report.cut_to == cut, str(report)
    assert "compared on the first 6 tokens, which fill the context of the file" in str(report)


def test_experts_count_as_layers_that_round(tmp_path: Path) -> None:
    model = quantized("mixtral")
    (tmp_path / "file").write_bytes(b"")
    report = prove(model, tmp_path / "file", "a format", Stub(model, "rounds"), tokens(8))
    assert report.rounded_layers == 3 * (4 + 1) and report.weights == 3 * (4 + 2 * 4)
    assert report.ok, str(report)
