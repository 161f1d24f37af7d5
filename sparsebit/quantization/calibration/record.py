"""Results of calibration that are used later: by another round, recovery steps, or the check of an exported file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.batches import Call
from sparsebit.graph.ops.spec import fetch_tensor


@dataclass
class CalibrationRecord:
    """Bias shifts, statistics of folded batch norms, and one recorded call.

    Attributes:
        shifts: changes of biases by recovery steps, by name; undone before the model is calibrated again.
        batch_norms: mean and standard deviation of the results of layers that had a batch norm before it was folded, by
            node.
        sample: the first call of the calibration data; not part of the state.
    """

    shifts: dict[str, Tensor] = field(default_factory=dict)
    batch_norms: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    sample: Call | None = None

    def take_back_shifts(self, gm: GraphModule, *, keep_biases: bool = False) -> dict[str, Tensor]:
        """Undo the changes of biases by recovery steps; returns the biases as they were before.

        With ``keep_biases`` the shifts are only discarded, because training has changed the biases.
        """
        before: dict[str, Tensor] = {}
        for name, shift in ({} if keep_biases else self.shifts).items():
            bias = fetch_tensor(gm, name)
            before[name] = bias.data
            bias.data = (bias.data.double() - shift.to(bias.device)).to(bias.dtype)
        self.shifts.clear()
        return before

    def state(self) -> dict[str, Tensor]:
        """The tensors to save, by name."""
        found = {f"shift/{name}": shift for name, shift in self.shifts.items()}
        for name, (mean, std) in self.batch_norms.items():
            found |= {f"mean/{name}": mean, f"std/{name}": std}
        return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}

    def load_state(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore the state that ``state`` returned."""
        for key, tensor in state.items():
            kind, _, name = key.partition("/")
            if kind == "shift":
                self.shifts[name] = tensor.to(device)
            elif kind == "mean" and f"std/{name}" in state:
                self.batch_norms[name] = (tensor.to(device), state[f"std/{name}"].to(device))
