"""The other two front-ends, over the parts of the zoo they can take."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch.fx import GraphModule

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import capture
from tests.graph.capture.zoo_checks import fresh, run, same, third_party_warnings_ignored, train_step
from tests.zoo import ZOO

SYMBOLIC = sorted(name for name, entry in ZOO.items() if entry.symbolic)
# Called with optional arguments, which tracing without inputs fixes to their defaults: the call is refused.
OPTIONAL_GIVEN = {"bilstm_states_given", "nasty_keyword_only", "nasty_mixed_dtypes"}
# Switch gradients off in a block, which a symbolic trace does not see: refused.
UNSEEN = {"nasty_clamped_weight", "nasty_no_grad_block"}
# One of each kind; torch.export takes seconds a model.
EXPORTED = [
    "cifar_resnet20",
    "mobilenet_v3",
    "unet",
    "lstm_classifier",
    "hf_vit",
    "hf_bert",
    "nasty_tied_embedding",
]


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_equals_eager(name: str) -> None:
    entry = ZOO[name]
    if name in UNSEEN:
        with pytest.raises(CaptureError, match="switches gradients on or off"):
            capture(fresh(entry))
        return
    with third_party_warnings_ignored():
        graph = capture(fresh(entry))
    if name in OPTIONAL_GIVEN:
        args, kwargs = entry.inputs(entry.batches[0])
        with pytest.raises(CaptureError, match="fixed in the captured graph"):
            graph(*args, **kwargs)
        return
    eager = fresh(entry)
    assert list(graph.state_dict()) == list(eager.state_dict())
    assert not any(node.op == "call_method" for node in graph.graph.nodes)
    for call in [entry.inputs(batch) for batch in entry.batches] + entry.other_sizes():
        assert same(run(graph, call), run(eager, call)) is None


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v3", "lstm_classifier", "vit_matmul", "nasty_functional_dropout"]
)
def test_symbolic_trains_as_eager(name: str) -> None:
    entry = ZOO[name]
    with third_party_warnings_ignored():
        graph = capture(fresh(entry)).train()
    got = train_step(graph, entry.inputs(2))
    expected = train_step(fresh(entry).train(), entry.inputs(2))
    for mine, theirs in zip(got, expected, strict=True):
        assert list(mine) == list(theirs) and same(list(mine.values()), list(theirs.values())) is None


def test_symbolic_refusal_names_the_line_and_the_way_out() -> None:
    with pytest.raises(CaptureError) as error:
        capture(fresh(ZOO["nasty_refused_branch"]))
    assert "refused.py:" in str(error.value.where)
    assert "sparsebit.capture(model, (x,))" in str(error.value.hint)


@functools.cache
def exported(name: str) -> GraphModule:
    """Several tests read it; one that changes it takes a copy."""
    entry = ZOO[name]
    with third_party_warnings_ignored():
        return capture(fresh(entry), *entry.inputs(entry.batches[0]), frontend="exported")


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_on_request_equals_eager(name: str) -> None:
    entry, graph = ZOO[name], exported(name)
    eager = fresh(entry)
    assert list(graph.state_dict()) == list(eager.state_dict())
    for call in [entry.inputs(batch) for batch in entry.batches]:
        assert same(run(graph, call), run(eager, call)) is None
    for call in entry.other_sizes():  # equal, or a size that torch.export fixed, which is said
        try:
            got = run(graph, call)
        except CaptureError as error:
            assert "torch.export fixed it" in str(error)
        else:
            assert same(got, run(eager, call)) is None


@pytest.mark.parametrize("name", ["cifar_resnet20", "mobilenet_v3", "unet"])
def test_exported_on_request_trains_as_eager(name: str) -> None:
    entry = ZOO[name]
    got = train_step(copy.deepcopy(exported(name)).train(), entry.inputs(2))
    expected = train_step(fresh(entry).train(), entry.inputs(2))
    for mine, theirs in zip(got, expected, strict=True):
        assert list(mine) == list(theirs) and same(list(mine.values()), list(theirs.values())) is None


def test_an_exported_program_keeps_its_mode() -> None:
    entry = ZOO["cifar_resnet20"]
    args, kwargs = entry.inputs(2)
    batch = {"x": {0: torch.export.Dim.AUTO}}
    with third_party_warnings_ignored():
        program = torch.export.export(fresh(entry), args, kwargs, dynamic_shapes=batch)
        graph = capture(program)
    eager = fresh(entry)
    assert list(graph.state_dict()) == list(eager.state_dict())
    for size in entry.batches:
        assert same(run(graph, entry.inputs(size)), run(eager, entry.inputs(size))) is None
    with pytest.raises(CaptureError, match="cannot switch to training mode"):
        graph.train()


def test_the_three_front_ends_agree_on_the_operators() -> None:
    from sparsebit.graph.ops import op_name

    entry = ZOO["cifar_resnet20"]
    with third_party_warnings_ignored():
        graphs = [
            capture(fresh(entry), *entry.inputs(2), frontend="record"),
            capture(fresh(entry), frontend="symbolic"),
            exported("cifar_resnet20"),
        ]
    names = [[op_name(graph, n) for n in graph.graph.nodes if n.op == "call_module"] for graph in graphs]
    assert names[0] == names[1] == names[2]
