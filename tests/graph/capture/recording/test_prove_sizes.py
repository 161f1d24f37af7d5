"""Which sizes are free: proven by a second recording, guarded at the call, never wrong in silence."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import CapturedModule, capture
from tests.graph.capture.zoo_checks import third_party_warnings_ignored


class Applies(nn.Module):
    """A convolution and a function of its result."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 4, 3, padding=1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(x))


IMAGE = torch.randn(2, 3, 8, 8)


def images(size: int) -> Tensor:
    return torch.randn(1, 3, size, size)


def free(graph: CapturedModule) -> list[bool]:
    return [size.free for size in graph.capture_report.sizes]


def equal_or_ours(graph: CapturedModule, model: nn.Module, x: Tensor) -> bool:
    """Whether the graph took the input; then it must be equal."""
    try:
        got = graph(x)
    except CaptureError:
        return False
    assert torch.equal(got, model(x))
    return True


def test_a_convolution_is_free_in_all_but_its_channels() -> None:
    model = Applies(torch.relu).eval()
    graph = capture(model, IMAGE)
    assert free(graph) == [True, False, True, True]
    for shape in ((1, 3, 8, 8), (5, 3, 11, 7), (2, 3, 64, 80)):
        assert equal_or_ours(graph, model, torch.randn(shape))
    with pytest.raises(CaptureError) as error:
        graph(torch.randn(2, 4, 8, 8))
    text = str(error.value)
    assert "argument 'x' has size 4 in dimension 1" in text and "expected: size 3 in dimension 1" in text
    assert "a tensor of shape (2, 4, 8, 8)" in text and "dynamic={'x': [1]}" in text


@pytest.mark.parametrize("size", [64, 128])
def test_long_dimensions_are_proven_too(size: int) -> None:
    graph = capture(Applies(lambda y: y.flatten(2) * (0.5 * y.size(2))).eval(), torch.randn(1, 3, size, 8))
    assert free(graph) == [True, False, False, True]
    assert "lambda y: y.flatten(2) * (0.5 * y.size(2))" in str(graph.capture_report.sizes[2].source)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: F.pad(y, (0, int(y.size(3)) % 2)),  # the same program at 8 and 16, another one at 9
        lambda y: y * 2 if int(y.size(3)) > 20 else y,
        lambda y: y[..., : int(y.size(3) / 2)],
        lambda y: F.interpolate(y, scale_factor=4 / y.size(3)),
        lambda y: y + torch.tensor([float(i) for i in range(y.size(3))]),
        lambda y: torch.stack([column.sum() for column in y.unbind(3)]),
    ],
)
def test_a_size_that_python_takes_away_is_fixed(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).eval()
    graph = capture(model, IMAGE)
    assert free(graph)[3] is False or equal_or_ours(graph, model, torch.randn(2, 3, 8, 9))
    for width in (4, 9, 16, 24):
        equal_or_ours(graph, model, torch.randn(2, 3, 8, width))
    assert equal_or_ours(graph, model, torch.randn(3, 3, 8, 8))


def test_a_branch_that_the_second_size_shares_is_checked_at_the_call() -> None:
    model = Applies(lambda y: y * 2 if y.size(2) > 20 else y).eval()
    graph = capture(model, IMAGE)
    assert equal_or_ours(graph, model, torch.randn(2, 3, 12, 8))
    with pytest.raises(CaptureError, match="a branch on a size was False when the model was captured"):
        graph(torch.randn(2, 3, 24, 8))


@pytest.mark.parametrize(
    "function",
    [
        lambda y: F.pad(y, (0, 1)) if y.size(2) % 2 else y,
        lambda y: y * 2 if y.size(2) // 100 == 0 else y,
        lambda y: y * ((y.size(2) & 1) or 5),
    ],
)
def test_a_branch_on_a_remainder_that_both_sizes_have_is_checked_at_the_call(
    function: Callable[[Tensor], Tensor],
) -> None:
    model = Applies(function).eval()
    graph = capture(model, IMAGE)
    assert free(graph)[2] and equal_or_ours(graph, model, torch.randn(2, 3, 12, 8))
    with pytest.raises(CaptureError, match="a branch on a size was"):
        graph(torch.randn(2, 3, 101, 8))


def test_a_branch_on_what_cannot_change_leaves_no_check() -> None:
    model = Applies(lambda y: y * 2 if y.size(1) == 4 and y.size(2) >= 0 else y).eval()
    names = [getattr(node.target, "__name__", "") for node in capture(model, IMAGE).graph.nodes]
    assert names.count("check_branch") == 1


def test_a_mask_of_length_by_length_follows_the_sequence() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (x @ x.transpose(1, 2)).masked_fill(mask, 0.0) @ x

    model, graph = Masked(), capture(Masked(), (torch.randn(2, 5, 3), torch.ones(2, 5, 5) > 0))
    x, mask = torch.randn(3, 7, 3), torch.rand(3, 7, 7) > 0.5
    assert torch.equal(graph(x, mask), model(x, mask))


def test_what_a_model_keeps_by_size_does_not_fix_the_batch() -> None:
    @functools.lru_cache
    def table(width: int) -> Tensor:
        return torch.arange(float(width))

    model = Applies(lambda y: y + table(int(y.size(3)))).eval()
    graph = capture(model, IMAGE)
    assert free(graph)[0] and not free(graph)[3]
    assert equal_or_ours(graph, model, torch.randn(5, 3, 8, 8))


def test_len_of_a_tensor_in_forward_is_followed() -> None:
    class Flattens(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(len(x), -1) * len([1, 2])

    graph = capture(Flattens(), torch.randn(2, 3, 4))
    assert graph(torch.ones(5, 3, 4)).shape == (5, 12) and "forward" not in vars(Flattens())


@pytest.mark.parametrize("family", ["swinv2", "dinov2", "mamba"])
def test_transformers_at_other_sizes_are_equal_or_refused(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    with third_party_warnings_ignored():
        if family == "swinv2":
            config = transformers.Swinv2Config(
                image_size=64, embed_dim=12, depths=[1, 1], num_heads=[2, 2], window_size=4
            )
            model, example, other = transformers.Swinv2Model(config), images(64), images(96)
        elif family == "dinov2":
            config = transformers.Dinov2Config(
                hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
            )
            model, example, other = transformers.Dinov2Model(config), images(28), images(42)
        else:
            config = transformers.MambaConfig(vocab_size=20, hidden_size=8, state_size=4, num_hidden_layers=1)
            model, example = transformers.MambaModel(config), torch.randint(0, 20, (2, 6))
            other = torch.randint(0, 20, (2, 9))
        model.eval()
        graph = capture(model, example, {"use_cache": False} if family == "mamba" else {})
        options = {"use_cache": False} if family == "mamba" else {}
        with torch.no_grad():
            assert torch.equal(graph(example, **options)[0], model(example, **options)[0])
            try:
                got = graph(other, **options)[0]
            except CaptureError as error:
                assert error.where is not None
            else:
                torch.testing.assert_close(got, model(other, **options)[0], rtol=0, atol=0)
