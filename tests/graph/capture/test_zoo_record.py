"""Recording, over the whole zoo: equal to eager bit for bit, in both modes, at other sizes, copied and saved."""

from __future__ import annotations

import copy
import functools
import io
import warnings

import pytest
import torch
from torch import nn

from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture import CapturedModule, capture
from tests.graph.capture.zoo_checks import Call, fresh, run, same, third_party_warnings_ignored, train_step
from tests.zoo import ZOO, ZooEntry

CAPTURED = sorted(name for name, entry in ZOO.items() if not entry.refuses)
REFUSED = sorted(name for name, entry in ZOO.items() if entry.refuses)

# What a recorded graph cannot follow, and says so: (at capture | at the call that differs) and at which sizes.
FIXED_AT_CAPTURE = {
    "hf_beit": "sizes in a cache of its own",
    "hf_mamba": "a Python loop over time",
    "lstm_cell_loop": "a Python loop over time",
    "nasty_loop_over_length": "a Python loop over time",
    "nasty_splits_and_stacks": "takes its features apart one by one",
    "nasty_tensor_from_size": "2.0 ** size: Python does not ask the size",
    "nasty_vmap_inside": "vmap works below the torch API",
}
SIZE_BRANCHES = {
    "hf_mobilenet_v2": "padding differs between even and odd sizes",
    "hf_mobilevit": "resizes only where patches do not fit",
    "hf_mobilevit_segmentation": "resizes only where patches do not fit",
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
# Gradients agree to rounding only: eager takes a kernel without the mask, or torch.jit fuses the backward.
ROUNDED = {"hf_llama_embeds", "hf_deberta", "nasty_scripted_function"}


@functools.lru_cache(maxsize=2)
def captured(name: str) -> CapturedModule:
    entry = ZOO[name]
    with third_party_warnings_ignored():
        return capture(fresh(entry), *entry.inputs(entry.batches[0]), frontend="record")


def calls(entry: ZooEntry) -> list[Call]:
    return [entry.inputs(batch) for batch in entry.batches] + entry.other_sizes()


@pytest.mark.parametrize("name", CAPTURED)
def test_outputs_are_equal_at_every_batch_and_size(name: str) -> None:
    entry = ZOO[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph, eager = capture(fresh(entry), *entry.inputs(entry.batches[0])), fresh(entry)
    fixed = [w for w in caught if issubclass(w.category, SpecializationWarning)]
    assert bool(fixed) == (name in FIXED_AT_CAPTURE), [str(w.message) for w in fixed]
    for index, call in enumerate(calls(entry)):
        expected = run(eager, call)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                difference = same(run(graph, call), expected)
            except (RuntimeError, CaptureError) as error:
                difference = str(error)
        said = name in FIXED_AT_CAPTURE or any(issubclass(w.category, SpecializationWarning) for w in caught)
        if name in FIXED_AT_CAPTURE or name in SIZE_BRANCHES:
            assert difference is None or (said and index > 0)
        else:
            assert difference is None, f"call {index}: {difference}"
            assert not said, [str(w.message) for w in caught]


@pytest.mark.parametrize("name", CAPTURED)
def test_the_model_is_left_as_it_was(name: str) -> None:
    entry = ZOO[name]
    model, untouched = fresh(entry), fresh(entry)
    torch.manual_seed(3)
    with third_party_warnings_ignored():
        capture(model, *entry.inputs(entry.batches[0]))
    assert torch.initial_seed() == 3 and torch.equal(torch.rand(2), _first_random(3))
    assert same(list(model.state_dict().values()), list(untouched.state_dict().values())) is None
    assert [m.training for m in model.modules()] == [m.training for m in untouched.modules()]
    assert [sorted(vars(m)) for m in model.modules()] == [sorted(vars(m)) for m in untouched.modules()]


def _first_random(seed: int) -> torch.Tensor:
    return torch.rand(2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CAPTURED)
def test_state_dict_keys_are_the_originals(name: str) -> None:
    graph, model = captured(name), fresh(ZOO[name])
    assert list(graph.state_dict()) == list(model.state_dict())
    assert [n for n, _ in graph.named_parameters()] == [n for n, _ in model.named_parameters()]
    graph.load_state_dict(model.state_dict(), strict=True)


@pytest.mark.parametrize("name", CAPTURED)
def test_the_graph_is_in_normal_form(name: str) -> None:
    graph = captured(name).graph
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
    for batch in entry.batches[: 1 if name in FIXED_AT_CAPTURE else None]:
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


@pytest.mark.parametrize("name", CAPTURED)
def test_copies_are_independent_and_equal(name: str) -> None:
    graph, entry = captured(name), ZOO[name]
    if any(
        p.grad_fn is not None
        for m in graph.modules()
        for p in vars(m).values()
        if isinstance(p, torch.Tensor)
    ):
        pytest.skip("torch itself cannot copy a tensor in the middle of an autograd graph")
    copied = copy.deepcopy(graph)
    call = entry.inputs(entry.batches[0])
    assert same(run(copied, call), run(fresh_graph(name), call)) is None
    shared = {id(p) for p in graph.parameters()} & {id(p) for p in copied.parameters()}
    assert not shared and list(copied.state_dict()) == list(graph.state_dict())


def fresh_graph(name: str) -> nn.Module:
    entry = ZOO[name]
    with third_party_warnings_ignored():
        return capture(fresh(entry), *entry.inputs(entry.batches[0]))


@pytest.mark.parametrize(
    "name", ["resnet18", "hf_bert", "hf_llama_cache", "lstm_classifier", "nasty_dict_input"]
)
def test_a_graph_survives_pickling(name: str) -> None:
    graph, entry = fresh_graph(name), ZOO[name]
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
    with pytest.warns(SpecializationWarning, match="fixed to what the example inputs gave"):
        graph = capture(fresh(entry), *call, on_data="specialise")
    assert same(run(graph, call), run(fresh(entry), call)) is None
