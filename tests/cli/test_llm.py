"""``sparsebit llm``: what is missing is said before torch is loaded, and text is measured."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from sparsebit import llm
from sparsebit.llm import quantize_blocks
from sparsebit.storage.drafts import FolderDraft
from tests.cli.conftest import Cli
from tests.llm.models import DECODERS, tokenizer
from tests.storage.processes import held_by_another


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quantize", "gone"], "required: -o/--output"),
        (["quantize", "gone", "-o", "out"], "gone is not a folder with a model"),
        (["quantize", "gone", "-o", "out", "--config", "w9"], "w9"),
        (["export", "gone", "-o", "out"], "required: --format"),
        (["export", "gone", "-o", "out", "--format", "gptq"], "gone is not a saved language model"),
        (["eval", "gone", "--text", "gone.txt"], "no such file: gone.txt"),
        (["eval", "gone"], "llm eval needs --text or --questions"),
        (["eval", "gone", "--questions", "q", "--reference", "r"], "--reference on --text"),
        (["prune", "gone", "-o", "out"], "llm prune needs --hidden, --heads or --blocks"),
        (["prune", "gone", "-o", "out", "--blocks", "1"], "llm prune --blocks needs --text"),
        (
            ["chat", "gone", "--length", "8"],
            "unknown arguments: --length 8\n  next: sparsebit llm chat --help",
        ),
        (["chat", "gone"], "gone is not a saved language model"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], said: str) -> None:
    done = cli("llm", *words)
    assert done.code == 2 and said in done.err


def test_text_is_measured(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = DECODERS["llama"]()
    model.save_pretrained(tmp_path / "float")
    config = {"METHOD": "rtn"}
    llm.quantize(model, None, config, tokenizer=tokenizer(), progress=False).save(tmp_path / "small")
    (tmp_path / "text.txt").write_text("the thing that they thought " * 20)
    question = {"question": "the thing", "choices": ["that", "they"], "answer": 0}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question))
    words = [
        "--questions",
        str(tmp_path / "questions.jsonl"),
        "--text",
        str(tmp_path / "text.txt"),
        "--length",
        "32",
        "--reference",
        str(tmp_path / "float"),
    ]
    done = cli("llm", "eval", str(tmp_path / "small"), *words)
    assert done.code == 0, done.err
    assert "perplexity" in done.out and "divergence from float" in done.out and "of 1 questions" in done.out
    done = cli("llm", "chat", str(tmp_path / "small"), "--prompt", "the", "--tokens", "3", "--json")
    assert done.code == 0 and isinstance(json.loads(done.out)["answer"], str)
    monkeypatch.setattr("sparsebit.llm.chat.Chat.answer", lambda *_: iter(["a\x1b[2J", "b\n"]))
    typed = iter(["hello", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    for words in ([], ["--prompt", "the"]):
        done = cli("llm", "chat", str(tmp_path / "small"), *words)
        assert "a\\x1b[2Jb\n" in done.out and "\x1b" not in done.out  # a model does not steer a terminal


def test_pruned_then_quantized_with_a_page(cli: Cli, tmp_path: Path) -> None:
    model = DECODERS["llama"]()
    model.save_pretrained(tmp_path / "float")
    tokenizer().save_pretrained(tmp_path / "float")  # type: ignore[attr-defined]
    done = cli("llm", "prune", str(tmp_path / "float"), "--hidden", "0.5", "-o", str(tmp_path / "half"))
    assert done.code == 0 and "million parameters are left" in done.out, done.err
    assert json.loads((tmp_path / "half" / "config.json").read_text())["intermediate_size"] == 64
    assert (tmp_path / "half" / "tokenizer.json").is_file()
    words = ["--config", "w8", "-o", str(tmp_path / "small"), "--report", str(tmp_path / "page.html")]
    done = cli("llm", "quantize", str(tmp_path / "half"), *words)
    assert done.code == 0, done.err
    assert "store every weight exactly: compressed-tensors" in (tmp_path / "page.html").read_text()


def test_what_was_done_and_what_can_follow_is_said(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("the thing that they thought " * 20)
    for name in ("mixtral", "qwen3"):
        DECODERS[name]().save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)  # type: ignore[attr-defined]
    few = ["--text", str(tmp_path / "text.txt"), "--set", "CALIBRATION.SAMPLES=1"]
    few += ["--set", "CALIBRATION.LENGTH=2"]
    done = cli("llm", "quantize", str(tmp_path / "mixtral"), *few, "-o", str(tmp_path / "experts"))
    assert done.code == 0 and "no token reached them: model.layers.0.mlp.experts." in done.out, done.err
    assert f"next:    sparsebit llm export {shlex.quote(str(tmp_path / 'experts'))} --format gguf" in done.out
    monkeypatch.setattr("sparsebit.cli.llm.FORMAT_NAMES", ())  # no format holds the model exactly
    done = cli("llm", "quantize", str(tmp_path / "qwen3"), *few, "-o", str(tmp_path / "four"))
    assert "21 weights quantized to 4.50 bits each" in done.out and "reached" not in done.out, done.err
    assert f"next:    sparsebit llm eval {shlex.quote(str(tmp_path / 'four'))} --text" in done.out
    assert "MB are in float (HEAD.BIT: 0): model.embed_tokens.weight, lm_head.weight" in done.out
    sparse = [*few, "--set", "W.BIT=0", "--set", "W.SPARSITY=2:4", "-o", str(tmp_path / "sparse")]
    done = cli("llm", "quantize", str(tmp_path / "qwen3"), *sparse)
    assert "21 weights pruned and left in float" in done.out and "sparsebit llm eval" in done.out, done.err


def test_a_run_that_was_stopped_goes_on_when_it_is_typed_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path / "float")
    tokenizer().save_pretrained(tmp_path / "float")  # type: ignore[attr-defined]
    (tmp_path / "text.txt").write_text("the thing that they thought " * 20)
    (tmp_path / "c.yaml").write_text("{METHOD: gptq, CALIBRATION: {SAMPLES: 2, LENGTH: 16}}")
    words = ["llm", "quantize", *(str(tmp_path / name) for name in ("float", "text.txt", "c.yaml", "small"))]
    words[3:] = ["--text", words[3], "--config", words[4], "-o", words[5]]
    solve, left = quantize_blocks.solve_block, [2]

    def stopped(*args: Any, **kwargs: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return solve(*args, **kwargs)

    monkeypatch.setattr(quantize_blocks, "solve_block", stopped)
    assert cli(*words).code != 0
    assert len(list((tmp_path / "small.unfinished").iterdir())) == 2
    (tmp_path / "small.unfinished" / "notes.txt").write_text("mine")
    left[0] = 1  # one block is missing
    done = cli(*words)
    assert done.code == 0, done.err
    assert (tmp_path / "small").is_dir()
    assert [path.name for path in (tmp_path / "small.unfinished").iterdir()] == ["notes.txt"]
    (tmp_path / "small.unfinished" / "notes.txt").unlink()
    whole = {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()}
    left[0] = 9
    with monkeypatch.context() as patched:  # stopped after the last block, while the model is saved
        patched.setattr(llm.LanguageModel, "save", interrupt)
        assert cli(*words).code != 0
    kept = sorted(path.name for path in (tmp_path / "small.unfinished").iterdir())
    assert kept[0] == "block-0000" and len(kept) == DECODERS["llama"]().config.num_hidden_layers
    left[0] = 0  # no block is solved again
    assert cli(*words).code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "small").iterdir()} == whole
    assert not (tmp_path / "small.unfinished").exists()
    with held_by_another(tmp_path / "small.unfinished"):
        refused = cli(*words)
    assert refused.code == 2 and "another run is working in" in refused.err
    (tmp_path / "other.unfinished").write_text("a file where the folder should be")
    refused = cli(*words[:-1], str(tmp_path / "other"))
    assert refused.code != 0 and "cannot write" in refused.err and "File exists" in refused.err


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_folder_that_is_in_use_is_refused_before_the_work(cli: Cli, tmp_path: Path) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path / "float")
    model = llm.quantize(tmp_path / "float", None, {"METHOD": "rtn"}, progress=False)
    model.save(tmp_path / "small")
    done = cli("llm", "quantize", str(tmp_path / "small"), "-o", str(tmp_path / "again"))
    assert done.code == 2 and "small is quantized already" in done.err
    words = ["llm", "prune", str(tmp_path / "float"), "--hidden", "0.5", "-o"]
    done = cli(*words, str(tmp_path / "small"))
    assert done.code == 2 and "small exists and contains files" in done.err
    done = cli("llm", "export", str(tmp_path / "small"), "--format", "gptq", "-o", str(tmp_path / "float"))
    assert done.code == 2 and "float exists and contains files" in done.err
    with FolderDraft(tmp_path / "half"):
        done = cli(*words, str(tmp_path / "half"))
    assert done.code == 2 and "another run is writing" in done.err and not (tmp_path / "half").exists()
    llm.LanguageModel.load(tmp_path / "small")


def test_every_format_can_be_typed() -> None:
    from sparsebit.config.llm import FORMAT_NAMES
    from sparsebit.llm.formats import FORMATS

    assert sorted(FORMAT_NAMES) == sorted(FORMATS)
