"""The distance to the float model, mixed into the loss."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.quantization.training.distillation import Distillation
from tests.quantization.nets import images, quantized, residual
from tests.quantization.training.test_training import LABELS, run, sgd, training


def test_distillation_mixes_in_the_distance_to_the_float_model() -> None:
    net = residual()
    exact = copy.deepcopy(net)
    qmodel = training("lsq", net, distill=0.75, temperature=2.0)
    names = set(qmodel.state_dict())
    run(qmodel, sgd(qmodel), 0, 2)
    x = images(seed=4)
    outputs = qmodel(x)
    assert copy.deepcopy(qmodel).qat.distillation is not None  # also between forward and backward
    loss = F.cross_entropy(outputs, LABELS)
    with torch.no_grad():
        wanted = F.softmax(exact(x) / 2, -1)  # the teacher has not moved with the student
    said = F.log_softmax(outputs / 2, -1)
    distance = (wanted * (wanted.log() - said)).sum(-1).mean() * 4
    torch.testing.assert_close(qmodel.distill(loss), 0.25 * loss + 0.75 * distance)
    assert names == set(training("lsq").state_dict()), "the teacher is not saved"
    assert len(list(qmodel.parameters())) == len(list(training("lsq").parameters()))
    with pytest.raises(SparsebitError, match="needs the outputs of a forward"):
        qmodel.distill(loss)
    qmodel.init_QAT()
    assert qmodel.distill(loss) is loss, "switched off again"


def test_distance_is_an_average_over_all_answers() -> None:
    teacher = nn.Identity()
    per_token, per_sample = (Distillation(teacher, 1.0, 1.0) for _ in range(2))
    student, answer = torch.randn(4, 6, 5), torch.randn(4, 6, 5)
    per_token._pending, per_sample._pending = (student, answer), (student.view(24, 5), answer.view(24, 5))
    torch.testing.assert_close(per_token.mix(torch.zeros(())), per_sample.mix(torch.zeros(())))


def test_classes_of_pixels_are_on_the_axis_of_the_channels() -> None:
    per_pixel, per_sample = (Distillation(nn.Identity(), 1.0, 1.0) for _ in range(2))
    student, answer = torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    per_pixel._pending = (student, answer)
    per_sample._pending = (student.movedim(1, -1).reshape(-1, 5), answer.movedim(1, -1).reshape(-1, 5))
    torch.testing.assert_close(per_pixel.mix(torch.zeros(())), per_sample.mix(torch.zeros(())))


@pytest.mark.parametrize("shape", [(4, 1), (2, 1, 3, 4)])
def test_one_number_per_answer_is_not_distilled(shape: tuple[int, ...]) -> None:
    distillation = Distillation(Answers(torch.zeros(shape)), 1.0)
    distillation.see(torch.ones(shape), (), {})
    with pytest.raises(SparsebitError, match="the model returns one number per answer"):
        distillation.mix(torch.zeros(()))


class Answers(nn.Module):
    """A teacher whose answer is given."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self) -> Any:
        return self.answer


def test_a_loss_before_the_logits_is_not_distilled() -> None:
    student, teacher = torch.randn(4, 5), torch.randn(4, 5)
    beside = Distillation(Answers({"loss": torch.zeros(()), "logits": teacher}), 1.0, 1.0)
    alone = Distillation(Answers(teacher), 1.0, 1.0)
    beside.see(SimpleNamespace(loss=torch.ones(()), logits=student), (), {})
    alone.see(student, (), {})
    assert beside.mix(torch.zeros(())) == alone.mix(torch.zeros(()))


@pytest.mark.parametrize("wrong", ["half", 2.0, -0.5, float("nan"), torch.ones(2)])
def test_a_share_of_the_loss_is_a_number_up_to_one(wrong: Any) -> None:
    with pytest.raises(SparsebitError, match="a weight above 0 and up to 1"):
        quantized().init_QAT(distill=wrong)
