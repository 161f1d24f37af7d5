"""Where quantizers stand, operator by operator and target by target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.config import load_qconfig
from sparsebit.graph.capture import capture
from sparsebit.graph.passes import SIMPLIFY, run_passes
from sparsebit.quantization.plan import QuantPlan, make_plan
from sparsebit.targets import TARGETS
from tests.quantization.nets import config

X4, X3 = torch.randn(2, 8, 6, 6), torch.randn(2, 5, 8)


class Net(nn.Module):
    """A function of the input and of some layers to call by name."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        for index in (1, 2, 3):
            setattr(self, f"conv{index}", nn.Conv2d(8, 8, 3, padding=1))
            setattr(self, f"fc{index}", nn.Linear(8, 8))
        self.up, self.norm, self.words = nn.ConvTranspose2d(8, 8, 2), nn.LayerNorm(8), nn.Embedding(10, 8)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def plan(function: Callable[[Any, Tensor], Any], x: Tensor, target: str, **changes: Any) -> QuantPlan:
    gm = capture(Net(function).eval(), x)
    run_passes(gm, SIMPLIFY)
    made = make_plan(gm, load_qconfig(config(target, **changes)))
    assert str(made) and made == QuantPlan.from_dict(made.to_dict())
    assert all(edge.reason for edge in made.edges)
    return made


def activations(made: QuantPlan) -> set[str]:
    return {tensor.name for tensor in made.activations()}


def on_integers(made: QuantPlan, consumer: str) -> set[str]:
    """Names of the quantizers an operator reads."""
    return {edge.tensor for edge in made.edges if edge.consumer == consumer and edge.tensor is not None}


ALL = "virtual", "onnxruntime", "openvino", "tensorrt"

# model, input, and per target the tensors that get a quantizer
CASES: dict[str, tuple[Callable[[Any, Tensor], Any], Tensor, dict[str, set[str]]]] = {
    "a residual add between convolutions": (
        lambda m, x: m.conv3(F.relu(m.conv2(a := F.relu(m.conv1(x))) + a)),
        X4,
        {
            "virtual": {"x", "relu", "relu_1"},
            "onnxruntime": {"x", "relu", "conv2", "relu_1", "conv3"},
            "openvino": {"x", "relu", "conv2", "relu_1", "conv3"},
            "tensorrt": {"x", "relu", "relu_1"},  # one operand of the add stays inside the convolution
        },
    ),
    "concat": (
        lambda m, x: m.fc1(torch.cat([m.conv1(x), m.conv2(x)], 3).mean((2, 3))),
        X4,
        {
            "virtual": {"x", "cat", "mean"},
            "onnxruntime": {"x", "conv1", "conv2", "mean"},
            "openvino": {"x", "conv1", "conv2", "mean"},
            "tensorrt": {"x", "mean"},
        },
    ),
    "concat between convolutions": (
        lambda m, x: m.conv3(torch.cat([m.conv1(x), m.conv2(x)], 3)),
        X4,
        {
            "virtual": {"x", "cat"},
            "onnxruntime": {"x", "conv1", "conv2", "cat", "conv3"},
            "openvino": {"x", "conv1", "conv2", "cat", "conv3"},
            "tensorrt": {"x", "cat"},
        },
    ),
    "max pooling hands integers on": (
        lambda m, x: m.conv2(F.max_pool2d(F.relu(m.conv1(x)), 2)),
        X4,
        {
            "virtual": {"x", "relu"},
            "onnxruntime": {"x", "relu", "conv2"},
            "openvino": {"x", "relu", "conv2"},
            "tensorrt": {"x", "relu"},
        },
    ),
    "average pooling computes": (
        lambda m, x: m.conv2(F.avg_pool2d(m.conv1(x), 2)),
        X4,
        {
            "virtual": {"x", "conv1", "avg_pool2d"},
            "onnxruntime": {"x", "conv1", "avg_pool2d", "conv2"},
            "openvino": {"x", "conv1", "avg_pool2d", "conv2"},
            "tensorrt": {"x", "avg_pool2d"},
        },
    ),
    "an activation inside its convolution": (
        lambda m, x: m.conv2(F.relu(m.conv1(x))),
        X4,
        {"virtual": {"x", "relu"}, "onnxruntime": {"x", "relu", "conv2"}, "tensorrt": {"x", "relu"}},
    ),
    "gelu behind a linear": (
        lambda m, x: m.fc2(F.gelu(m.fc1(x))),
        X3,
        {target: {"x", "gelu"} for target in ALL},
    ),
    "attention by matmul": (
        lambda m, x: m.fc3((m.fc1(x) @ m.fc2(x).transpose(1, 2)).softmax(-1) @ x),
        X3,
        {
            "virtual": {"x", "fc1", "fc2", "matmul", "softmax", "matmul_1"},
            "onnxruntime": {"x", "matmul_1"},
            "openvino": {"x", "fc1", "fc2", "softmax", "matmul_1"},
            "tensorrt": {"x", "fc1", "fc2", "softmax", "matmul_1"},
        },
    ),
    "masked attention keeps its softmax in float": (
        lambda m, x: torch.masked_fill(m.fc1(x) @ x.transpose(1, 2), x[..., :5] > 0, -torch.inf).softmax(-1),
        X3,
        {"virtual": {"x", "fc1"}, "openvino": {"x", "fc1"}, "tensorrt": {"x", "fc1"}, "onnxruntime": {"x"}},
    ),
    "fused attention": (
        lambda m, x: m.fc3(F.scaled_dot_product_attention(m.fc1(x), m.fc2(x), x)),
        X3,
        {
            "virtual": {"x", "fc1", "fc2", "scaled_dot_product_attention"},
            "onnxruntime": {"x", "scaled_dot_product_attention"},
            "openvino": {"x", "scaled_dot_product_attention"},
            "tensorrt": {"x", "scaled_dot_product_attention"},
        },
    ),
    "layer norm": (
        lambda m, x: m.fc2(m.norm(m.fc1(x))),
        X3,
        {
            "virtual": {"x", "fc1", "norm"},
            **{target: {"x", "norm"} for target in ("onnxruntime", "openvino", "tensorrt")},
        },
    ),
    "squeeze and excite": (
        lambda m, x: m.conv3((y := m.conv1(x)) * torch.sigmoid(m.conv2(F.adaptive_avg_pool2d(y, 1)))),
        X4,
        {
            "virtual": {"x", "conv1", "adaptive_avg_pool2d", "mul"},
            "onnxruntime": {"x", "conv1", "adaptive_avg_pool2d", "conv2", "sigmoid", "mul", "conv3"},
            "openvino": {"x", "conv1", "adaptive_avg_pool2d", "sigmoid", "mul", "conv3"},
            "tensorrt": {"x", "adaptive_avg_pool2d", "mul"},
        },
    ),
    "an embedding": (
        lambda m, x: m.fc1(m.words(x)),
        torch.randint(10, (2, 5)),
        {target: {"words"} for target in ALL},
    ),
    "a transposed convolution": (
        lambda m, x: m.conv2(m.up(m.conv1(x))),
        X4,
        {
            "virtual": {"x", "conv1", "up"},
            "onnxruntime": {"x", "conv1", "up", "conv2"},
            "openvino": {"x", "conv1", "up", "conv2"},
            "tensorrt": {"x", "conv1", "up"},
        },
    ),
    "resizing": (
        lambda m, x: m.conv2(F.interpolate(m.conv1(x), scale_factor=2, mode="bilinear")),
        X4,
        {
            "virtual": {"x", "conv1", "interpolate"},
            "onnxruntime": {"x", "conv1", "interpolate", "conv2"},
            "tensorrt": {"x", "interpolate"},
        },
    ),
    "resizing to the nearest only moves": (
        lambda m, x: m.conv2(F.interpolate(m.conv1(x), scale_factor=2)),
        X4,
        {"virtual": {"x", "conv1"}, "onnxruntime": {"x", "conv1", "conv2"}, "tensorrt": {"x", "conv1"}},
    ),
}


@pytest.mark.parametrize(
    ("case", "target"), [(case, target) for case, (_, _, per) in CASES.items() for target in per]
)
def test_rules(case: str, target: str) -> None:
    function, x, expected = CASES[case]
    made = plan(function, x, target)
    assert activations(made) == expected[target], f"\n{made}"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_weights_follow_the_target(target: str) -> None:
    made = plan(lambda m, x: m.up(m.conv1(x)) + m.fc1(m.words(x.argmax(1))).mean(), X4, target)
    expected = {"conv1.weight", "fc1.weight"}
    expected |= {"up.weight"} if target != "onnxruntime" else set()
    expected |= {"words.weight"} if target != "tensorrt" else set()
    assert {weight.name for weight in made.weights()} == expected
    axes = {weight.name: weight.layout.axes[0] for weight in made.weights()}
    assert axes["conv1.weight"] == 0 and axes.get("up.weight", 1) == 1 and axes.get("words.weight", 0) == 0


def test_qadd_true_false_and_unset() -> None:
    def net(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.conv3(m.conv1(x) + m.conv2(x))
        return y

    for target in sorted(TARGETS):
        always = plan(net, X4, target, A__QADD__ENABLE_QUANT=True)
        assert on_integers(always, "add") == {"conv1", "conv2"}
        never = plan(net, X4, target, A__QADD__ENABLE_QUANT=False)
        reads = [edge for edge in never.edges if edge.consumer == "add"]
        assert all("QADD" in edge.reason for edge in reads), reads
        if target in ("virtual", "tensorrt"):
            assert not on_integers(never, "add")
        both = {"conv1", "conv2"}
        wanted = {"virtual": set(), "onnxruntime": both, "openvino": both, "tensorrt": {"conv2"}}
        assert on_integers(plan(net, X4, target), "add") == wanted[target]


def test_qadd_needs_two_tensors() -> None:
    for function in (lambda m, x: m.fc1(x + 1), lambda m, x: m.fc1(x + x)):
        made = plan(function, X3, "virtual", A__QADD__ENABLE_QUANT=True)
        assert not on_integers(made, "add")
        assert any("no second tensor" in edge.reason for edge in made.edges)


def test_unnecessary_quantizers_can_be_asked_for() -> None:
    def net(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.conv2(F.relu(m.bn(m.conv1(x))))
        return y

    assert activations(plan(net, X4, "virtual")) == {"x", "relu"}
    everything = plan(net, X4, "virtual", SCHEDULE={"DISABLE_UNNECESSARY_QUANT": False})
    assert activations(everything) == {"x", "bn", "relu"}, "a batch norm never reads integers"
    kept = plan(net, X4, "virtual", SCHEDULE={"DISABLE_UNNECESSARY_QUANT": False, "BN_TUNING": True})
    assert activations(kept) == {"x", "bn", "relu"}


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_batch_norm_kept_for_tuning_is_inside_its_convolution(target: str) -> None:
    def net(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.conv2(F.relu(m.bn(m.conv1(x))))
        return y

    made = plan(net, X4, target, SCHEDULE={"BN_TUNING": True})
    assert {"x", "relu"} <= activations(made) and not {"conv1", "bn"} & activations(made)


def test_one_quantizer_serves_all_readers_with_the_widest_spec_and_a_note() -> None:
    def net(m: Any, x: Tensor) -> Any:
        return m.fc1(x), m.fc2(x), m.fc3(x)

    rules = [{"fc1": ["QUANTIZER.BIT", 4]}, {"fc2": ["QUANTIZER.DISABLE", True]}]
    made = plan(net, X3, "virtual", A__SPECIFIC=rules)
    (tensor,) = made.activations()
    assert tensor.spec.bits == 8 and tensor.consumers == ("fc1", "fc3") and tensor.readers == ("fc1", "fc3")
    assert len(made.notes) == 1 and "fc1 uint4" in made.notes[0]
    left = {edge.consumer: edge.reason for edge in made.edges if edge.tensor is None}
    assert left == {"fc2": "the config leaves its input in float"}


def test_specific_by_dotted_flat_and_operator_names() -> None:
    inner = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 8)).eval()
    gm = capture(inner, X3)
    for pattern, layers in {
        "0.0": {"0.0.weight"},
        "_0_0": {"0.0.weight"},
        "0.*": {"0.0.weight"},
        "op:linear": {"0.0.weight", "1.weight"},
        "op:lin*": {"0.0.weight", "1.weight"},
    }.items():
        settings = load_qconfig(config(W__SPECIFIC={pattern: ["QUANTIZER.BIT", 4]}))
        made = make_plan(gm, settings)
        assert {weight.name for weight in made.weights() if weight.spec.bits == 4} == layers, pattern
    rules = [{"op:linear": ["QUANTIZER.BIT", 4]}, {"1": ["OBSERVER.TYPE", "mse"]}]
    first, second = make_plan(gm, load_qconfig(config(W__SPECIFIC=rules))).weights()
    assert (first.spec.bits, first.spec.observer) == (4, "minmax")
    assert (second.spec.bits, second.spec.observer) == (4, "mse"), "rules accumulate"


def test_a_function_is_named_by_the_module_it_is_called_in() -> None:
    from tests.zoo.nets.vit import Attention

    gm = capture(Attention(8, 2, fused=False).eval(), X3)
    rule = {"matmul*": ["QUANTIZER.DISABLE", True]}
    off = make_plan(gm, load_qconfig(config(A__SPECIFIC=rule)))
    assert not on_integers(off, "matmul") and not on_integers(off, "matmul_1")
    asked = {"op:matmul": ["QUANTIZER.BIT", 8]}
    settings = load_qconfig(config("onnxruntime", A__SPECIFIC=asked))
    assert on_integers(make_plan(gm, settings), "matmul"), "a rule asks for what is not worth it by itself"


def test_first_and_last_layer() -> None:
    def net(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.fc3(m.fc2(m.fc1(x)))
        return y

    made = plan(net, X3, "virtual", W__QUANTIZER__BIT=4, A__QUANTIZER__BIT=4, FIRST_LAST=8)
    assert [weight.spec.bits for weight in made.weights()] == [8, 4, 8]
    assert {t.name: t.spec.bits for t in made.activations()} == {"x": 8, "fc1": 4, "fc2": 8}
    made = plan(net, X3, "virtual", FIRST_LAST="float")
    assert [weight.name for weight in made.weights()] == ["fc2.weight"] and activations(made) == {"fc1"}


def test_bit_0_and_disable_leave_a_side_in_float() -> None:
    def net(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.fc2(m.fc1(x))
        return y

    for changes in ({"A__QUANTIZER__BIT": 0}, {"A__QUANTIZER__DISABLE": True}):
        made = plan(net, X3, "virtual", **changes)
        assert not made.activations() and len(made.weights()) == 2
        assert all(edge.reason == "the config leaves its input in float" for edge in made.edges)
    made = plan(net, X3, "virtual", W__QUANTIZER__BIT=0)
    assert not made.weights() and activations(made) == {"x", "fc1"}


@pytest.mark.parametrize("scheme", ["per-token-symmetric", "per-channel-affine"])
def test_channels_and_tokens_are_those_of_the_operator_that_reads_them(scheme: str) -> None:
    def net(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.fc1(torch.exp(x).transpose(1, 2))
        return y

    x = X3.transpose(1, 2)
    assert activations(plan(net, x, "virtual")) == {"exp"}, "one scale: as early as the numbers exist"
    assert activations(plan(net, x, "virtual", A__QSCHEME=scheme)) == {"transpose"}


def test_pieces_of_a_split_share_the_quantizer_of_the_whole_if_all_want_it() -> None:
    def all_read(m: Any, x: Tensor) -> Any:
        a, b = torch.exp(x).chunk(2, 0)
        return m.fc1(a), m.fc2(b)

    def one_reads(m: Any, x: Tensor) -> Any:
        a, b = torch.exp(x).chunk(2, 0)
        return m.fc1(a), b

    assert activations(plan(all_read, X3, "virtual")) == {"exp"}
    made = plan(one_reads, X3, "virtual")
    assert activations(made) == {"getitem"}, made


def test_nothing_stands_on_integers_and_unknown_operators_are_told() -> None:
    class Strange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0] * 2

    made = plan(lambda m, x: m.fc1(Strange.apply(x)) + m.words(x.argmax(-1)), X3, "virtual")
    assert not any("argmax" in tensor.name for tensor in made.tensors)
    (unknown,) = [edge for edge in made.edges if edge.op is None]
    assert unknown.tensor is None and "register_op" in unknown.reason


def test_without_a_run_integers_are_known_by_their_operators() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            order = (self.fc(x).argsort(-1) + x.argmax(-1, keepdim=True)) % 8
            y: Tensor = self.fc(x.gather(-1, order)) + (x > 0).long()
            return y

    gm = capture(Picks().eval())
    made = make_plan(gm, load_qconfig(config(A__QADD__ENABLE_QUANT=True)))
    assert not any(
        word in name for name in activations(made) for word in ("arg", "long", "to", "mod", "gt")
    ), made


def test_an_integer_parameter_or_buffer_gets_no_quantizer() -> None:
    class Counts(nn.Module):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(8))
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(x + self.table)
            return y

    for example in ((X3,), ()):
        gm = capture(Counts().eval(), *example)
        made = make_plan(gm, load_qconfig(config(A__QADD__ENABLE_QUANT=True)))
        assert "table" not in activations(made)


@pytest.mark.parametrize("target", ALL)
def test_a_tensor_padded_with_infinity_gets_no_quantizer(target: str) -> None:
    def pooled(net: Any, x: Tensor) -> Tensor:
        padded = F.pad(net.conv1(x), (1, 1, 1, 1), value=-torch.inf)
        return net.conv2(F.max_pool2d(padded, 3, 2))  # type: ignore[no-any-return]

    made = plan(pooled, X4, target)
    assert "max_pool2d" in activations(made) and "pad" not in activations(made)
    assert on_integers(made, "conv2") == {"max_pool2d"}

    def averaged(net: Any, x: Tensor) -> Tensor:
        padded = F.pad(net.conv1(x), (1, 1, 1, 1), value=-torch.inf)
        return net.conv2(padded.reshape(padded.shape))  # type: ignore[no-any-return]

    made = plan(averaged, X4, target)
    assert on_integers(made, "conv2") == set()
    (edge,) = [edge for edge in made.edges if edge.consumer == "conv2"]
    assert edge.reason == "its input is padded or filled with infinity, which no grid can represent"
