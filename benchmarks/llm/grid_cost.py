"""Which cost should the search for GPTQ's ranges count errors with, and how much damping does H need?

Some weights of a model are solved with the second moments of calibration text, and the error of their outputs is taken
on that text (``seen``) and on text that was held out (``unseen``). The search counts the error of a column by the mean
square of its input (``energy``, H_jj), or by what later columns cannot make up for (``left``, 1 / U_jj²). All losses
are geometric means over the weights, relative to those of the affine grid by energy with a damping of 0.01.

Run from the repository root: ``SPARSEBIT_DATA=... python -m benchmarks.llm.grid_cost MODEL_FOLDER``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.environment import describe
from benchmarks.llm.run import HELD_OUT, LENGTH, NOTE, SAMPLES, SEED, make_parser, open_model
from sparsebit.llm.methods.gptq import eliminate, solve_columns
from sparsebit.llm.methods.grid_search import search_grid
from sparsebit.llm.methods.solver import WeightSpec, output_loss
from sparsebit.llm.tokens import as_ids, windows
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.numerics import CodeType

BLOCKS, LAYERS = (1, 8, 16), ("q_proj", "o_proj", "up_proj", "down_proj")
DAMPINGS = (0.01, 0.03, 0.1)
CODES = {"affine": CodeType("uint", 3), "full-range": CodeType("full", 3)}
BATCH, MEASURED = 8, 4096


@torch.no_grad()
def measure_moments(model: Any, sequences: Tensor) -> dict[str, Tensor]:
    """The second moments of the inputs of each chosen layer."""
    found: dict[str, InputStatistics] = {}
    hooks = []
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] in LAYERS:
            size = layer.in_features
            found[name] = InputStatistics.empty(size, shift=False)
            see = found[name].update
            hooks.append(layer.register_forward_pre_hook(lambda module, args, see=see: see(args[0])))
    for batch in sequences.split(BATCH):
        model.model(batch)
    for hook in hooks:
        hook.remove()
    return {name: one.mean_gram() for name, one in found.items() if int(name.split(".")[2]) in BLOCKS}


def main() -> None:
    """Solve each layer in every way, write."""
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--out", default="benchmarks/llm/results/grid_cost.json")
    options = parser.parse_args()
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    ids = as_ids(Path(options.text), AutoTokenizer.from_pretrained(options.model, trust_remote_code=False))
    model: Any = open_model(options.model, max(BLOCKS) + 1, "cpu")
    seen = measure_moments(model, windows(ids[:-HELD_OUT], options.samples, LENGTH, SEED))
    others = ids[-HELD_OUT:][MEASURED:][: SAMPLES * LENGTH]  # not what the tables are measured on
    unseen = measure_moments(model, others.view(SAMPLES, LENGTH))
    losses: dict[str, list[tuple[float, float]]] = {}
    for name, gram in seen.items():
        weight = model.get_submodule(name).weight.detach()
        for damping in DAMPINGS:
            elimination = eliminate(gram, damping, act_order=True, sparsity=None)
            for cost, importance in (("energy", gram.diagonal()), ("left", elimination.cost())):
                for scheme, code in CODES.items():
                    spec = WeightSpec(code=code, group_size=64)
                    solved = solve_columns(weight, elimination, search_grid(weight, importance, spec)).weight
                    pair = output_loss(weight, solved, gram), output_loss(weight, solved, unseen[name])
                    losses.setdefault(f"{scheme}, {cost}, damping {damping}", []).append(pair)
    base = torch.tensor(losses["affine, energy, damping 0.01"])
    rows = {}
    for name, pairs in losses.items():
        ratio = (torch.tensor(pairs) / base).log().mean(0).exp().tolist()
        rows[name] = {"seen": ratio[0], "unseen": ratio[1]}
        print(f"{name:36} seen {ratio[0]:.3f} unseen {ratio[1]:.3f}")
    result = {
        "question": "loss of 3-bit layers by the cost that ranges are searched with, and by damping",
        "note": NOTE,
        "how": f"{options.samples} x {LENGTH} tokens seen, {SAMPLES} x {LENGTH} others",
        "layers": [f"{block}.{layer}" for block in BLOCKS for layer in LAYERS],
        "rows": rows,
        **describe(SEED, ("torch", "transformers")),
    }
    Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
