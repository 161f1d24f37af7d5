"""A loss that does not fit the data, or is not one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.batches import DataError, call_loss

OUTPUT = torch.randn(3, 2, requires_grad=True)
LABELS = torch.tensor([0, 1, 0])


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), lambda output, *rest: output.sum()])
def test_functions_and_modules_are_called(loss: Any) -> None:
    assert call_loss(loss, OUTPUT, (LABELS,)).requires_grad


@pytest.mark.parametrize(
    "loss", [F.cross_entropy, nn.CrossEntropyLoss(), lambda output, target: output.sum()]
)
def test_a_batch_without_labels_is_told(loss: Any) -> None:
    with pytest.raises(DataError, match="the output and 0 more values of the batch") as error:
        call_loss(loss, OUTPUT, ())
    assert "missing a required argument: 'target'" in str(error.value)


def test_a_name_or_a_class_is_no_loss() -> None:
    with pytest.raises(DataError, match=r"the loss is not a function[\s\S]*'cross_entropy'"):
        call_loss("cross_entropy", OUTPUT, (LABELS,))  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"the loss is not a function[\s\S]*an object .*: CrossEntropyLoss\(\)"
    ):
        call_loss(nn.CrossEntropyLoss, OUTPUT, (LABELS,))


def test_what_a_loss_raises_is_told_with_its_arguments() -> None:
    with pytest.raises(DataError, match=r"loss raised RuntimeError: .*\n.*float32\[3, 2\], float32\[3\]"):
        call_loss(F.cross_entropy, OUTPUT, (LABELS.float(),))

    def too_large(output: Any, target: Any) -> Any:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        call_loss(too_large, OUTPUT, (LABELS,))


def test_code_without_a_signature_is_called() -> None:
    with pytest.raises(DataError, match=r"not a number that depends on the weights\n.*Tensor\[3, 2\]"):
        call_loss(torch.sub, OUTPUT, (1,))
