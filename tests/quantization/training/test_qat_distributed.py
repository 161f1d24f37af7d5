"""Training on two processes under torchrun: each sees its own data, both keep the same model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[3]
CASES = {"uniform": "update", "lsq": "freeze", "lsq+": "freeze", "pact": "freeze", "dorefa": "update"}


def work(folder: str) -> None:
    """What one process does; started by torchrun."""
    from tests.quantization.nets import images
    from tests.quantization.training.test_training import LABELS, training

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    for kind, observers in CASES.items():
        torch.manual_seed(rank)  # dropout of its own
        qmodel = training(kind, distill=0.5 if kind == "lsq" else 0.0, observers=observers)
        model = torch.nn.parallel.DistributedDataParallel(qmodel)
        optimizer = torch.optim.SGD(qmodel.parameter_groups(0.02), momentum=0.9)
        for step in range(3):
            outputs = model(images(4, seed=100 * rank + step) * (1 + rank))
            loss = qmodel.distill(F.cross_entropy(outputs, LABELS))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.save(qmodel.state_dict(), f"{folder}/{kind}.{rank}")
        del model, outputs, loss  # before the group they speak through
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_keep_the_same_grids(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *(__file__, str(tmp_path)),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for kind in CASES:
        first, second = (torch.load(tmp_path / f"{kind}.{rank}", weights_only=True) for rank in range(2))
        own = [name for name in first if "running" not in name]  # batch norm keeps each process's own
        assert [name for name in own if not torch.equal(first[name], second[name])] == [], kind
        assert any(name.endswith("scale") for name in own)


if __name__ == "__main__":
    work(sys.argv[1])
