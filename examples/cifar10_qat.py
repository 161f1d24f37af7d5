"""ResNet-20 on CIFAR-10 trained with 2- to 4-bit weights and activations (LSQ)."""

from __future__ import annotations

from cifar10 import accuracy, images, parser, train, trained

from sparsebit import QuantModel


def main(words: list[str] | None = None) -> dict[str, float]:
    """Calibrate, train with the float model as a teacher, save; returns the accuracies."""
    options = parser(__doc__ or "")
    options.add_argument("--weight-bits", type=int, default=4)
    options.add_argument("--activation-bits", type=int, default=4)
    options.add_argument("--save", help="folder for the trained model")
    options = options.parse_args(words)
    training, test = images(options.data, "train10k"), images(options.data, "test", options.limit)
    model = trained(options.data, options.weights)

    config = {
        "DEVICE": options.device,
        "FIRST_LAST": 8,
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": "lsq", "BIT": options.weight_bits}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "lsq", "BIT": options.activation_bits}},
    }
    qmodel = QuantModel(model, config, example_inputs=(training[0][0][:2],)).to(options.device)
    qmodel.calibrate(training[:4])
    results = {"float": accuracy(model, test), "calibrated": accuracy(qmodel, test, options.device)}
    qmodel.init_QAT(distill=0.5)
    train(qmodel, training, options, step=lambda loss: None if loss is None else qmodel.distill(loss))
    results["trained"] = accuracy(qmodel, test, options.device)
    for name, value in results.items():
        print(f"{name:10} {value:.2f} %")
    if options.save:
        qmodel.save(options.save)
    return results


if __name__ == "__main__":
    main()
