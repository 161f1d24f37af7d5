"""Recording a run: equal numbers, honest errors, no traces left behind."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import capture
from tests.graph.capture.recording.applies import Applies, Result, calls_of, net

X = torch.randn(3, 4)


# -- errors of the model ---------------------------------------------------------------------------


class Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


def test_an_error_of_the_model_names_its_line() -> None:
    with pytest.raises(
        CaptureError, match="Raises raised ValueError on the example inputs: no such shape"
    ) as error:
        capture(Raises(ValueError("no such shape")), X)
    assert "test_record.py" in str(error.value.where) and "in Raises.forward: raise self.error" in str(
        error.value.where
    )
    assert "check that model(*args, **kwargs) runs" in str(error.value.hint)
    assert isinstance(error.value.__cause__, ValueError)


def test_an_error_inside_torch_names_the_line_that_called_it() -> None:
    with pytest.raises(CaptureError, match="mat1 and mat2 shapes cannot be multiplied") as error:
        capture(Applies(lambda y: y), torch.ones(3, 5))
    assert "in Applies.forward: return self.function(self.linear(x))" in str(error.value.where)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(error: type[BaseException]) -> None:
    with pytest.raises(error):
        capture(Raises(error()), X)


def test_a_refusal_cannot_be_swallowed_by_the_model() -> None:
    def guarded(y: Tensor) -> Tensor:
        try:
            return y * int(y.sum() * 0 + 2)
        except Exception:
            return y * 100

    with pytest.raises(CaptureError, match="depends on its input data"):
        capture(Applies(guarded), X)


def test_what_a_graph_cannot_hold_is_refused_with_its_line() -> None:
    @dataclasses.dataclass
    class Options:
        scale: float = 2.0

    class Inner(nn.Module):
        def forward(self, x: Tensor, options: Options) -> Tensor:
            return x * options.scale

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, Options())

    with pytest.raises(
        CaptureError, match="an operator was given an Options, which a graph cannot hold"
    ) as error:
        capture(Outer(), X, skip=["inner"])
    assert "return self.inner(x, Options())" in str(error.value.where)


# -- modules ---------------------------------------------------------------------------------------


def test_a_module_called_twice_is_two_nodes_of_one_target() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.block(x))

    model = Twice().eval()
    graph = capture(model, X)
    assert calls_of(graph) == ["block.0", "block.1", "block.0", "block.1"]
    assert len({node.name for node in graph.graph.nodes}) == len(graph.graph.nodes)
    assert torch.equal(graph(X), model(X))


def test_a_module_of_two_names_is_called_by_its_first() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    model = Shared()
    graph = capture(model, X)
    assert calls_of(graph) == ["first", "first"] and graph.first is graph.second
    assert torch.equal(graph(X), model(X)) and list(graph.state_dict()) == list(model.state_dict())


class Hooked(nn.Module):
    """Hooks that change inputs and outputs, on a leaf, on a container and on the model."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.seen: list[str] = []
        self.leaf.register_forward_hook(lambda module, args, output: output * 2)
        self.leaf.register_forward_pre_hook(
            lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True
        )
        self.block.register_forward_pre_hook(lambda module, args: (args[0] - 1,))
        self.block[1].register_forward_hook(lambda module, args, output: self.seen.append("relu"))
        self.register_forward_hook(lambda module, args, output: output / 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.leaf(self.leaf(x)))


def test_what_hooks_do_to_tensors_is_in_the_graph() -> None:
    model = Hooked().eval()
    graph = capture(model, X)
    assert calls_of(graph) == ["leaf", "leaf", "block.0", "block.1"]
    x = torch.randn(5, 4)
    assert torch.equal(graph(x), model(x))
    assert not graph.leaf._forward_hooks and model.leaf._forward_hooks, (
        "in the graph once, on the model still"
    )
    assert "forward" not in vars(model.leaf)
    noted = [note.text.split(":")[0] for note in graph.capture_report.of_kind("hooks")]
    assert noted == ["hooks on the model", "hooks on leaf", "hooks on block", "hooks on block.1"]
    assert model.seen == ["relu"], "of the model's own call; those of the recording are undone"


def test_backward_hooks_do_not_get_in_the_way() -> None:
    model = net()
    model[0].register_full_backward_hook(lambda *_: None)
    graph = capture(model, X)
    assert calls_of(graph) == ["0", "1", "2"] and torch.equal(graph(X), model(X))


def test_weights_swapped_in_for_one_call_are_used() -> None:
    class Swaps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.delta = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            swapped = {"weight": self.linear.weight + self.delta}
            return torch.func.functional_call(self.linear, swapped, (x,)) - self.linear(x)

    model = Swaps()
    graph = capture(model, X)
    assert torch.equal(graph(X), model(X)) and calls_of(graph) == ["linear"]
    graph(X).sum().backward()
    assert model.delta.grad is not None


def test_a_compiled_part_is_looked_through() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x) * 2

    model = Partly().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = capture(model, X)
    x = torch.randn(7, 4)
    assert torch.equal(graph(x), model(x)) and calls_of(graph) == ["part._orig_mod.0", "part._orig_mod.1"]
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(4, 4), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.linear(x))


class AroundBlock(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.block, self.unwrap = Block(wrap), unwrap

    def forward(self, x: Tensor) -> Tensor:
        return self.unwrap(self.block(x)) * 2


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda y: y, lambda r: r),
        (lambda y: (y, [y + 1]), lambda r: r[1][0]),
        (lambda y: {"a": {"b": y}}, lambda r: r["a"]["b"]),
        (Result, lambda r: r.value),
        (lambda y: 2.0, lambda r: torch.ones(1) * r),
        (lambda y: None, lambda r: torch.ones(1)),
    ],
    ids=["tensor", "tuple", "dict", "dataclass", "number", "none"],
)
def test_a_skipped_module_may_return_anything(wrap: Any, unwrap: Any) -> None:
    model = AroundBlock(wrap, unwrap).eval()
    graph = capture(model, X, skip=["block"])
    x = torch.randn(3, 4)
    assert torch.equal(graph(x), model(x))


# -- structured inputs and outputs -----------------------------------------------------------------


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@pytest.mark.parametrize(
    ("wrap", "get"),
    [
        (lambda y: Result(y, "a", [y + 1]), lambda r: (r.value, *r.parts)),
        (lambda y: Point(y, y * 2), lambda r: tuple(r)),
        (lambda y: {"a": [Result(y)]}, lambda r: (r["a"][0].value,)),
        (lambda y: torch.topk(y, 2), lambda r: (r.values, r.indices)),
    ],
)
def test_outputs_keep_their_type(
    wrap: Callable[[Tensor], Any], get: Callable[[Any], tuple[Tensor, ...]]
) -> None:
    model = Applies(wrap).eval()
    graph = capture(model, X)
    x = torch.randn(5, 4)
    got, expected = graph(x), model(x)
    assert type(got) is type(expected)
    assert all(torch.equal(one, two) for one, two in zip(get(got), get(expected), strict=True))
    assert graph(x) is not got, "a new object every time"


def test_a_distribution_as_output_is_rebuilt() -> None:
    graph = capture(Applies(lambda y: torch.distributions.Normal(y, 1.0, validate_args=False)), X)
    got = graph(torch.randn(5, 4))
    assert (
        isinstance(got, torch.distributions.Normal)
        and got.mean.shape == (5, 4)
        and got.sample().shape == (5, 4)
    )


def test_packed_sequences_go_in_and_out() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 4, batch_first=True, bidirectional=True)

        def forward(self, batch: PackedSequence) -> tuple[PackedSequence, Tensor]:
            output, _ = self.rnn(batch)
            return output, pad_packed_sequence(output, batch_first=True)[0]

    def words(*lengths: int) -> PackedSequence:
        return pack_sequence([torch.randn(length, 3) for length in lengths], enforce_sorted=False)

    model = Tagger().eval()
    try:
        graph = capture(model, (words(2, 4),))
    except CaptureError as error:
        pytest.xfail(f"pad_packed_sequence reads the lengths: {error.message}")
    batch = words(3, 5)
    got, expected = graph(batch), model(batch)
    assert isinstance(got[0], PackedSequence) and torch.equal(got[0].data, expected[0].data)
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("cached", [True, False])
def test_a_cache_goes_in_and_comes_out(cached: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        prefix = model(torch.arange(5)[None], use_cache=True).past_key_values
    token = torch.tensor([[3]])
    example = copy.deepcopy(prefix)
    graph = capture(model, kwargs={"input_ids": token, "past_key_values": example, "use_cache": True})
    assert example.get_seq_length() == 5, "the example's cache is left alone"
    with torch.no_grad():
        ours, theirs = copy.deepcopy(prefix), copy.deepcopy(prefix)
        for step in range(3 if cached else 1):  # the cache grows: every step is another size
            token = torch.tensor([[step]])
            got = graph(input_ids=token, past_key_values=ours, use_cache=True)
            expected = model(input_ids=token, past_key_values=theirs, use_cache=True)
            assert type(got) is type(expected) and type(got.past_key_values) is transformers.DynamicCache
            assert torch.equal(got.logits, expected.logits)
            assert got.past_key_values.get_seq_length() == 6 + step
            ours, theirs = got.past_key_values, expected.past_key_values


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_sparse_inputs(layout: str) -> None:
    class Adjacency(nn.Module):
        def forward(self, edges: Tensor, x: Tensor) -> Tensor:
            return torch.sparse.mm(edges, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: the layout is in beta state
        edges = getattr(torch.eye(3), layout)()
        graph = capture(Adjacency(), (edges, X))
        assert torch.equal(graph(edges, X), X)


def test_a_model_on_the_meta_device_is_captured() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to("meta")
    graph = capture(model, X.to("meta"))
    assert graph(torch.ones(5, 4, device="meta")).shape == (5, 4)
    copied = copy.deepcopy(graph)
    assert calls_of(copied) == ["0", "1"] and F.relu(X).shape == X.shape


def test_an_error_of_the_model_shows_what_it_was_given() -> None:
    with pytest.raises(CaptureError, match="on the example inputs: ") as error:
        capture(nn.Linear(2, 2), torch.zeros(3, 2, dtype=torch.float64))
    assert error.value.got == "float64[3, 2]"
    with pytest.raises(CaptureError) as error:
        capture(Raises(ValueError("first line\nmany more lines")), X)
    assert error.value.message.endswith("on the example inputs: first line")
