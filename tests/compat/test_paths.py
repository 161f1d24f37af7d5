from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsebit.compat  # noqa: F401  # puts the old paths there
from sparsebit.compat.names import GONE, MOVED, OldNameError, find
from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel
from tests.forks import Program, run_programs


@pytest.mark.parametrize("path", MOVED)
def test_an_old_path_is_importable(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name) is find(path)


def test_importing_what_is_gone_keeps_the_advice() -> None:
    assert "sparsebit.sparse.modules.register_smodule" in GONE
    with pytest.raises(OldNameError, match=r"use sparsebit\.register_op"):
        from sparsebit.sparse.modules import register_smodule  # type: ignore[import-not-found]  # noqa: F401


def test_importing_from_a_file_that_is_gone_says_what_replaces_it() -> None:
    with pytest.raises(OldNameError, match=r"use sparsebit\.graph\.match\.Pattern"):
        importlib.import_module("sparsebit.quantization.converters.utils.dominator_tree").DominatorTree  # noqa: B018
    importlib.import_module("sparsebit.quantization.converters.fuse_operations.lists")
    # A function with the name of its folder.
    with pytest.raises(OldNameError, match=r"use SCHEDULE\.FUSE_BN"):
        from sparsebit.quantization.converters import (  # type: ignore[import-not-found]
            fuse_operations,  # noqa: F401
        )


def test_a_name_that_never_was_is_an_ordinary_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        from sparsebit.quantization.modules import Nonsense  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(importlib.import_module("sparsebit.utils"), "nonsense")


def test_old_attributes_work_or_say_what_replaces_them() -> None:
    net, x = (
        torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).eval(),
        torch.ones(2, 4),
    )
    qmodel = QuantModel(net, "w4a8", example_inputs=(x,))
    layer: Any = qmodel.model.get_submodule("0")
    with pytest.raises(OldNameError, match=r"qdesc of the old(.|\n)*quantizer\.spec"):
        layer.weight_quantizer.qdesc  # noqa: B018
    with pytest.raises(OldNameError, match=r"build_quantizer of the old(.|\n)*QuantModel\(model, config\)"):
        layer.build_quantizer({})
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    smodel: Any = SparseModel(net, config, example_inputs=(x,))
    assert not hasattr(smodel, "config"), "trainers of transformers write into a model's config"


def test_names_of_today_keep_their_meaning() -> None:
    from sparsebit.quantization import quantizers
    from sparsebit.quantization.quantizers.base import Quantizer

    assert quantizers.Quantizer is Quantizer


def test_the_library_does_not_need_it(tmp_path: Path) -> None:
    """Old names are there only after the import: a name of today is not hidden by chance."""
    program = (
        "import sparsebit; sparsebit.QuantModel; import sys;"
        "assert 'sparsebit.compat' not in sys.modules; import sparsebit.quantization.quant_config as c;"
        "assert not hasattr(c, '_C'); import sparsebit.compat; assert hasattr(c, '_C')"
    )
    codes, printed = run_programs([Program(["-c", program])], tmp_path)
    assert codes == [0], printed
