"""Data between blocks: nothing is kept that is not needed, samples are drawn where there are samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms.reconstruction import streams as module_of_streams
from sparsebit.quantization.algorithms.reconstruction.blocks import extract, find_blocks
from sparsebit.quantization.algorithms.reconstruction.streams import Call, Samples, Streams, split_call
from tests.quantization.nets import config, images


def streams_of(net: nn.Module, *batches: Any, batch: int = 4) -> tuple[Streams, list]:  # type: ignore[type-arg]
    qmodel = QuantModel(net.eval(), config(), batches[0])
    qmodel.calibrate(batches, progress=False)
    blocks = find_blocks(qmodel.model)
    calls: list[Call] = [(x if isinstance(x, tuple) else (x,), {}) for x in batches]
    streams = Streams(qmodel.model, calls, blocks, batch)
    return streams, [(block, extract(qmodel.model, block), qmodel) for block in blocks]


def test_calls_are_cut_into_chunks() -> None:
    x, y = torch.arange(10).view(5, 2), torch.arange(5)
    pieces = split_call((x,), {"y": y, "flag": True}, 2)
    assert [len(args[0]) for args, _ in pieces] == [2, 2, 1] and pieces[0][1]["flag"] is True
    assert torch.equal(torch.cat([kwargs["y"] for _, kwargs in pieces]), y)
    assert len(split_call((x, torch.zeros(3, 2)), {}, 2)) == 1, "no common first axis"
    assert len(split_call((x, torch.tensor(1.0)), {}, 2)) == 1, "a number for all samples"


@pytest.mark.parametrize("limit", [0, 2**30])
def test_both_streams_are_the_model(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_streams, "MOST_IN_MEMORY", limit)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
    x = images(6)
    streams, parts = streams_of(net, x)
    exact = net(x)
    for index, (block, module, qmodel) in enumerate(parts):
        streams.targets(block, module, qmodel.quantizers.values())
        if index == len(parts) - 1:
            (last,) = block.outputs
            torch.testing.assert_close(torch.cat([v[last] for v in streams.exact]), exact)
        streams.advance(index, block, module)
    assert all(values == {} for values in (*streams.exact, *streams.rounded)), "let go of"
    assert all(q.use_quant for q in qmodel.quantizers.values())


def test_samples_are_drawn_from_all_chunks() -> None:
    streams, parts = streams_of(
        nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.randn(10, 3), torch.randn(3, 3)
    )
    block, module, qmodel = parts[0]
    streams.targets(block, module, qmodel.quantizers.values())
    samples = Samples(streams, block, module, qmodel.quantizers.values(), 5, torch.Generator().manual_seed(0))
    assert samples.count == 13
    rows = samples.draw(5)
    assert rows is not None and len(rows) == 5
    (x,), _, (y,) = samples.take(rows[3])
    qmodel.set_quant()
    torch.testing.assert_close(qmodel(x), y)
    everything = Samples(streams, block, module, qmodel.quantizers.values(), 99, torch.Generator())
    drawn = everything.draw(1)
    assert drawn is not None and drawn.shape == (1, 13)


def test_sentences_of_different_lengths_stay_in_their_chunks() -> None:
    streams, parts = streams_of(nn.Linear(3, 2), torch.randn(4, 7, 3), torch.randn(4, 5, 3))
    block, module, qmodel = parts[0]
    streams.targets(block, module, qmodel.quantizers.values())
    samples = Samples(streams, block, module, qmodel.quantizers.values(), 4, torch.Generator().manual_seed(0))
    assert samples.count == 0
    assert samples.draw(3) is None
    lengths = {samples.take(None)[0][0].shape[1] for _ in range(20)}
    assert lengths == {5, 7}


class Attention(nn.Module):
    """Attention over [positions, samples, channels], or over [samples, positions, channels] with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = self.fc(x) if mask is not None else self.fc(x).transpose(0, 1)
        weights = rows @ rows.transpose(1, 2)
        if mask is not None:
            return (weights + mask).softmax(-1) @ rows  # type: ignore[no-any-return]
        return (weights.softmax(-1) @ rows).transpose(0, 1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("masked", [False, True])
def test_what_lies_along_the_first_axis_of_no_samples_is_not_drawn(masked: bool) -> None:
    mask = torch.full((4, 4), -torch.inf).triu(1)  # as many rows as there are samples
    batches = [(torch.randn(4, 4, 3), mask) if masked else (torch.randn(4, 5, 3),) for _ in range(2)]
    assert len(streams_of(Attention(), *batches, batch=2)[0].exact) == 2, "they are not cut either"
    streams, parts = streams_of(Attention(), *batches)
    counts = []
    for index, (block, module, qmodel) in enumerate(parts):
        quantizers = qmodel.quantizers.values()
        streams.targets(block, module, quantizers)
        samples = Samples(streams, block, module, quantizers, 4, torch.Generator().manual_seed(0))
        counts.append((samples.count, len(samples.wanted)))
        streams.advance(index, block, module)
    assert counts == [(8, 1), (0, 2)]  # a layer works on each row alone, attention does not
