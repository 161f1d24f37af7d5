"""Calls of torch, each spelled as models spell it, with numbers to compare what it becomes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

T = Tensor
DRAWS = torch.Generator().manual_seed(0)


def f(*shape: int) -> Tensor:
    """Real numbers."""
    return torch.randn(shape, generator=DRAWS)


def i(*shape: int) -> Tensor:
    """Integers from 1 to 8."""
    return torch.randint(1, 9, shape, generator=DRAWS)


def b(*shape: int) -> Tensor:
    """Booleans."""
    return torch.rand(shape, generator=DRAWS) > 0.5


# (function, arguments, keywords): everything a model may spell in more than one way, and a sample of the rest
CALLS: list[Call] = [
    # arithmetic: operator methods, reflected ones, named methods, functions
    *[
        (getattr(T, f"__{name}__"), (f(3, 4), f(3, 4)), {})
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge")
    ],
    *[
        (getattr(T, f"__{name}__"), (f(3, 4).abs() + 1, 2), {})
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "ge")
    ],
    *[
        (getattr(T, f"__r{name}__"), (f(3, 4).abs() + 1, 2), {})
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
    ],
    *[
        (getattr(T, f"__{name}__"), (i(3, 4), i(3, 4)), {})
        for name in ("and", "or", "xor", "lshift", "rshift")
    ],
    *[(getattr(T, f"__r{name}__"), (i(3, 4), 5), {}) for name in ("and", "or", "xor")],
    (T.__matmul__, (f(3, 4), f(4, 2)), {}),
    (T.__rmatmul__, (f(4, 2), f(3, 4)), {}),
    (T.__getitem__, (f(3, 4), (slice(None), 1)), {}),
    (T.__getitem__, (f(3, 4), b(3, 4)), {}),
    *[(getattr(T, f"__{name}__"), (f(3, 4),), {}) for name in ("neg", "abs", "pos")],
    (T.__invert__, (i(3, 4),), {}),
    *[
        (getattr(home, name), (f(3, 4), f(3, 4).abs() + 1), {})
        for home in (torch, T)
        for name in (
            "add",
            "sub",
            "subtract",
            "mul",
            "multiply",
            "div",
            "divide",
            "true_divide",
            "floor_divide",
            "remainder",
            "pow",
            "eq",
            "ne",
            "not_equal",
            "lt",
            "less",
            "le",
            "less_equal",
            "gt",
            "greater",
            "ge",
            "greater_equal",
            "fmod",
            "maximum",
            "atan2",
        )
    ],
    *[
        (getattr(home, name), (i(3, 4), i(3, 4)), {})
        for home in (torch, T)
        for name in (
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "bitwise_left_shift",
            "floor_divide",
            "remainder",
            "div",
        )
    ],
    *[
        (getattr(home, name), (f(3, 4),), {"other": f(3, 4)})
        for home in (torch, T)
        for name in ("add", "sub", "mul", "div", "eq", "lt")
    ],
    (torch.add, (), {"input": f(3), "other": f(3)}),
    (torch.pow, (f(3).abs(),), {"exponent": 2.5}),
    (T.pow, (f(3).abs(),), {"exponent": 2.5}),
    (torch.pow, (2, f(3)), {}),
    (torch.remainder, (7, i(3)), {}),
    (torch.rsub, (f(3), f(3)), {}),
    (torch.rsub, (f(3), 1), {}),
    (torch.rsub, (f(3), f(3)), {"alpha": 2}),
    *[(getattr(home, name), (f(3), f(3)), {"alpha": 3}) for home in (torch, T) for name in ("add", "sub")],
    *[
        (home.div, (f(3) * 9, f(3)), {"rounding_mode": mode})
        for home in (torch, T)
        for mode in ("floor", "trunc", None)
    ],
    *[
        (getattr(home, name), (f(3, 4),), {})
        for home in (torch, T)
        for name in (
            "neg",
            "negative",
            "abs",
            "absolute",
            "positive",
            "relu",
            "sigmoid",
            "tanh",
            "exp",
            "sqrt",
            "erf",
            "round",
            "floor",
            "trunc",
            "fix",
            "sin",
            "sign",
            "square",
            "reciprocal",
            "isnan",
            "logical_not",
            "clone",
            "detach",
            "t",
            "numel",
            "nonzero",
            "argmax",
            "sum",
            "prod",
            "mean",
            "std",
            "var",
            "max",
            "min",
            "amax",
            "any",
            "all",
            "flatten",
            "ravel",
            "squeeze",
            "median",
            "norm",
            "aminmax",
            "unique",
            "count_nonzero",
        )
        if hasattr(home, name)
    ],
    (torch.bitwise_not, (i(3),), {}),
    (T.bitwise_not, (b(3),), {}),
    # sizes and dimensions, one by one and in a tuple
    *[
        (getattr(T, name), (f(2, 6), *sizes), {})
        for name in ("view", "reshape")
        for sizes in ((3, 4), (-1,), ((4, 3),), ([12],), (torch.Size([4, -1]),))
    ],
    (T.view, (f(2, 6), torch.int32), {}),
    (T.reshape, (f(2, 6),), {"shape": (3, 4)}),
    (T.view_as, (f(2, 6), f(3, 4)), {}),
    *[(T.permute, (f(2, 3, 4), *dims), {}) for dims in ((2, 0, 1), ((2, 0, 1),), ([2, 0, 1],))],
    (T.permute, (f(2, 3),), {"dims": (1, 0)}),
    (torch.permute, (f(2, 3, 4), [2, 0, 1]), {}),
    *[(T.expand, (f(1, 3), *sizes), {}) for sizes in ((4, 3), (2, -1, -1), ((4, -1),), ([4, 3],))],
    *[(T.repeat, (f(2, 3), *sizes), {}) for sizes in ((2, 1), ((1, 2, 3),))],
    *[(T.tile, (f(2, 3), *sizes), {}) for sizes in ((2, 1), ((2,),))],
    *[(T.flip, (f(2, 3), *dims), {}) for dims in ((0,), (0, 1), ((0, 1),), ([1],))],
    (torch.flip, (f(2, 3), [0, 1]), {}),
    (torch.tile, (f(2, 3), [2, 1]), {}),
    (torch.reshape, (f(2, 6), [3, 4]), {}),
    *[(T.movedim, (f(2, 3, 4), *dims), {}) for dims in ((0, 2), ((0, 1), (1, 0)))],
    (T.moveaxis, (f(2, 3, 4), 0, 2), {}),
    (torch.moveaxis, (f(2, 3, 4), 0, 2), {}),
    (T.unflatten, (f(2, 6), 1, (2, 3)), {}),
    (T.unflatten, (f(2, 6), 1, (-1, 3)), {}),
    *[
        (getattr(T, name), (f(2), *sizes), {})
        for name in ("new_zeros", "new_ones")
        for sizes in ((3, 4), ((3, 4),), (3,))
    ],
    (T.new_zeros, (f(2), 3, 4), {"dtype": torch.int64}),
    (T.new_full, (f(2), (3, 4), 7.0), {}),
    *[
        (getattr(torch, name), sizes, {})
        for name in ("zeros", "ones")
        for sizes in ((3, 4), ((3, 4),), ([3, 4],), (3,))
    ],
    (torch.zeros, (3, 4), {"dtype": torch.int64}),
    (torch.zeros, (), {"size": (3, 4)}),
    (torch.full, ((3, 4), 2.0), {}),
    # methods that are functions, and the other way round
    *[
        (getattr(home, name), (f(2, 3, 4), *rest), {})
        for home in (torch, T)
        for name, *rest in (
            ("transpose", 0, 2),
            ("swapaxes", 0, 2),
            ("swapdims", 1, 2),
            ("unsqueeze", 1),
            ("squeeze", 0),
            ("softmax", -1),
            ("log_softmax", 1),
            ("chunk", 2, 2),
            ("split", 2, 2),
            ("narrow", 2, 1, 2),
            ("select", 1, 0),
            ("cumsum", 1),
            ("sum", (0, 2)),
            ("mean", -1),
            ("topk", 2),
            ("sort", -1),
            ("roll", 1, 0),
            ("clamp", -0.5, 0.5),
            ("clip", -0.5, 0.5),
            ("flatten", 1),
            ("index_select", 0, torch.tensor([1, 0])),
            ("gather", 2, torch.zeros(2, 3, 1, dtype=torch.int64)),
            ("masked_fill", torch.tensor([True, False, True, False]), 9.0),
            ("unbind", 1),
            ("diagonal", 0, 1, 2),
            ("repeat_interleave", 2, 1),
            ("tensor_split", 2, 2),
            ("argsort", 1),
            ("logsumexp", 1),
            ("lerp", torch.zeros(2, 3, 4), 0.3),
            ("addcmul", torch.ones(4), torch.ones(4)),
            ("max", 1),
            ("std", 1),
            ("norm", 2, 1),
            ("broadcast_to", (2, 3, 4)),
            ("take", torch.tensor([0, 5])),
            ("unfold", 2, 2, 1),
            ("nan_to_num", 0.0),
            ("quantile", 0.5),
        )
        if hasattr(home, name)
    ],
    (T.softmax, (f(2, 3),), {"dim": -1, "dtype": torch.float64}),
    (T.sum, (f(2, 3),), {"dim": 1, "keepdim": True}),
    (T.split, (f(6, 2), [1, 5]), {}),
    (T.split, (f(6, 2), 4), {"dim": 0}),
    (T.norm, (f(6, 2),), {"dim": 1, "keepdim": True}),
    (T.where, (f(3), b(3), f(3)), {}),
    (T.where, (f(3), b(3), 0.0), {}),
    (torch.where, (b(3), f(3), f(3)), {}),
    (T.to, (f(3), torch.float64), {}),
    (T.to, (f(3), f(2).double()), {}),
    (T.type, (f(3), torch.int32), {}),
    *[
        (getattr(T, name), (f(3),), {})
        for name in ("float", "double", "half", "long", "int", "bool", "contiguous", "cpu")
    ],
    (T.type_as, (f(3), i(2)), {}),
    (T.expand_as, (f(1, 3), f(2, 3)), {}),
    (T.bmm, (f(2, 3, 4), f(2, 4, 5)), {}),
    (T.matmul, (f(3, 4), f(4)), {}),
    (torch.mm, (f(3, 4), f(4, 2)), {}),
    (T.unfold, (f(6), 0, 2, 2), {}),
    (T.clamp, (f(3),), {"min": 0.0}),
    (T.clamp_min, (f(3), 0.0), {}),
    *[
        (function, ([f(2, 3), f(2, 3)], 1), {})
        for function in (torch.cat, torch.concat, torch.concatenate, torch.stack)
    ],
    (torch.cat, ((f(2, 3), f(2, 3)),), {"dim": -1}),
    (torch.arccos, (f(3).clamp(-1, 1),), {}),
    (T.arccos, (f(3).clamp(-1, 1),), {}),
    (torch.einsum, ("ij,jk->ik", f(3, 4), f(4, 2)), {}),
    (torch.addmm, (f(3, 2), f(3, 4), f(4, 2)), {}),
    (F.relu, (f(3),), {}),
    (F.linear, (f(3, 4), f(2, 4), f(2)), {}),
    (F.conv2d, (f(1, 2, 5, 5), f(3, 2, 3, 3)), {"padding": 1}),
    (F.pad, (f(3, 4), (1, 1)), {}),
    (F.softmax, (f(3, 4),), {"dim": 1}),
    (operator.add, (f(3), f(3)), {}),
    (torch.ops.aten.relu.default, (f(3),), {}),
]


def tensors_of(value: Any) -> list[Any]:
    """What a result is made of, however nested."""
    return (
        [leaf for item in value for leaf in tensors_of(item)] if isinstance(value, tuple | list) else [value]
    )


def assert_equal(got: Any, expected: Any) -> None:
    """The same numbers of the same types; NaN equals NaN."""
    got, expected = tensors_of(got), tensors_of(expected)
    assert len(got) == len(expected)
    for one, two in zip(got, expected, strict=True):
        assert type(one) is type(two)
        if isinstance(one, Tensor):
            assert one.dtype == two.dtype and one.shape == two.shape
            assert (
                torch.equal(one.nan_to_num(), two.nan_to_num())
                if one.is_floating_point()
                else torch.equal(one, two)
            )
        else:
            assert one == two
