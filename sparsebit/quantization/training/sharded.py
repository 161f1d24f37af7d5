"""Models whose parameters FSDP has divided over processes (``fully_shard``): saved by all processes together."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.processes import is_distributed


def is_sharded(module: nn.Module) -> bool:
    """Whether some parameter is divided among several processes.

    Between an evaluation and the next step, ``fully_shard`` leaves complete parameters in the outermost module.
    """
    if not is_distributed():
        return False
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    parameters = any(isinstance(parameter, DTensor) for parameter in module.parameters())
    return parameters or any(isinstance(one, FSDPModule) for one in module.modules())


def drop_gathered(module: nn.Module) -> None:
    """Leave every process of a divided model with its own part, in the dtype in which it is trained."""
    if is_sharded(module):
        from torch.distributed.fsdp import FSDPModule

        for one in module.modules():
            if isinstance(one, FSDPModule):
                one.reshard()


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict with complete tensors; for a divided model, all processes must call this at the same time."""
    state: dict[str, Any] = module.state_dict()
    if not is_sharded(module):
        return state
    from torch.distributed.tensor import DTensor

    return {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in state.items()}


def require_unsharded(module: nn.Module, what: str) -> None:
    """Raise an error for a divided model, for work that needs complete parameters."""
    if is_sharded(module):
        raise SparsebitError(
            f"{what} needs complete parameters, and this model is divided among several processes",
            hint="save(folder) on all of them, then QuantModel.load(folder, model) on one",
        )
