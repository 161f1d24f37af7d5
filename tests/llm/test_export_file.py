"""Exporting: names that are taken or wrong, options that a format does not have, nothing left behind."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError

from sparsebit import llm
from sparsebit.errors import ArtifactError, SparsebitError
from sparsebit.llm.export_file import example_ids, make_format
from sparsebit.llm.formats.onnxruntime_genai import GenAIFolder
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import DECODERS, VOCABULARY, tokenizer


def test_places_and_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized()
    with pytest.raises(SparsebitError, match=r"a gguf file ends in .gguf"):
        model.export(tmp_path / "model.bin", "gguf")
    (tmp_path / "taken").write_text("")
    with pytest.raises(SparsebitError, match="exists already"):
        model.export(tmp_path / "taken", "gptq")

    def fail(*args: object) -> None:
        raise KeyboardInterrupt

    for step in ("sparsebit.llm.export_file.prove", "sparsebit.llm.formats.gptq.GptqV1.write"):
        monkeypatch.setattr(step, fail)  # stopped while it is proven, and while it is written
        with pytest.raises(KeyboardInterrupt):
            model.export(tmp_path / "out", "gptq")
        assert [one.name for one in tmp_path.iterdir()] == ["taken"]

    for error in (OSError(28, "No space left on device"), SafetensorError("No space left on device")):
        monkeypatch.setattr("sparsebit.llm.formats.gptq.GptqV1.write", Mock(side_effect=error))
        with pytest.raises(ArtifactError, match=r"cannot write .*out: No space left"):
            model.export(tmp_path / "out", "gptq")
    assert [one.name for one in tmp_path.iterdir()] == ["taken"]


def test_options_of_a_format() -> None:
    made = make_format("onnxruntime-genai", {"rounding_budget": 0.5})
    assert isinstance(made, GenAIFolder) and made.rounding_budget == 0.5
    with pytest.raises(SparsebitError, match="gptq has no option 'rounding_budget'"):
        make_format("gptq", {"rounding_budget": 0.5})


def test_ids_to_compare_with() -> None:
    model = quantized()
    ids = example_ids(model)
    assert len(ids) == 16 and int(ids.max()) < VOCABULARY
    model.tokenizer = tokenizer()
    assert len(example_ids(model)) == 32


def test_a_model_without_quantized_weights_is_refused(tmp_path: Path) -> None:
    model = llm.quantize(
        DECODERS["llama"](), None, {"W": {"BIT": 0, "SPARSITY": 0.5}, "METHOD": "rtn"}, progress=False
    )
    with pytest.raises(
        SparsebitError, match=r"stores quantized weights, and the model has none(.|\n)*save_pretrained"
    ):
        model.export(tmp_path / "out", "compressed-tensors")
    assert not list(tmp_path.iterdir())
