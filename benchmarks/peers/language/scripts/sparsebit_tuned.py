"""Ours: GPTQ, then scales, norms and rounding of each block learned on the same sequences."""

# ruff: noqa: E402
# user: begin
from sparsebit import llm


def quantize(folder, samples, bits):
    config = {
        "W": {"BIT": bits, "SCHEME": "affine", "GROUP_SIZE": 64},
        "METHOD": ["gptq", {"tune": {"steps": STEPS}}],
        "CALIBRATION": {"SAMPLES": len(samples), "LENGTH": samples.shape[1]},
    }
    return llm.quantize(folder, samples, config)


# user: end
from benchmarks.peers.language import protocol
from benchmarks.peers.language.scripts.sparsebit import outcome
from benchmarks.peers.language.solve import solve
from sparsebit.llm.quantize_blocks import BATCH

STEPS = protocol.STEPS * protocol.SEQUENCES // BATCH  # as many sequences as the others learn from

if __name__ == "__main__":
    solve("sparsebit", quantize, outcome)
