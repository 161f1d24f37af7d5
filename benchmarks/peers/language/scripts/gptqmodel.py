"""GPTQModel: GPTQ on a symmetric grid, its default."""

# ruff: noqa: E402
import os
import tempfile

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # on two cores it refuses to start without this
os.chdir(tempfile.mkdtemp())  # it writes its logs where it runs

# user: begin
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig


def quantize(folder, samples, bits):
    config = QuantizeConfig(bits=bits, group_size=64, offload_to_disk=False)
    model = GPTQModel.load(folder, config, device="cpu", dtype="float32")
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in samples.tolist()]
    model.quantize(rows, batch_size=8, backend=BACKEND.TORCH)
    return model


# user: end
from benchmarks.peers.language.solve import Outcome, nbytes, solve


def outcome(model) -> Outcome:
    """Its layers know their own weights, input channels first; before saving, zero points are stored less one."""
    layers = {name: one for name, one in model.model.named_modules() if hasattr(one, "qweight")}
    stored = sum(nbytes(one.qweight, one.qzeros, one.scales) for one in layers.values())
    weights = {}
    for name, one in layers.items():
        shift = one.scales[one.g_idx.long()] if one.qzero_format() == 1 else 0
        weights[f"{name}.weight"] = (one.dequantize_weight() - shift).T
    return Outcome(weights, stored)


if __name__ == "__main__":
    solve("gptqmodel", quantize, outcome)
