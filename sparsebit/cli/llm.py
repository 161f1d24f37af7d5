"""``sparsebit llm``: quantize a language model, write it for an engine, measure it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsebit.cli.arguments import add_config, add_output, positive
from sparsebit.cli.command import Command, Outcome, UsageError
from sparsebit.cli.preflight import LEAST_SHARE
from sparsebit.cli.reference import is_reference, require_reference, resolve
from sparsebit.storage import MANIFEST, require_file, require_place

FORMATS = ("gguf", "onnxruntime-genai", "openvino", "compressed-tensors", "gptq")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after ``sparsebit llm``."""
    parser.add_argument("verb", choices=("quantize", "export", "eval"), help="what to do")
    parser.add_argument(
        "origin",
        metavar="MODEL",
        help="quantize: a folder as save_pretrained writes it, or file.py:factory; "
        "export and eval: a folder that `sparsebit llm quantize` wrote",
    )
    add_config(parser, what="quantize: a preset or a YAML file", key="W.BIT=3", default="w4_g32")
    parser.add_argument("--text", metavar="FILE", type=Path, help="text to calibrate or to measure with")
    add_output(parser, "quantize: folder to write; export: file or folder to write", required=False)
    parser.add_argument("--format", choices=FORMATS, help="export: which file to write")
    parser.add_argument(
        "--length", type=positive, default=512, metavar="N", help="eval: tokens of a window (512)"
    )
    parser.add_argument(
        "--reference",
        metavar="FOLDER",
        type=Path,
        help="eval: the float model, to measure the distance from it",
    )


def check(arguments: argparse.Namespace) -> None:
    """What each of the three needs, before torch is loaded."""
    from sparsebit.config.llm import load_llm_config

    needed = {"quantize": ("output",), "export": ("output", "format"), "eval": ("text",)}[arguments.verb]
    for name in needed:
        if getattr(arguments, name) is None:
            raise UsageError(f"llm {arguments.verb} needs --{name}")
    if arguments.text is not None and not arguments.text.is_file():
        raise UsageError(f"no such file: {arguments.text}", expected="a text file in UTF-8")
    if arguments.verb == "quantize":
        load_llm_config(arguments.config, arguments.overrides)
        require_place(arguments.output, _bytes(arguments.origin) // LEAST_SHARE)
        if is_reference(arguments.origin):
            require_reference(arguments.origin, "model")
        elif not Path(arguments.origin, "config.json").is_file():
            raise UsageError(
                f"{arguments.origin} is not a folder with a model",
                expected="a folder with config.json and *.safetensors, or file.py:factory",
            )
    elif not Path(arguments.origin, MANIFEST).is_file():
        raise UsageError(
            f"{arguments.origin} is not a saved language model",
            expected=f"a folder that `sparsebit llm quantize` wrote, with {MANIFEST} in it",
        )
    elif arguments.output is not None:
        require_file(arguments.output / "file", _bytes(arguments.origin))


def _bytes(folder: str) -> int:
    """Of the weights in a folder."""
    return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))


def run(arguments: argparse.Namespace) -> Outcome:
    """Do one of the three."""
    verbs = {"quantize": _quantize, "export": _export, "eval": _evaluate}
    return verbs[arguments.verb](arguments)


def _quantize(arguments: argparse.Namespace) -> Outcome:
    from sparsebit import llm
    from sparsebit.config.llm import load_llm_config

    origin: Any = arguments.origin
    if is_reference(origin):
        origin = resolve(origin, "model")()
    config = load_llm_config(arguments.config, arguments.overrides)
    made = llm.quantize(origin, arguments.text, config)
    made.save(arguments.output)
    worst = max(made.records, key=lambda record: record.loss)
    return Outcome(
        shown=(
            f"{len(made.records)} weights quantized to {made.bits:.2f} bits each, scales counted; "
            f"the model takes {made.nbytes / 1e6:.1f} MB",
            f"largest loss of a layer's output: {worst.loss:.2%}, {worst.name}",
            f"written: {arguments.output}",
            f"next:    sparsebit llm export {arguments.output} --format gguf -o model.gguf",
        ),
        data={
            "output": arguments.output,
            "bits": made.bits,
            "bytes": made.nbytes,
            "layers": [asdict(record) for record in made.records],
            "ignored": made.ignored,
        },
    )


def _export(arguments: argparse.Namespace) -> Outcome:
    from sparsebit import llm

    report = llm.LanguageModel.load(arguments.origin).export(arguments.output, arguments.format)
    return Outcome(
        shown=(str(report),),
        data={**asdict(report), "ok": report.ok, "proven": report.proven},
        exit_code=0 if report.ok else 1,
    )


def _evaluate(arguments: argparse.Namespace) -> Outcome:
    from sparsebit import llm
    from sparsebit.llm.tokens import as_ids

    model = llm.LanguageModel.load(arguments.origin)
    ids = as_ids(arguments.text, model.tokenizer)
    reference = None
    if arguments.reference is not None:
        from transformers import AutoModelForCausalLM

        reference = AutoModelForCausalLM.from_pretrained(arguments.reference, trust_remote_code=False)
    found = model.evaluate(ids, reference=reference, length=arguments.length)
    shown = [f"perplexity {found.perplexity:.2f} over {found.tokens} tokens"]
    if found.divergence is not None and found.agreement is not None:
        shown.append(
            f"from float: {found.divergence:.4f} nats; the most likely token agrees at {found.agreement:.1%}"
        )
    return Outcome(shown=tuple(shown), data=asdict(found))


COMMAND = Command(
    description="""
quantize solves the weights of a language model block by block and saves them packed; export writes
the saved model for an engine, bit for bit, and has that engine load it where it is installed; eval
measures perplexity and the distance from float.
""",
    examples=(
        "sparsebit llm quantize sparsebit.demo:language_model --config w8 -o tiny-w8",
        "sparsebit llm export tiny-w8 --format compressed-tensors -o tiny-ct",
    ),
    add_arguments=add_arguments,
    check=check,
    run=run,
)
