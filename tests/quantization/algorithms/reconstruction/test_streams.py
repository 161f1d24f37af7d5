"""Data between blocks: nothing is kept that is not needed, samples are drawn where there are samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.quantization.algorithms.reconstruction import streams as module_of_streams
from sparsebit.quantization.algorithms.reconstruction.blocks import extract, find_blocks
from sparsebit.quantization.algorithms.reconstruction.streams import Samples, Streams, split_call
from tests.quantization.nets import images, quantized


def streams_of(net: nn.Module, *batches: Tensor, batch: int = 4) -> tuple[Streams, list]:  # type: ignore[type-arg]
    qmodel = quantized(net.eval(), None, *batches)
    blocks = find_blocks(qmodel.model)
    streams = Streams(qmodel.model, [((x,), {}) for x in batches], blocks, batch)
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
    samples = Samples(streams, block, 5, torch.Generator().manual_seed(0))
    assert samples.count == 13
    rows = samples.draw(5)
    assert rows is not None and len(rows) == 5
    (x,), _, (y,) = samples.take(rows[3])
    qmodel.set_quant()
    torch.testing.assert_close(qmodel(x), y)
    everything = Samples(streams, block, 99, torch.Generator())
    assert everything.draw(1).shape == (1, 13)


def test_sentences_of_different_lengths_stay_in_their_chunks() -> None:
    streams, parts = streams_of(nn.Linear(3, 2), torch.randn(4, 7, 3), torch.randn(4, 5, 3))
    block, module, qmodel = parts[0]
    streams.targets(block, module, qmodel.quantizers.values())
    samples = Samples(streams, block, 4, torch.Generator().manual_seed(0))
    assert samples.count == 0
    assert samples.draw(3) is None
    lengths = {samples.take(None)[0][0].shape[1] for _ in range(20)}
    assert lengths == {5, 7}
