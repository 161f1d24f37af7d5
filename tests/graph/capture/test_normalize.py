"""One spelling for one meaning, and the meaning stays: the canonical call gives the numbers of the original call."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.graph.capture.normalize import (
    canonical_aten,
    canonical_call,
    functional_twin,
    is_tensor_method,
    name_of,
)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

T = Tensor
DRAWS = torch.Generator().manual_seed(0)


def f(*shape: int) -> Tensor:
    return torch.randn(shape, generator=DRAWS)


def i(*shape: int) -> Tensor:
    return torch.randint(1, 9, shape, generator=DRAWS)


def b(*shape: int) -> Tensor:
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
    return (
        [leaf for item in value for leaf in tensors_of(item)] if isinstance(value, tuple | list) else [value]
    )


def assert_equal(got: Any, expected: Any) -> None:
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


def named(call: Call) -> str:
    return f"{'Tensor.' if is_tensor_method(call[0]) else ''}{name_of(call[0])}"


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_the_canonical_call_gives_the_same_numbers(call: Call) -> None:
    function, args, kwargs = call
    target, new_args, new_kwargs = canonical_call(function, args, kwargs)
    assert_equal(target(*new_args, **new_kwargs), function(*args, **kwargs))


def test_a_canonical_call_is_canonical_already() -> None:
    for call in CALLS:
        once = canonical_call(*call)
        again = canonical_call(*once)
        assert again[0] is once[0] and again[2].keys() == once[2].keys(), named(call)
        assert repr(again[1]) == repr(once[1]), named(call)


@pytest.mark.parametrize(
    ("target", "forward", "reflected"),
    [
        (operator.add, [torch.add, T.add, T.__add__], [T.__radd__]),
        (operator.sub, [torch.sub, torch.subtract, T.__sub__], [T.__rsub__, torch.rsub]),
        (operator.truediv, [torch.div, T.true_divide, T.__truediv__], [T.__rtruediv__, T.__rdiv__]),
        (operator.pow, [torch.pow, T.pow, T.__pow__], [T.__rpow__]),
        (operator.matmul, [torch.matmul, T.__matmul__], [T.__rmatmul__]),
        (operator.and_, [torch.bitwise_and, T.__and__], [T.__rand__]),
        (operator.getitem, [T.__getitem__], []),
    ],
)
def test_one_meaning_has_one_target(target: Any, forward: list[Any], reflected: list[Any]) -> None:
    for function in forward:
        assert canonical_call(function, ("x", "y"), {}) == (target, ("x", "y"), {})
    for function in reflected:
        assert canonical_call(function, ("y", "x"), {}) == (target, ("x", "y"), {})


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ((T.transpose, ("x", 1, 2), {}), (torch.transpose, ("x", 1, 2), {})),
        ((T.softmax, ("x", -1), {}), (torch.softmax, ("x", -1), {})),
        ((T.reshape, ("x", 2, -1), {}), (torch.reshape, ("x", (2, -1)), {})),
        ((T.permute, ("x", 0, 2, 1), {}), (torch.permute, ("x", (0, 2, 1)), {})),
        ((T.view, ("x", 2, -1), {}), (T.view, ("x", (2, -1)), {})),
        ((T.expand, ("x", [2, -1]), {}), (T.expand, ("x", (2, -1)), {})),
        ((T.masked_fill, ("x", "m", 0.0), {}), (torch.masked_fill, ("x", "m", 0.0), {})),
        ((T.where, ("x", "c", "y"), {}), (torch.where, ("c", "x", "y"), {})),
        ((T.unsqueeze, ("x", 0), {}), (torch.unsqueeze, ("x", 0), {})),
        ((T.__neg__, ("x",), {}), (operator.neg, ("x",), {})),
        ((T.__invert__, ("x",), {}), (operator.invert, ("x",), {})),
        ((torch.clip, ("x", 0, 1), {}), (torch.clamp, ("x", 0, 1), {})),
        ((T.swapaxes, ("x", 0, 1), {}), (torch.transpose, ("x", 0, 1), {})),
        ((torch.add, ("x", "y"), {"alpha": 2}), (torch.add, ("x", "y"), {"alpha": 2})),
        ((T.add, ("x", "y"), {"alpha": 2}), (torch.add, ("x", "y"), {"alpha": 2})),
        ((torch.zeros, (2, "n"), {"dtype": torch.int8}), (torch.zeros, ((2, "n"),), {"dtype": torch.int8})),
        ((F.gelu, ("x",), {}), (F.gelu, ("x",), {})),
    ],
)
def test_the_documented_spellings(call: Call, expected: Call) -> None:
    assert canonical_call(*call) == expected


def test_a_function_of_somebody_else_is_left_alone() -> None:
    def add(x: Any, y: Any) -> Any:
        return x + y

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    assert canonical_call(add, ("x", "y"), {})[0] is add
    odd = Unhashable()
    assert canonical_call(odd, (), {})[0] is odd


@given(
    st.sampled_from(["add", "sub", "mul", "div", "pow", "remainder", "floor_divide", "matmul"]),
    st.integers(0, 9),
)
def test_operands_by_name_are_put_in_order(name: str, seed: int) -> None:
    x, y = (torch.rand((3, 3), generator=torch.Generator().manual_seed(seed)) + part for part in (0.5, 1.5))
    function, second = getattr(torch, name), "exponent" if name == "pow" else "other"
    for args, kwargs in (((x, y), {}), ((x,), {second: y}), ((), {"input": x, second: y})):
        target, new_args, new_kwargs = canonical_call(function, args, kwargs)
        assert new_kwargs == {} and torch.equal(target(*new_args), function(x, y))


def test_names_and_owners() -> None:
    assert name_of(T.add) == "add" and name_of(T.__rsub__) == "__rsub__" and name_of(object()) == ""
    assert name_of(T.split) == "split" and name_of(T.__pow__) == "__pow__"
    assert is_tensor_method(T.add) and is_tensor_method(T.split) and is_tensor_method(T.__rpow__)
    assert not is_tensor_method(torch.add) and not is_tensor_method(len) and not is_tensor_method(F.relu)


@pytest.mark.parametrize("name", ["add_", "relu_", "mul_", "masked_fill_", "clamp_", "transpose_"])
def test_the_twin_of_a_write_is_the_method_without_it(name: str) -> None:
    assert functional_twin(name) is getattr(T, name.rstrip("_"))


@pytest.mark.parametrize("name", ["uniform_", "add", "__setitem__", "__iadd__", "zero_"])
def test_other_names_have_no_twin(name: str) -> None:
    twin = functional_twin(name)
    assert twin is None or name == "__iadd__"


# -- aten ------------------------------------------------------------------------------------------

ATEN = torch.ops.aten
ATEN_CALLS: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
    ("add", ATEN.add.Tensor, (f(3), f(3)), {}),
    ("add", ATEN.add.Tensor, (f(3), f(3)), {"alpha": 2}),
    ("mul", ATEN.mul.Scalar, (f(3), 2.0), {}),
    ("div", ATEN.div.Tensor, (f(3), f(3)), {}),
    ("div", ATEN.div.Tensor_mode, (f(3) * 9, f(3)), {"rounding_mode": "floor"}),
    ("pow", ATEN.pow.Tensor_Scalar, (f(3), 2), {}),
    ("eq", ATEN.eq.Scalar, (i(3), 2), {}),
    ("neg", ATEN.neg.default, (f(3),), {}),
    ("bitwise_not", ATEN.bitwise_not.default, (b(3),), {}),
    ("rsub", ATEN.rsub.Scalar, (f(3), 1.0), {}),
    ("matmul", ATEN.matmul.default, (f(2, 3), f(3)), {}),
    ("relu", ATEN.relu.default, (f(3),), {}),
    ("gelu", ATEN.gelu.default, (f(3),), {}),
    ("linear", ATEN.linear.default, (f(2, 3), f(4, 3), f(4)), {}),
    ("conv2d", ATEN.conv2d.default, (f(1, 2, 5, 5), f(3, 2, 3, 3), None, [1, 1], [1, 1]), {}),
    ("layer_norm", ATEN.layer_norm.default, (f(2, 3), [3]), {}),
    ("max_pool2d", ATEN.max_pool2d.default, (f(1, 2, 4, 4), [2, 2], [2, 2]), {}),
    ("softmax", ATEN.softmax.int, (f(2, 3), -1), {}),
    ("view", ATEN.view.default, (f(2, 6), [3, 4]), {}),
    ("view", ATEN.view.dtype, (f(2, 6), torch.int32), {}),
    ("expand", ATEN.expand.default, (f(1, 3), [4, 3]), {}),
    ("repeat", ATEN.repeat.default, (f(2), [2, 2]), {}),
    ("contiguous", ATEN.contiguous.default, (f(2, 3).t(),), {}),
    ("new_zeros", ATEN.new_zeros.default, (f(2), [3]), {"pin_memory": False}),
    ("reshape", ATEN.reshape.default, (f(2, 6), [3, 4]), {}),
    ("permute", ATEN.permute.default, (f(2, 3, 4), [2, 0, 1]), {}),
    ("transpose", ATEN.transpose.int, (f(2, 3), 0, 1), {}),
    ("cat", ATEN.cat.default, ([f(2), f(3)],), {}),
    ("split", ATEN.split.Tensor, (f(6), 2), {}),
    ("chunk", ATEN.chunk.default, (f(6), 2), {}),
    ("sum", ATEN.sum.dim_IntList, (f(2, 3), [1], True), {}),
    ("mean", ATEN.mean.dim, (f(2, 3), [1]), {}),
    ("norm", ATEN.norm.ScalarOpt_dim, (f(2, 3), 2, [1]), {}),
    ("where", ATEN.where.self, (b(3), f(3), f(3)), {}),
    ("to", ATEN.to.dtype, (f(3), torch.float64), {}),
    ("index", ATEN.index.Tensor, (f(3, 4), [torch.tensor([0, 2])]), {}),
    ("select", ATEN.select.int, (f(3, 4), 0, 1), {}),
    ("embedding", ATEN.embedding.default, (f(5, 2), i(3).clamp(max=4)), {}),
    ("clamp", ATEN.clamp.default, (f(3), 0.0), {}),
    ("zeros", ATEN.zeros.default, ([2, 3],), {"pin_memory": False}),
    ("arange", ATEN.arange.start, (1, 5), {"pin_memory": False}),
    ("full", ATEN.full.default, ([2], 3.0), {"pin_memory": False}),
    ("silu", ATEN.silu.default, (f(3),), {}),
    ("hardtanh", ATEN.hardtanh.default, (f(3), 0.0, 6.0), {}),
    ("adaptive_avg_pool2d", ATEN.adaptive_avg_pool2d.default, (f(1, 2, 4, 4), [1, 1]), {}),
    (
        "batch_norm",
        ATEN.batch_norm.default,
        (f(4, 3), None, None, f(3), f(3).abs(), False, 0.1, 1e-5, True),
        {},
    ),
    ("leaky_relu", ATEN.leaky_relu.default, (f(3), 0.2), {}),
    ("unfold", ATEN.unfold.default, (f(6), 0, 2, 2), {}),
    ("upsample_nearest2d", ATEN.upsample_nearest2d.vec, (f(1, 1, 2, 2), [4, 4], None), {}),
]


@pytest.mark.parametrize("call", ATEN_CALLS, ids=lambda call: str(call[1]))
def test_the_canonical_spelling_of_an_aten_operator_gives_its_numbers(call: Any) -> None:
    name, overload, args, kwargs = call
    target, new_args, new_kwargs = canonical_aten(name, overload, args, kwargs)
    assert_equal(target(*new_args, **new_kwargs), overload(*args, **kwargs))


def test_an_aten_operator_without_a_torch_function_stays() -> None:
    overload = ATEN._softmax_backward_data.default
    assert canonical_aten("_softmax_backward_data", overload, ("a",), {})[0] in (
        overload,
        torch._softmax_backward_data,
    )
    assert canonical_aten("to", ATEN.to.dtype, ("x", torch.int8), {})[0] is ATEN.to.dtype


# -- where the spellings of torch differ -----------------------------------------------------------


def test_polygamma() -> None:
    x = torch.rand(3) + 1
    target, args, kwargs = canonical_call(T.polygamma, (x, 1), {})
    assert torch.equal(target(*args, **kwargs), x.polygamma(1))


def test_split_by_keyword() -> None:
    x = torch.rand(6)
    target, args, kwargs = canonical_call(T.split, (x,), {"split_size": 2})
    assert_equal(target(*args, **kwargs), x.split(split_size=2))
