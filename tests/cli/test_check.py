"""``sparsebit check``: a file of other weights is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Cli

pytest.importorskip("onnxruntime")


def test_check_finds_a_file_of_other_weights(cli: Cli, place: Path) -> None:
    torch.manual_seed(9)
    torch.save(torch.nn.Module.state_dict(_other()), "other.pt")
    assert (
        cli("export", "net.py:make", "--weights", "other.pt", "--input", "2x3x8x8", "-o", "other.onnx").code
        == 0
    )
    done = cli("check", "other.onnx", "net.py:make", "--input", "2x3x8x8")
    assert done.code == 1 and "DIFFERS" in done.out


def _other() -> torch.nn.Module:
    from sparsebit.cli.model import load_model

    return load_model("net.py:Net")
