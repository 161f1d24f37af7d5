"""Leaves of the graph's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.passes.edit import shallow_copy
from sparsebit.quantization.modules.leaves import own_leaves
from tests.quantization.nets import images, residual
from tests.zoo import ZOO


def test_copies_share_tensors_but_neither_mode_nor_tables() -> None:
    net = residual()
    gm = capture(net, images())
    expected = gm(images())
    assert own_leaves(gm) > 0
    for name, module in net.named_modules():
        if not name:
            continue
        own = gm.get_submodule(name)
        assert own is not module and type(own) is type(module)
        for p, q in zip(own.parameters(), module.parameters(), strict=True):
            assert p is not q and p.data_ptr() == q.data_ptr() and p.requires_grad == q.requires_grad
        assert all(p is q for p, q in zip(own.buffers(), module.buffers(), strict=True))
        assert own._forward_hooks is not module._forward_hooks
    gm.train()
    assert not net.drop.training
    gm.eval()
    assert torch.equal(gm(images()), expected)
    gm.bn1.register_buffer("running_mean", torch.ones(8))
    assert not torch.equal(net.bn1.running_mean, torch.ones(8))  # type: ignore[arg-type]


def test_moving_the_copies_does_not_move_the_model() -> None:
    net = nn.Sequential(nn.LSTM(4, 4))
    args = (torch.randn(2, 3, 4),)
    expected, _ = net(*args)
    gm = capture(net, args)
    own_leaves(gm)
    gm.to(torch.float64)
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert torch.equal(net(*args)[0], expected)
    assert torch.allclose(gm(args[0].double())[0].float(), expected, atol=1e-6)


def test_what_is_shared_inside_the_model_stays_shared() -> None:
    for name in ("nasty_called_twice", "nasty_shared_containers", "hf_t5_gated_encoder"):
        net = ZOO[name].make()
        args, kwargs = ZOO[name].inputs(2)
        gm = capture(net, args, kwargs)
        before = len(list(gm.modules()))
        own_leaves(gm)
        assert len(list(gm.modules())) == before
        assert not set(map(id, gm.modules())) & set(map(id, net.modules()))


def test_a_skipped_module_is_copied_with_its_children() -> None:
    class Skipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(x)
            return y

    net = nn.Sequential(Skipped(), nn.Linear(4, 4)).train()
    gm = capture(net, torch.randn(2, 4), skip=["0"])
    own_leaves(gm)
    gm.eval()
    assert all(module.training for module in net.modules())


def test_modules_that_refuse_to_be_copied_are_copied() -> None:
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    x = torch.randn(2, 4)
    own = shallow_copy(parametrized)
    assert torch.equal(own(x), parametrized(x)) and type(own) is type(parametrized)
    own.eval()
    assert parametrized.training
