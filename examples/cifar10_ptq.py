"""ResNet-20 on CIFAR-10 with 4-bit weights and 8-bit activations, without training."""

from __future__ import annotations

from cifar10 import accuracy, images, parser, trained

from sparsebit import QuantModel


def main(words: list[str] | None = None) -> dict[str, float]:
    """Nearest rounding, then rounding chosen block by block; returns the accuracies."""
    options = parser(__doc__ or "")
    options.add_argument("--bits", type=int, default=4, help="of the weights")
    options.add_argument("--steps", type=int, default=2000, help="of the recovery step, for each block")
    options.add_argument("--onnx", help="also write this ONNX file")
    options = options.parse_args(words)
    calibration, test = images(options.data, "calib", 256, 32), images(options.data, "test", options.limit)
    model = trained(options.data, options.weights)
    example = (calibration[0][0][:2],)

    config = {
        "DEVICE": options.device,
        "FIRST_LAST": 8,
        "SCHEDULE": {"FUSE_BN": True},
        "W": {
            "QSCHEME": "per-channel-symmetric",
            "QUANTIZER": {"BIT": options.bits},
            "OBSERVER": {"TYPE": "mse"},
        },
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 8}, "OBSERVER": {"TYPE": "mse"}},
    }
    results = {"float": accuracy(model, test)}
    for name, steps in (("nearest", []), ("brecq", [{"brecq": {"steps": options.steps}}])):
        config["SCHEDULE"]["RECOVERY"] = steps
        qmodel = QuantModel(model, config, example_inputs=example).to(options.device)
        qmodel.calibrate(calibration)
        results[name] = accuracy(qmodel, test, options.device)
    for name, value in results.items():
        print(f"{name:8} {value:.2f} %")
    if options.onnx:
        print(qmodel.cpu().export_onnx(example[0], options.onnx))
    return results


if __name__ == "__main__":
    main()
