"""Ours in bfloat16: the calibration text runs in half precision."""

# ruff: noqa: E402
# user: begin
from sparsebit import llm


def quantize(folder, samples, bits):
    config = {
        "W": {"BIT": bits, "SCHEME": "affine", "GROUP_SIZE": 64},
        "METHOD": "gptq",
        "CALIBRATION": {"SAMPLES": len(samples), "LENGTH": samples.shape[1], "DTYPE": "bfloat16"},
    }
    return llm.quantize(folder, samples, config)


# user: end
from benchmarks.peers.language.scripts.sparsebit import outcome
from benchmarks.peers.language.solve import solve

if __name__ == "__main__":
    solve("sparsebit", quantize, outcome)
