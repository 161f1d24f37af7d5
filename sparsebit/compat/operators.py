"""The old classes of operators, for ``isinstance`` only.

In the old toolkit, every operator became a module of a class such as ``QConv2d`` or ``QAdd``. Here a layer stays an
instance of its torch class, a function stays a function, and quantizers belong to tensors. Loops over
``qmodel.modules()`` that look for these classes still find the layers they meant.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from sparsebit.compat.names import OPERATORS, OldNameError
from sparsebit.graph.ops import OPS
from sparsebit.quantization.modules.qmodules import QuantOpr as UserOperator
from sparsebit.quantization.modules.qmodules import Reader
from sparsebit.quantization.modules.quant_graph import OperatorView


class _AnyQuantized(type):
    """``isinstance`` is true for every operator with quantizers, whether a user wrote it or not."""

    def __instancecheck__(cls, instance: object) -> bool:
        return type.__instancecheck__(cls, instance) or (
            cls is QuantOpr and isinstance(instance, UserOperator | Reader)
        )


class QuantOpr(UserOperator, metaclass=_AnyQuantized):
    """Base class of operators with their own quantizers; ``isinstance`` is also true for every quantized layer."""


class _Kind(type):
    """Stands for operators that the library makes by itself: only ``isinstance`` works with it."""

    targets: frozenset[object]

    def __instancecheck__(cls, instance: object) -> bool:
        if isinstance(instance, OperatorView):
            return instance.node.target in cls.targets
        kind = getattr(type(instance), "stands_for", type(instance))
        return kind in cls.targets and (isinstance(instance, Reader) or kind is nn.Identity)

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise OldNameError(
            f"{cls.__name__} cannot be constructed: QuantModel adds quantizers to the layers of your model",
            hint="register_qmodule(sources=[...]) replaces an operator with your own class; docs/how-to/qmodule.md",
        )


def _kind(name: str, operators: tuple[str, ...]) -> type:
    targets = frozenset(target for operator in operators for target in OPS[operator].targets)
    doc = f"isinstance(operator, {name}) is true if it is {' or '.join(operators)}."
    return _Kind(name, (), {"targets": targets, "__doc__": doc, "__module__": __name__})


globals().update(
    {name: _kind(name, operators) for names in OPERATORS.values() for name, operators in names.items()}
)


class _Pruned(type):
    """``isinstance`` is true for a layer of a ``SparseModel`` that can be pruned."""

    layer: type[nn.Module] = nn.Module

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.layer) and "sparser" in vars(instance)

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise OldNameError(
            f"{cls.__name__} cannot be constructed: SparseModel prunes the layers of your model themselves",
            hint="sparsebit.register_op says how channels flow through your own operator; docs/how-to/operator.md",
        )


class SparseOpr(metaclass=_Pruned):
    """A layer that can be pruned."""


class SConv2d(metaclass=_Pruned):
    """A convolution that can be pruned."""

    layer = nn.Conv2d


class SLinear(metaclass=_Pruned):
    """A linear layer that can be pruned."""

    layer = nn.Linear
