"""Recording, over the whole zoo: equal to eager bit for bit, in both modes, at other sizes, copied and saved."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.graph.ops import coverage
from tests.graph.capture.zoo_checks import Call, fresh, run, same, third_party_warnings_ignored, train_step
from tests.zoo import ZOO, ZooEntry

CAPTURED = sorted(name for name, entry in ZOO.items() if not entry.refuses)
REFUSED = sorted(name for name, entry in ZOO.items() if entry.refuses)

# Sizes that a recorded graph cannot follow: calls at another one are refused, with the line that fixed it.
FIXED = {
    "hf_mobilenet_v2": "int() of an image size",
    "hf_mobilevit": "int() of an image size",
    "hf_mobilevit_segmentation": "int() of an image size",
    "nasty_tensor_from_size": "2.0 ** size: Python does not ask the size",
    "nasty_vmap_inside": "vmap works below the torch API",
    "nasty_window_partition": "int() of a number computed from sizes",
}
# The model does something else in training: capture it in the mode it will run in.
ONE_MODE = {
    "hf_xlnet": "returns its memory in evaluation only",
    "nasty_auxiliary_head": "a second head in training only",
    "nasty_old_spectral_norm": "a power iteration in training only",
    "nasty_running_stat_when_training": "writes its buffer in training only",
    "yolo": "decodes boxes in evaluation only",
}
# Draw a random number per layer in training only, to drop the layer: captured in training mode they draw it too.
LAYER_DROP = {
    *(
        "hf_bart",
        "hf_bart_eager",
        "hf_data2vec",
        "hf_hubert",
        "hf_marian",
        "hf_opt",
        "hf_wav2vec2",
        "hf_wav2vec2_ctc",
    ),
    *("hf_wavlm", "hf_whisper", "hf_whisper_encoder"),
}
# Operators that the table does not know, and should not: those of the model's own making, and spectral norm.
UNKNOWN = {"nasty_autograd_function", "nasty_parametrized_norms", "hf_bloom"}
# Gradients agree to rounding only: eager takes a kernel without the mask, or torch.jit fuses the backward.
ROUNDED = {"hf_llama_embeds", "hf_deberta", "nasty_scripted_function"}


def calls(entry: ZooEntry) -> list[Call]:
    return [entry.inputs(batch) for batch in entry.batches] + entry.other_sizes()


def captured(name: str) -> CapturedModule:
    entry = ZOO[name]
    with third_party_warnings_ignored():
        return capture(fresh(entry), *entry.inputs(entry.batches[0]))


@pytest.mark.parametrize("name", CAPTURED)
def test_a_recording_equals_eager(name: str) -> None:
    """One capture a model: it leaves the model as it was, and the graph is in normal form, copied and equal."""
    entry, model, untouched = ZOO[name], fresh(ZOO[name]), fresh(ZOO[name])
    torch.manual_seed(3)
    with third_party_warnings_ignored():
        graph = capture(model, *entry.inputs(entry.batches[0]))
    _require_untouched(model, untouched)
    _require_normal_form(graph)
    assert bool((found := coverage(graph)).unknown) == (name in UNKNOWN), found
    assert list(graph.state_dict()) == list(model.state_dict())
    assert [n for n, _ in graph.named_parameters()] == [n for n, _ in model.named_parameters()]
    graph.load_state_dict(model.state_dict(), strict=True)
    copied = _independent_copy(graph)
    refused = _require_equal(graph, entry)
    assert bool(refused) == (name in FIXED), refused
    if copied is not None:
        call = entry.inputs(entry.batches[0])
        assert same(run(copied, call), run(fresh(entry), call)) is None


def _require_untouched(model: nn.Module, untouched: nn.Module) -> None:
    assert torch.initial_seed() == 3 and torch.equal(torch.rand(2), _first_random(3))
    assert same(list(model.state_dict().values()), list(untouched.state_dict().values())) is None
    assert [m.training for m in model.modules()] == [m.training for m in untouched.modules()]
    assert [sorted(vars(m)) for m in model.modules()] == [sorted(vars(m)) for m in untouched.modules()]


def _first_random(seed: int) -> torch.Tensor:
    return torch.rand(2, generator=torch.Generator().manual_seed(seed))


def _require_normal_form(captured: CapturedModule) -> None:
    graph = captured.graph
    graph.lint()
    ops = [node.op for node in graph.nodes]
    heads = [op for op in ops if op in ("placeholder", "get_attr")]
    assert "call_method" not in ops
    assert heads == sorted(heads, reverse=True), "placeholders come first, then attributes"
    assert len({n.target for n in graph.nodes if n.op == "get_attr"}) == ops.count("get_attr")
    assert ops[-1] == "output" and isinstance(next(iter(reversed(graph.nodes))).args[0], tuple)
    assert all(
        "value" in node.meta and "module_path" in node.meta for node in graph.nodes if node.op != "output"
    )


def _require_equal(graph: CapturedModule, entry: ZooEntry) -> list[CaptureError]:
    """Hold every call against eager; returns the refusals, which are no difference."""
    eager, refused = fresh(entry), []
    for index, call in enumerate(calls(entry)):
        expected = run(eager, call)
        try:
            difference = same(run(graph, call), expected)
        except CaptureError as error:
            assert index > 0 and "which this graph was not captured for" in str(error)
            refused.append(error)
        else:
            assert difference is None, f"call {index}: {difference}"
    return refused


def _independent_copy(graph: CapturedModule) -> CapturedModule | None:
    held = (value for module in graph.modules() for value in vars(module).values())
    if any(isinstance(value, torch.Tensor) and value.grad_fn is not None for value in held):
        return None  # torch itself cannot copy a tensor in the middle of an autograd graph
    copied = copy.deepcopy(graph)
    shared = {id(p) for p in graph.parameters()} & {id(p) for p in copied.parameters()}
    assert not shared and list(copied.state_dict()) == list(graph.state_dict())
    return copied


@pytest.mark.parametrize("name", sorted(set(CAPTURED) - set(ONE_MODE)))
def test_training_is_equal(name: str) -> None:
    entry = ZOO[name]
    if not entry.trains:
        pytest.skip("no output of this model has a gradient")
    model, eager = fresh(entry), fresh(entry)
    with third_party_warnings_ignored():
        if name in LAYER_DROP:
            model.train()
        graph = capture(model, *entry.inputs(entry.batches[0]))
        graph.train()
    eager.train()
    for batch in entry.batches[: 1 if name in FIXED else None]:
        with third_party_warnings_ignored():
            expected = train_step(eager, entry.inputs(batch))
            got = train_step(graph, entry.inputs(batch))
        for mine, theirs in zip(got, expected, strict=True):
            assert list(mine) == list(theirs)
            if name in ROUNDED:
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
            else:
                assert same(list(mine.values()), list(theirs.values())) is None


@pytest.mark.parametrize("name", sorted(ONE_MODE))
def test_a_mode_that_changes_the_structure_is_refused(name: str) -> None:
    with pytest.raises(CaptureError, match="cannot switch to training mode"):
        captured(name).train()
    entry, model = ZOO[name], fresh(ZOO[name]).train()
    with third_party_warnings_ignored():
        graph = capture(model, *entry.inputs(entry.batches[0]))
    assert graph.training
    with pytest.raises(CaptureError, match="cannot switch to evaluation mode"):
        graph.eval()


@pytest.mark.parametrize(
    "name", ["resnet18", "hf_bert", "hf_llama_cache", "lstm_classifier", "nasty_dict_input"]
)
def test_a_graph_survives_pickling(name: str) -> None:
    graph, entry = captured(name), ZOO[name]
    file = io.BytesIO()
    torch.save(graph, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    call = entry.inputs(entry.batches[0])
    assert same(run(loaded, call), run(graph, call)) is None
    assert list(loaded.state_dict()) == list(graph.state_dict())


@pytest.mark.parametrize("name", REFUSED)
def test_data_dependent_control_flow_is_refused_with_its_line(name: str) -> None:
    entry = ZOO[name]
    with pytest.raises(CaptureError, match="depends on its input data") as error:
        capture(fresh(entry), *entry.inputs(entry.batches[0]))
    assert entry.refuses is not None and entry.refuses in str(error.value)
    assert "tests/zoo/nasty/refused.py:" in str(error.value.where)


@pytest.mark.parametrize("name", REFUSED)
def test_data_dependent_control_flow_is_specialised_with_a_warning(name: str) -> None:
    entry = ZOO[name]
    call = entry.inputs(entry.batches[0])
    with pytest.warns(SpecializationWarning, match="fixed to its value for the example inputs"):
        graph = capture(fresh(entry), *call, on_data="specialise")
    assert same(run(graph, call), run(fresh(entry), call)) is None
