"""Models in parts: told from others, and refused by what needs them in one piece."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from sparsebit.errors import SparsebitError
from sparsebit.quantization.training.sharded import drop_gathered, full_state, is_sharded, require_unsharded
from tests.quantization.nets import images, residual
from tests.ranks import join_group, needs_distributed


def test_an_ordinary_model_is_in_one_piece() -> None:
    net = residual()
    assert not is_sharded(net)
    assert full_state(net).keys() == net.state_dict().keys()
    require_unsharded(net, "export")


@needs_distributed
def test_a_sharded_model_is_told_and_refused(tmp_path: Path) -> None:
    join_group(0, 1, str(tmp_path))
    try:
        net = residual()
        expected = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        fully_shard(net)
        assert is_sharded(net)
        assert all(tensor.equal(expected[name]) for name, tensor in full_state(net).items())
        with pytest.raises(
            SparsebitError, match=r"export needs complete parameters(.|\n)*save\(folder\) on all"
        ):
            require_unsharded(net, "export")
        with torch.no_grad():
            net(images())  # the outermost module keeps what it has gathered, for a backward pass
        assert not isinstance(net.fc.weight, DTensor) and is_sharded(net)
        drop_gathered(net)
        assert isinstance(net.fc.weight, DTensor)
    finally:
        torch.distributed.destroy_process_group()
