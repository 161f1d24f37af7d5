"""The script that runs llama.cpp, asked as its parent asks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.engines import llama_cpp
from sparsebit.llm.engines.engine import missing_modules
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import VOCABULARY, tokenizer

SCRIPT = Path(llama_cpp.__file__).with_name("llama_cpp_child.py")


@pytest.mark.skipif(bool(missing_modules(llama_cpp.LLAMA_CPP)), reason="gguf and xllamacpp are not installed")
def test_it_answers_with_a_distribution_for_each_prompt(tmp_path: Path) -> None:
    model = quantized()
    model.tokenizer = tokenizer()
    model.export(tmp_path / "model.gguf", "gguf")
    prompts = [[3, 4, 5], [7]]
    request = {
        "path": str(tmp_path / "model.gguf"),
        "size": VOCABULARY,
        "threads": 1,
        "prompts": prompts,
        "spoken": 20,
        "texts": ["the"],
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], input=json.dumps(request), capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["ids"] == [model.tokenizer("the")["input_ids"]]
    rows = answer["rows"]
    assert len(rows) == 2
    for row in rows:
        assert sorted(index for index, _ in row) == list(range(VOCABULARY))
        assert torch.tensor([value for _, value in row]).exp().sum() == pytest.approx(1, abs=1e-3)
    with pytest.raises(SparsebitError, match=r"exceeds the available context size \(64 tokens\)"):
        llama_cpp.ask(tmp_path / "model.gguf", prompts=[[3] * 70], size=VOCABULARY, spoken=20)


@pytest.mark.parametrize(("prompts", "status"), [([], 0), ([[3, 4]], 1)])
def test_it_ends_although_the_server_cannot_be_destroyed(
    tmp_path: Path, prompts: list[list[int]], status: int
) -> None:
    (tmp_path / "xllamacpp.py").write_text(
        "import time\n"
        "from unittest.mock import MagicMock as CommonParams\n"
        "class Server:\n"
        "    def __init__(self, parameters): pass\n"
        "    def __del__(self): time.sleep(3600)\n"
        "    def handle_completions(self, request): return {'message': 'too long'}\n"
    )
    request = {"path": "model.gguf", "size": 4, "threads": 1, "prompts": prompts, "spoken": 2}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("error of llama.cpp: too long" in done.stderr) == bool(status)
