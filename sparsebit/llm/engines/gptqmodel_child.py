"""Run by gptqmodel.py in a separate process, because GPTQModel changes the one that imports it.

Reads {"path", "folder", "threads", "ids"} from standard input. It writes every packed layer, unpacked, to a file of its
name in the folder, and the log-probabilities of the next token after each id to "log_probabilities".
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sparsebit.llm.blocks.calls import outputs_of, run_model

BACKEND = "gptq_torch"  # unpacks in torch; the others are compiled at their first use, for minutes


def main() -> None:
    """Answer the one request."""
    request: dict[str, Any] = json.load(sys.stdin)
    torch.set_num_threads(request["threads"])
    model = load(request["path"])
    layers = {name: one for name, one in model.named_modules() if hasattr(one, "qweight")}
    for one in layers.values():
        one.scales = one.scales.float()  # products with float16 scales are rounded
    folder = Path(request["folder"])
    with torch.no_grad():
        output = run_model(model, torch.tensor(request["ids"])[None])
        found = outputs_of(output)[0].double().log_softmax(-1)
        save_file({"found": found}, folder / "log_probabilities.safetensors")
        for name, one in layers.items():
            unpacked = one.dequantize_weight().T.contiguous()
            save_file({"found": unpacked}, folder / f"{name}.safetensors")


def load(path: str) -> Any:
    """By transformers if it finds every tensor of its model, and otherwise by GPTQModel, which splits experts."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    kind = getattr(transformers, (config.architectures or ["AutoModelForCausalLM"])[0])
    bits = config.quantization_config["bits"]
    refused = ""
    try:
        model, said = kind.from_pretrained(
            path,
            dtype=torch.float32,
            quantization_config=transformers.GPTQConfig(bits=bits, backend=BACKEND),
            output_loading_info=True,
        )
        if not said["missing_keys"]:
            return model.eval()
    except Exception as error:  # transformers cannot load every family that GPTQModel can
        refused = f"transformers: {error}"[:90] + "; its own loader: "
    try:
        return load_by_gptqmodel(path)
    except Exception as error:
        raise RuntimeError(f"{refused}{error}") from error


def load_by_gptqmodel(path: str) -> Any:
    """In float16, the only type it loads, and then computed in float32."""
    from gptqmodel import GPTQModel
    from gptqmodel.models import loader

    if not list(Path(path).glob("tokenizer*")):  # it insists on one
        loader.load_hf_tokenizer = lambda *args, **kwargs: None
    opened = GPTQModel.load(path, device="cpu", backend=BACKEND, dtype=torch.float16)
    return torch.nn.Module.float(opened.model).eval()


if __name__ == "__main__":
    main()
