"""Ours: GPTQ with a searched grid and a target that follows the error of earlier layers, on an affine grid."""

# ruff: noqa: E402
# user: begin
from sparsebit import llm


def quantize(folder, samples, bits):
    config = {
        "W": {"BIT": bits, "SCHEME": "affine", "GROUP_SIZE": 64},
        "METHOD": "gptq",
        "CALIBRATION": {"SAMPLES": len(samples), "LENGTH": samples.shape[1]},
    }
    return llm.quantize(folder, samples, config)


# user: end
from benchmarks.peers.language.solve import Outcome, solve


def outcome(model) -> Outcome:
    """Packed weights, and the norms beside them, which tuning may have changed."""
    weights = {name: held.numbers() for name, held in model.weights.items()}
    weights |= {name: one for name, one in model.model.named_parameters() if "norm" in name}
    return Outcome(weights, sum(held.nbytes for held in model.weights.values()))


if __name__ == "__main__":
    solve("sparsebit", quantize, outcome)
