"""ResNet-20 on CIFAR-10 with half of its multiply-accumulates removed, then trained."""

from __future__ import annotations

import torch.nn.functional as F
from cifar10 import accuracy, images, parser, train, trained

from sparsebit import SparseModel


def main(words: list[str] | None = None) -> dict[str, float]:
    """Choose channels, shrink, train what is left; returns the accuracies and the part of the parameters left."""
    options = parser(__doc__ or "")
    options.add_argument(
        "--ratio", type=float, default=0.5, help="part of the multiply-accumulates to remove"
    )
    options.add_argument("--criterion", default="l2norm")
    options = options.parse_args(words)
    training, test = images(options.data, "train10k"), images(options.data, "test", options.limit)
    model = trained(options.data, options.weights)

    sparser = {"TYPE": "structured", "STRATEGY": options.criterion, "RATIO": options.ratio, "TARGET": "macs"}
    smodel = SparseModel(model, {"SPARSER": sparser}, example_inputs=(training[0][0][:2],))
    smodel.calc_params(training[:4], loss=F.cross_entropy)
    print(smodel.report())
    small = smodel.shrink().to(options.device)
    results = {"float": accuracy(model, test), "pruned": accuracy(small, test, options.device)}
    train(small, training, options)
    results["trained"] = accuracy(small, test, options.device)
    for name, value in results.items():
        print(f"{name:8} {value:.2f} %")
    left, before = (sum(p.numel() for p in m.parameters()) for m in (small, model))
    return {**results, "parameters": left / before}


if __name__ == "__main__":
    main()
