"""ResNet-20 on CIFAR-10 with four of five weights set to zero, step by step during training."""

from __future__ import annotations

from cifar10 import accuracy, images, parser, train, trained

from sparsebit import SparseModel


def main(words: list[str] | None = None) -> dict[str, float]:
    """Prune by a cubic schedule while training; returns the accuracies and the part of the weights that is zero."""
    options = parser(__doc__ or "")
    options.add_argument("--ratio", type=float, default=0.8)
    options = options.parse_args(words)
    training, test = images(options.data, "train10k"), images(options.data, "test", options.limit)
    model = trained(options.data, options.weights)

    steps = options.epochs * len(training)  # ten changes in the first half, then training only
    config = {
        "SPARSER": {"TYPE": "unstructured", "STRATEGY": "lamp", "RATIO": options.ratio, "SCOPE": "global"},
        "SCHEDULE": {"TYPE": "cubic", "EVERY": max(1, steps // 20), "TIMES": max(1, min(10, steps // 2))},
    }
    smodel = SparseModel(model, config, example_inputs=(training[0][0][:2],)).to(options.device)
    results = {"float": accuracy(model, test)}
    train(smodel, training, options, step=lambda loss: smodel.step() if loss is None else loss)
    smodel.eval()
    results["trained"] = accuracy(smodel, test, options.device)
    for name, value in results.items():
        print(f"{name:8} {value:.2f} %")
    return {**results, "zeros": smodel.report().sparsity}


if __name__ == "__main__":
    main()
