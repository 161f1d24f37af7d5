"""``sparsebit prune``: what it writes, what reads that, and its help."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from sparsebit.__main__ import main
from sparsebit.quantization import QuantModel
from sparsebit.sparse import load as load_pruned
from tests.cli.conftest import Cli

pytest.importorskip("onnxruntime")

DATA = ("--data", "net.py:batches")


def test_pruned_models_go_on_to_quantization(cli: Cli, place: Path) -> None:
    data = cli(
        "prune", "net.py:make", "--input", "2x3x8x8", "--set", "SPARSER.RATIO=0.5", "-o", "small", "--json"
    ).data
    assert data["params"][1] < data["params"][0]
    small = load_pruned("small", _other())
    assert sum(p.numel() for p in small.parameters()) == data["params"][1]
    done = cli("quantize", "net.py:make", "--pruned", "small", *DATA, "-o", "both")
    assert done.code == 0 and "sparsebit export net.py:make --pruned small --quantized both" in done.out
    assert isinstance(QuantModel.load("both", small), QuantModel)


def test_a_model_pruned_twice_is_exported_by_the_command_that_is_printed(cli: Cli, place: Path) -> None:
    first, second = ("--pruned", "a; rm -rf net.py"), ("--pruned", "-$(ls)")
    sizes = ("--input", "2x3x8x8", "--set", "SPARSER.RATIO=0.3", "--set", "SPARSER.ROUND_TO=1")
    cli("prune", "net.py:make", *sizes, "-o", first[1])
    again = cli("prune", "net.py:make", *first, *sizes, "-o=" + second[1])
    assert "quantize net.py:make --pruned 'a; rm -rf net.py' --pruned './-$(ls)' --data …" in again.out
    done = cli("quantize", "net.py:make", *first, "--pruned=" + second[1], *DATA, "-o", "both")
    command = shlex.split(done.out.partition("next: ")[2].replace("…", "net.py:batches"))
    assert command[0] == "sparsebit" and cli(*command[1:]).code == 0 and Path("model.onnx").is_file()
    alone = cli("quantize", "net.py:make", "--pruned=" + second[1], *DATA, "-o", "other")
    assert alone.code == 2 and "--pruned twice" in alone.err


def test_pruning_by_gradients_takes_a_loss(cli: Cli, place: Path) -> None:
    Path("p.yaml").write_text("SPARSER: {TYPE: structured, STRATEGY: taylor, RATIO: 0.5}\n")
    words = ("--config", "p.yaml", "--test", "net.py:batches")
    assert (
        cli(
            "prune", "net.py:make", *DATA, *words, "--loss", "torch.nn.functional:cross_entropy", "-o", "a"
        ).code
        == 0
    )
    assert cli("prune", "net.py:make", *DATA, *words, "--loss", "net.py:unlabelled", "-o", "b").code == 2
    assert not Path("b").exists()


def test_help_of_pruning_shows_a_key_that_pruning_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prune", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "such as SPARSER.RATIO=0.3" in text and "such as W.QUANTIZER.BIT" not in text


def _other() -> torch.nn.Module:
    from sparsebit.cli.model import load_model

    return load_model("net.py:Net")
