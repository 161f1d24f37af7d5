"""``sparsebit llm``: what is missing is said before torch is loaded, and text is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit import llm
from tests.cli.conftest import Cli
from tests.llm.models import DECODERS, tokenizer


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quantize", "gone"], "llm quantize needs --output"),
        (["quantize", "gone", "-o", "out"], "gone is not a folder with a model"),
        (["quantize", "gone", "-o", "out", "--config", "w9"], "w9"),
        (["export", "gone", "-o", "out"], "llm export needs --format"),
        (["export", "gone", "-o", "out", "--format", "gptq"], "gone is not a saved language model"),
        (["eval", "gone", "--text", "gone.txt"], "no such file: gone.txt"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], said: str) -> None:
    done = cli("llm", *words)
    assert done.code == 2 and said in done.err


def test_text_is_measured(cli: Cli, tmp_path: Path) -> None:
    model = DECODERS["llama"]()
    model.save_pretrained(tmp_path / "float")
    config = {"METHOD": "rtn"}
    llm.quantize(model, None, config, tokenizer=tokenizer(), progress=False).save(tmp_path / "small")
    (tmp_path / "text.txt").write_text("the thing that they thought " * 20)
    words = ["--text", str(tmp_path / "text.txt"), "--length", "32", "--reference", str(tmp_path / "float")]
    done = cli("llm", "eval", str(tmp_path / "small"), *words)
    assert done.code == 0, done.err
    assert "perplexity" in done.out and "from float:" in done.out


def test_every_format_can_be_typed() -> None:
    from sparsebit.cli.llm import FORMATS as TYPED
    from sparsebit.llm.formats import FORMATS

    assert sorted(TYPED) == sorted(FORMATS)
