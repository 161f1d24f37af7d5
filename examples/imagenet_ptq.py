"""Any classifier to int8: pictures in class folders, accuracy before and after, an ONNX file.

python imagenet_ptq.py --model torchvision.models:resnet18 --weights resnet18.pt --data val --calibration train-part
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pictures import accuracy, load, make_model

from sparsebit import QuantModel, parse_qconfig


def main(words: list[str] | None = None) -> dict[str, float]:
    """Quantize for a target and export; returns the accuracies."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", required=True, help="package.module:factory, called without arguments")
    options.add_argument("--weights", type=Path, help="a state dict saved by torch")
    options.add_argument("--data", type=Path, required=True, help="folder of class folders, or a zip")
    options.add_argument(
        "--calibration", type=Path, help="other pictures to calibrate with; default: the first of --data"
    )
    options.add_argument("--config", default="int8_onnxruntime", help="a preset or a YAML file")
    options.add_argument("--size", type=int, default=224)
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--limit", type=int)
    options.add_argument("--onnx", default="model.onnx")
    options = options.parse_args(words)

    model = make_model(options.model, options.weights)
    test = load(options.data, options.size, options.batch, options.limit)
    calibration = load(options.calibration or options.data, options.size, options.batch, 256)
    qmodel = QuantModel(model, parse_qconfig(options.config), example_inputs=(test[0][0][:2],))
    qmodel.calibrate(calibration)
    results = {"float": accuracy(model, test), "int8": accuracy(qmodel, test)}
    print(qmodel.export_onnx(test[0][0][:2], options.onnx))
    for name, value in results.items():
        print(f"{name:6} {value:.2f} %")
    return results


if __name__ == "__main__":
    main()
