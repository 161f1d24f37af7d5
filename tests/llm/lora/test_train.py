"""Adapters learn, the packed base does not; two processes come to the result of one."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.lora import add_lora, processes, train_lora
from sparsebit.llm.lora.attach import lora_layers
from sparsebit.llm.lora.pipeline import BlockPipeline
from sparsebit.llm.lora.processes import WholeModel, next_token_loss
from sparsebit.llm.lora.train import batches
from sparsebit.processes import ProcessError
from tests.llm.models import sharp, tokens
from tests.ranks import run_script

WAYS = ("data", "pipeline")


def trained(steps: int, rate: float, pipeline: bool = False) -> tuple[llm.LanguageModel, list[float]]:
    model = llm.quantize(sharp("llama"), None, {"W": {"BIT": 4}, "METHOD": "rtn"}, progress=False)
    torch.manual_seed(int(os.environ.get("RANK", 0)))
    add_lora(model, rank=4)
    losses = train_lora(
        model, tokens(2048), steps=steps, rate=rate, batch=4, length=32, warmup=2, pipeline=pipeline
    )
    return model, losses


def main(folder: str) -> None:
    """What one of two processes does; the second leaves in the middle of its last pipeline step."""
    rank = int(os.environ["RANK"])
    warnings.simplefilter("error", UserWarning)
    for way in WAYS:
        model, losses = trained(3, 1e-2, way == "pipeline")
        if not rank:
            parts = {name: layer.lora_B.detach() for name, layer in lora_layers(model.model)}
            torch.save({"losses": losses, "parts": parts}, f"{folder}/{way}.pt")
    messages = []
    for data, seed in ((tokens(2048) if rank else "a text", 0), (tokens(2048), rank)):
        try:
            train_lora(model, data, steps=1, batch=4, length=32, seed=seed)
        except SparsebitError as error:
            messages.append(str(error))
    monkeypatch = pytest.MonkeyPatch()
    if rank:
        monkeypatch.setattr(processes, "next_token_loss", out_of_memory)
    with pytest.raises((RuntimeError, ProcessError)) as failed:
        train_lora(model, tokens(2048), steps=1, batch=4, length=32)
    messages.append(str(failed.value))
    monkeypatch.undo()
    found = {"messages": messages, "unreached": unreached(model, rank)}
    torch.save(found, f"{folder}/{rank}.pt")
    if rank:
        BlockPipeline.backward = lambda *args: os._exit(0)  # type: ignore[method-assign]
    with pytest.raises(ProcessError, match="another process of this run has ended"):
        train_lora(model, tokens(2048), steps=1, batch=4, length=32, pipeline=True)


def out_of_memory(*args: Any) -> torch.Tensor:
    raise RuntimeError("out of memory")


def unreached(model: llm.LanguageModel, rank: int) -> tuple[list[Any], Any]:
    """Gradients where only the second process uses the last adapter, and none that before; and its own of the last."""
    *_, nobody, second = layers = [layer for _, layer in lora_layers(model.model)]
    for layer in (nobody,) if rank else (nobody, second):
        layer.forward = layer.base.forward  # type: ignore[method-assign]
    rows = tokens(4 * 32).view(4, 32)
    model.model.zero_grad()
    next_token_loss(model.model(rows[rank::2]).logits, rows[rank::2]).backward()
    own, second.lora_B.grad = second.lora_B.grad, None
    model.model.zero_grad()
    WholeModel(model.model, rank, 2, 4).backward(rows)
    return [layer.lora_B.grad for layer in layers], own


def test_the_loss_falls_and_the_base_stays() -> None:
    model, losses = trained(30, 3e-2)
    state = torch.get_rng_state()
    train_lora(model, tokens(2048), steps=1, rate=1e-6, batch=4, length=32)
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])
    for name, held in model.weights.items():
        layer = model.model.get_submodule(name.removesuffix(".weight"))
        assert torch.equal(layer.base.packed, held.bits)
    assert not model.model.training


def test_two_processes_come_to_the_result_of_one(tmp_path: Path) -> None:
    model, losses = trained(3, 1e-2)
    run_script(["-m", "tests.llm.lora.test_train", str(tmp_path)], 2, tmp_path)
    for way in WAYS:
        found = torch.load(tmp_path / f"{way}.pt", weights_only=True)
        assert found["losses"] == pytest.approx(losses, rel=1e-4), way
        for name, layer in lora_layers(model.model):
            assert torch.allclose(found["parts"][name], layer.lora_B, atol=1e-4), (way, name)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for found in (first, second):
        missing, different, failed = found["messages"]
        assert "out of memory" in failed and ("on another process" in failed) == (found is first)
        assert "text needs a tokenizer" in missing and ("on another process" in missing) == (found is second)
        assert different.startswith(
            "the model, the text or an argument of train_lora differs between processes"
        )
    (gradients, nothing), (others, own) = first["unreached"], second["unreached"]
    assert nothing is gradients[-2] is others[-2] is None and gradients[-1].equal(own / 2)
    assert all(a.equal(b) for a, b in zip(gradients, others, strict=True) if a is not None)


def test_rows_come_again_only_when_all_have_come() -> None:
    rows = torch.cat(list(batches(torch.arange(40), 5, 2, 4, seed=0)))
    assert sorted(rows[:, 0].tolist()) == list(range(0, 40, 4))
    with pytest.raises(SparsebitError, match="less than one sequence"):
        next(batches(torch.arange(3), 1, 1, 4, seed=0))
    model = llm.quantize(sharp("llama"), None, {"METHOD": "rtn"}, progress=False)
    with pytest.raises(SparsebitError, match="no adapters"):
        train_lora(model, tokens())
    for name, value in (("steps", 0), ("batch", 0), ("length", 1), ("rate", -1.0), ("warmup", -1)):
        with pytest.raises(SparsebitError, match=f"{name}: expected a "):
            train_lora(model, tokens(), **{name: value})  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match="LlamaForCausalLM is not a quantized language model"):
        train_lora(sharp("llama"), tokens())  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
