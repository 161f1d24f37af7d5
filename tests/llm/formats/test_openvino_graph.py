"""OpenVINO's graph: its state gives what one pass gives, one step at a time; windows and padding are masked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparsebit import llm
from sparsebit.llm.decoder.describe import describe_decoder
from sparsebit.llm.formats.openvino_graph import OpenVinoGraph
from tests.llm.decoder.family_models import family_model
from tests.llm.models import DECODERS

openvino = pytest.importorskip("openvino")


def compiled(model: torch.nn.Module) -> object:
    made = llm.quantize(model, None, {"METHOD": "rtn", "W": {"BIT": 8}}, progress=False)
    graph = OpenVinoGraph(describe_decoder(made.model, "openvino"), made.weights).model()
    exact = {
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "KV_CACHE_PRECISION": "f32",
    }
    return made, openvino.Core().compile_model(graph, "CPU", exact)


def step(request: object, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    arrays = {name: one.numpy() for name, one in inputs.items()}
    found = request.infer({**arrays, "beam_idx": np.arange(len(ids), dtype=np.int32)})["logits"]  # type: ignore[attr-defined]
    return torch.from_numpy(np.array(found))


# With softcaps; with learned positions.
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt2"])
def test_steps_with_state_give_what_torch_gives_at_once(name: str) -> None:
    made, engine = compiled(family_model(name))
    ids = torch.arange(3, 13).view(2, 5)
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[0, :2] = 0  # the first row is shorter
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    wanted = made.model(ids, attention_mask=mask, position_ids=positions).logits.detach()
    request = engine.create_infer_request()  # type: ignore[attr-defined]
    found = torch.cat([step(request, ids[:, :3], mask[:, :3]), step(request, ids[:, 3:4], mask[:, :4])], 1)
    found = torch.cat([found, step(request, ids[:, 4:], mask)], 1)
    assert torch.allclose(found[mask.bool()], wanted[mask.bool()], atol=1e-3)


def test_a_sliding_window_is_kept() -> None:
    model = DECODERS["mistral"]()
    model.config.sliding_window = 3
    made, engine = compiled(model)
    ids = torch.arange(3, 11)[None]
    mask = torch.ones_like(ids)
    wanted = made.model(ids).logits.detach()
    model.config.sliding_window = None
    assert torch.allclose(step(engine.create_infer_request(), ids, mask), wanted, atol=1e-4)  # type: ignore[attr-defined]
    wide = llm.quantize(model, None, {"METHOD": "rtn", "W": {"BIT": 8}}, progress=False).model(ids).logits
    assert not torch.allclose(wide, wanted, atol=1e-4)


@pytest.mark.parametrize(("dtype", "stored"), [("float16", "f16"), ("float32", "f32")])
def test_scales_take_two_bytes_where_that_is_exact(dtype: str, stored: str) -> None:
    config = {"METHOD": "rtn", "W": {"BIT": 4, "SCALE_DTYPE": dtype}}
    made = llm.quantize(DECODERS["llama"](), None, config, progress=False)
    graph = OpenVinoGraph(describe_decoder(made.model, "openvino"), made.weights).model()
    found = {
        op.get_element_type().get_type_name()
        for op in graph.get_ordered_ops()
        if op.get_type_name() == "Constant" and len(op.get_shape()) == 3 and op.get_shape()[2] == 1
    }
    assert found == {stored}
