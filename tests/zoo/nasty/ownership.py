"""Where parameters, buffers, modules and constants are kept, and the hooks users hang on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..collect import Collector, vectors
from ..entry import images

nasty = Collector()


@nasty()
class RootParameters(nn.Module):
    """Weights and a buffer directly on the root."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(4))
        self.register_buffer("offset", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias - self.offset


@nasty()
class ParameterContainers(nn.Module):
    """ModuleDict, ParameterList and ParameterDict."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"left": nn.Linear(6, 3), "right": nn.Linear(6, 3)})
        self.scales = nn.ParameterList([torch.randn(3) for _ in range(2)])
        self.shifts = nn.ParameterDict({"left": torch.randn(3), "right": torch.randn(3)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        pairs = zip(self.heads.items(), self.scales, strict=True)
        return {name: head(x) * scale + self.shifts[name] for (name, head), scale in pairs}


@nasty()
class NonPersistentBuffer(nn.Module):
    """A buffer that the state dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("mask", torch.arange(6) % 2 == 0, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).masked_fill(self.mask, 0.0)


@nasty()
class PlainTensorAttribute(nn.Module):
    """Tensors kept as plain attributes: one alone, one in a dict, one in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.mean = torch.randn(6)
        self.tables = {"scale": torch.rand(6) + 0.5}
        self.pair = (torch.randn(6), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((x - self.mean) * self.tables["scale"]) + self.pair[0] * self.pair[1]


@nasty()
class NumpyConstant(nn.Module):
    """A numpy table read in forward, and torch.tensor of Python numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.table = numpy.linspace(0.5, 1.5, 6, dtype=numpy.float32)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x * torch.from_numpy(self.table)) + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


_GLOBAL_TABLE = torch.linspace(-1, 1, 6)


@nasty()
class GlobalTensor(nn.Module):
    """A tensor of the module file."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * _GLOBAL_TABLE


@nasty()
class UnregisteredModules(nn.Module):
    """Layers in a plain list: no entry in the state dict, not moved by .to()."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.hidden = [nn.Linear(6, 6), nn.ReLU()]
        self.hidden[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = layer(x)
        return self.fc(x)


@nasty()
class MadeInForward(nn.Module):
    """Parameterless modules constructed during forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.LayerNorm(x.size(-1), elementwise_affine=False)(self.fc(x))
        return nn.Softmax(dim=-1)(nn.Sequential(nn.ReLU(), nn.Identity())(x))


@nasty()
class StoredCallables(nn.Module):
    """Functions, a lambda and a bound method kept on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.act: Callable[[Tensor], Tensor] = F.silu
        self.steps = [torch.tanh, lambda t: t * 2 + 1, self.shift]

    def shift(self, x: Tensor) -> Tensor:
        """Adds the bias of the layer once more."""
        return x + self.fc.bias

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.fc(x))
        for step in self.steps:
            x = step(x)
        return x


@nasty()
class PropertyWeight(nn.Module):
    """A property computes the weight from two parameters at each read."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale, self.direction = nn.Parameter(torch.randn(4, 1)), nn.Parameter(torch.randn(4, 6))

    @property
    def weight(self) -> Tensor:
        """Direction with unit norm, times the scale."""
        return F.normalize(self.direction, dim=1) * self.log_scale.exp()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) + self.weight.mean()


@nasty()
class DelegatingWrapper(nn.Module):
    """__getattr__ falls through to the wrapped module; __call__ is overridden."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.bias


def _double_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2 + 1


def _shift_input(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0] + 0.5, *args[1:])


@nasty(images(6))
class LeafHooks(nn.Module):
    """A forward hook and a forward pre-hook on leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.conv.register_forward_hook(_double_output)
        self.bn.register_forward_pre_hook(_shift_input)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)).relu()


@nasty()
class ContainerHooks(nn.Module):
    """Hooks on a Sequential and on the root itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.net.register_forward_pre_hook(_shift_input)
        self.net.register_forward_hook(_double_output)
        self.register_forward_hook(_double_output)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@nasty(notes="hooks are closures over the model: those of a deep copy still write into the original")
class FeatureHooks(nn.Module):
    """Hooks that only collect; forward returns what they collected."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
        self.features: dict[str, Tensor] = {}
        for name, child in self.net.named_children():
            child.register_forward_hook(self._collector(name))

    def _collector(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            self.features[name] = output

        return hook

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.features = {}
        out = self.net(x)
        return {"out": out, **self.features}


@nasty(vectors(6))
class SwappedParameters(nn.Module):
    """A hypernetwork: torch.func.functional_call runs a leaf with computed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.generator = nn.Linear(2, 18)
        self.register_buffer("code", torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight + self.generator(self.code).view(3, 6)
        return torch.func.functional_call(self.layer, {"weight": weight}, (x,)) + self.layer(x)
