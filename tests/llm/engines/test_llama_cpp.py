"""llama.cpp in a process of its own: a file that it cannot run is an error of ours, not the end of the process."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.llama_cpp import LLAMA_CPP, ROTATE_NEIGHBOURS, SPLIT_QUERIES
from sparsebit.llm.formats.gguf.families import FAMILIES
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import tokenizer


@pytest.mark.skipif(bool(missing_modules(LLAMA_CPP)), reason="gguf and xllamacpp are not installed")
def test_a_file_it_cannot_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized()
    model.tokenizer = tokenizer()
    monkeypatch.setattr(
        "sparsebit.llm.formats.gguf.tensors.float_state", lambda *_, **__: {}
    )  # no norms in the file
    report = model.export(tmp_path / "model.gguf", "gguf")
    assert not report.ok and "llama.cpp cannot run" in report.failure


def test_what_is_missing_is_named() -> None:
    wanted = [name for name in ("gguf", "xllamacpp") if importlib.util.find_spec(name) is None]
    assert missing_modules(LLAMA_CPP) == wanted


def test_rows_are_moved_back_where_the_writer_moves_them() -> None:
    families = FAMILIES.values()
    assert {one.architecture for one in families if one.rotates_neighbours} == set(ROTATE_NEIGHBOURS)
    assert {one.architecture for one in families if one.splits_by_head} == set(SPLIT_QUERIES)
