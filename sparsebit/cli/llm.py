"""``sparsebit llm``: quantize a language model, prune it, write it for an engine, measure it, talk to it."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsebit.cli.arguments import add_config, add_output, add_report, positive
from sparsebit.cli.command import Command, Outcome, UsageError, command_to_copy
from sparsebit.cli.reference import is_reference, require_reference, resolve
from sparsebit.config.llm import FORMAT_NAMES, LlmConfig
from sparsebit.display import printable
from sparsebit.errors import ArtifactError, SparsebitError
from sparsebit.storage import MANIFEST, remove_steps
from sparsebit.storage.place import require_new

os.environ.setdefault("TQDM_DISABLE", "1")  # bars of transformers; tqdm reads this when it is imported
FLOAT = "a folder that save_pretrained wrote, or file.py:factory"
SAVED = "a folder that `sparsebit llm quantize` wrote"


def _add_texts(parser: argparse.ArgumentParser, model: str, text: str, length: str = "") -> None:
    """MODEL, --text, and how many tokens of it are used if the action takes that as an option."""
    parser.add_argument("origin", metavar="MODEL", help=model)
    parser.add_argument("--text", metavar="FILE", type=Path, help=f"text file {text}")
    if length:
        parser.add_argument("--length", type=positive, default=512, metavar="N", help=f"{length} (512)")


def _add_quantize(parser: argparse.ArgumentParser) -> None:
    _add_texts(parser, FLOAT, "to calibrate with")
    presets = ", ".join(LlmConfig.preset_names())
    add_config(parser, what=f"a YAML file or a preset: {presets}", key="W.BIT=3", default="w4_g32")
    add_output(parser, "folder to write")
    add_report(parser)


def _check_quantize(arguments: argparse.Namespace) -> None:
    from sparsebit.config.llm import load_llm_config

    load_llm_config(arguments.config, arguments.overrides)
    _check_float(arguments)


def _add_prune(parser: argparse.ArgumentParser) -> None:
    _add_texts(parser, FLOAT, "to calibrate with")
    for option, what in (("--hidden", "hidden channels"), ("--heads", "attention heads")):
        help = f"fraction of {what} to remove"
        parser.add_argument(option, type=float, default=0.0, metavar="FRACTION", help=help)
    parser.add_argument("--blocks", type=int, default=0, metavar="N", help="blocks to remove; needs --text")
    add_output(parser, "folder to write")


def _check_prune(arguments: argparse.Namespace) -> None:
    if not (arguments.hidden or arguments.heads or arguments.blocks):
        raise UsageError("llm prune needs --hidden, --heads or --blocks")
    if arguments.blocks and arguments.text is None:
        raise UsageError(
            "llm prune --blocks needs --text",
            hint="the blocks that change the hidden states of this text least are removed",
        )
    require_new(arguments.output)
    _check_float(arguments)


def _add_export(parser: argparse.ArgumentParser) -> None:
    _add_texts(parser, SAVED, "to compare the engine on", "tokens of --text to compare on")
    parser.add_argument("--format", choices=FORMAT_NAMES, required=True, help="file format")
    add_output(parser, "file or folder to write")
    add_report(parser)
    parser.add_argument(
        "--rounding-budget",
        type=float,
        metavar="NATS",
        help="onnxruntime-genai: divergence that 8-bit activations may cause; layers beyond it run in float (0.02)",
    )


def _check_export(arguments: argparse.Namespace) -> None:
    require_new(arguments.output)
    _check_saved(arguments)


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    _add_texts(parser, SAVED, "to measure on", "tokens per window")
    parser.add_argument("--reference", metavar="FOLDER", type=Path, help="the float model to compare with")
    help = "tokens from one window to the next (as many as a window has)"
    parser.add_argument("--stride", type=positive, metavar="N", help=help)
    help = "one line of JSON for each question, with question, choices and answer"
    parser.add_argument("--questions", metavar="FILE", type=Path, help=help)


def _check_evaluate(arguments: argparse.Namespace) -> None:
    if arguments.text is None and arguments.questions is None:
        raise UsageError("llm eval needs --text or --questions")
    if arguments.reference is not None and arguments.text is None:
        raise UsageError("llm eval compares with --reference on --text", hint="add --text FILE")
    if arguments.stride is not None and (arguments.text is None or arguments.stride > arguments.length):
        raise UsageError("--stride is at most the --length of windows of a --text")
    _check_saved(arguments)


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("origin", metavar="MODEL", help=SAVED)
    parser.add_argument("--prompt", metavar="TEXT", help="answer this prompt and stop")
    help = "maximum length of an answer, in tokens (256)"
    parser.add_argument("--tokens", type=positive, default=256, metavar="N", help=help)


def _check_float(arguments: argparse.Namespace) -> None:
    _check_files(arguments)
    if is_reference(arguments.origin):
        require_reference(arguments.origin, "model")
    elif not Path(arguments.origin, "config.json").is_file():
        if Path(arguments.origin, MANIFEST).is_file():
            raise UsageError(
                f"{arguments.origin} is quantized already", hint="pass the folder of the float model"
            )
        raise UsageError(
            f"{arguments.origin} is not a folder with a model",
            expected="a folder with config.json and *.safetensors, or file.py:factory",
        )


def _check_saved(arguments: argparse.Namespace) -> None:
    _check_files(arguments)
    if not Path(arguments.origin, MANIFEST).is_file():
        raise UsageError(
            f"{arguments.origin} is not a saved language model", expected=f"{SAVED}, with {MANIFEST} in it"
        )


def _check_files(arguments: argparse.Namespace) -> None:
    for name in ("text", "questions"):
        path = getattr(arguments, name, None)
        if path is not None and not path.is_file():
            raise UsageError(f"no such file: {path}", expected="a UTF-8 text file")


def _origin(arguments: argparse.Namespace) -> Any:
    return resolve(arguments.origin, "model")() if is_reference(arguments.origin) else arguments.origin


def _quantize(arguments: argparse.Namespace) -> Outcome:
    import torch
    from torch import nn

    from sparsebit import llm
    from sparsebit.config.llm import load_llm_config

    config = load_llm_config(arguments.config, arguments.overrides)
    # A stopped run resumes after its finished blocks.
    unfinished = arguments.output.with_name(f"{arguments.output.name}.unfinished")
    origin = _origin(arguments)
    if isinstance(origin, nn.Module):
        origin = origin.to(config.settle_device(torch.cuda.device_count).DEVICE)
    made = llm.quantize(origin, arguments.text, config, folder=unfinished)
    made.save(arguments.output)
    with contextlib.suppress(ArtifactError):  # the same run was started again meanwhile, and needs them
        remove_steps(unfinished)
    if arguments.report is not None:
        from sparsebit.report import report_language_model, save_report

        save_report(arguments.report, report_language_model(made, name=Path(arguments.origin).name))
    worst = max(made.records, key=lambda record: record.loss)
    done = f"{len(made.records)} weights pruned and left in float"
    if made.weights:
        done = f"{len(made.weights)} weights quantized to {made.bits:.2f} bits each, including scales"
    return Outcome(
        shown=(
            f"{done}; the model takes {made.nbytes / 1e6:.1f} MB",
            *_float_ends(made),
            f"largest loss of a layer's output: {worst.loss:.2%}, {worst.name}",
            *_unreached(made.records),
            f"written: {arguments.output}",
            f"next:    {_next_step(made, arguments.output)}",
        ),
        data={
            "output": arguments.output,
            "bits": made.bits,
            "bytes": made.nbytes,
            "layers": [asdict(record) for record in made.records],
            "ignored": made.ignored,
            "report": arguments.report,
        },
    )


def _float_ends(made: Any) -> list[str]:
    """A line about the embedding and the head if they are in float; in small models they are most of the bytes."""
    from sparsebit.llm.plan import embedding_and_head

    names = embedding_and_head(made.model)
    weights = {id(weight): weight for weight in map(made.model.get_parameter, names)}
    taken = sum(weight.nbytes for weight in weights.values()) / 1e6
    return [f"of these, {taken:.1f} MB are in float (HEAD.BIT: 0): {', '.join(names)}"] if names else []


def _unreached(records: Sequence[Any]) -> list[str]:
    """A line that names weights inside the blocks that no token of the text reached, if any."""
    from sparsebit.llm.methods.solver import UNREACHED

    names = [record.name for record in records if UNREACHED in record.remark]
    if not names:
        return []
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return [f"rounded without data, because no token reached them: {', '.join(names[:4])}{more}"]


def _next_step(made: Any, output: Path) -> str:
    """The command to export to the first format that stores the model exactly, or else to evaluate it."""
    from sparsebit.llm.formats import FORMATS, require_exact

    for name in FORMAT_NAMES:
        with contextlib.suppress(SparsebitError):
            require_exact(name, FORMATS[name](), made)
            place = f"model{FORMATS[name].extension}" if FORMATS[name].extension else name
            return command_to_copy("llm export", output, format=name, output=place)
    return command_to_copy("llm eval", output, text="test.txt")


def _prune(arguments: argparse.Namespace) -> Outcome:
    from safetensors import SafetensorError

    from sparsebit import llm
    from sparsebit.llm.tokens import read_tokenizer, write_tokenizer
    from sparsebit.storage.drafts import new_place
    from sparsebit.storage.place import writing

    sizes = {"hidden": arguments.hidden, "heads": arguments.heads, "blocks": arguments.blocks}
    made: Any = llm.prune(_origin(arguments), arguments.text, **sizes)
    place = Path(arguments.output)
    with new_place(place) as draft, writing(place, SafetensorError):
        made.save_pretrained(draft)
        if not is_reference(arguments.origin) and (tokenizer := read_tokenizer(arguments.origin)) is not None:
            write_tokenizer(tokenizer, draft)
    count = sum(parameter.numel() for parameter in made.parameters())
    text = arguments.text or "text.txt"
    return Outcome(
        shown=(
            f"{count / 1e6:.1f} million parameters are left",
            f"written: {arguments.output}",
            f"next:    {command_to_copy('llm quantize', arguments.output, text=text, output='quantized')}",
        ),
        data={"output": arguments.output, "parameters": count, **sizes},
    )


def _export(arguments: argparse.Namespace) -> Outcome:
    from sparsebit import llm
    from sparsebit.llm.tokens import as_ids

    model = llm.LanguageModel.load(arguments.origin)
    ids = None if arguments.text is None else as_ids(arguments.text, model.tokenizer)[: arguments.length]
    options = {} if arguments.rounding_budget is None else {"rounding_budget": arguments.rounding_budget}
    report = model.export(arguments.output, arguments.format, ids=ids, **options)
    if arguments.report is not None:
        from sparsebit.report import report_language_model, save_report

        save_report(arguments.report, report_language_model(model, name=arguments.origin, exports=[report]))
    return Outcome(
        shown=(str(report),),
        data={**asdict(report), "ok": report.ok, "proven": report.proven},
        exit_code=0 if report.ok else 1,
    )


def _evaluate(arguments: argparse.Namespace) -> Outcome:
    from sparsebit import llm
    from sparsebit.llm.evaluate.multiple_choice import answer_questions, read_questions
    from sparsebit.llm.folders.source import load_module
    from sparsebit.llm.tokens import as_ids

    model = llm.LanguageModel.load(arguments.origin)
    shown: list[str] = []
    data: dict[str, Any] = {}
    if arguments.text is not None:
        reference = None if arguments.reference is None else load_module(arguments.reference)
        ids = as_ids(arguments.text, model.tokenizer)
        found = model.evaluate(ids, reference=reference, length=arguments.length, stride=arguments.stride)
        data |= asdict(found)
        shown.append(f"perplexity {found.perplexity:.2f} over {found.tokens} tokens")
        if found.divergence is not None and found.agreement is not None:
            shown.append(
                f"divergence from float {found.divergence:.4f} nats; same most likely token in {found.agreement:.1%}"
            )
    if arguments.questions is not None:
        score = answer_questions(model.model, model.tokenizer, read_questions(arguments.questions))
        data |= asdict(score)
        shown.append(
            f"{score.accuracy:.1%} of {score.questions} questions answered right, "
            f"{score.accuracy_per_character:.1%} by likelihood per character"
        )
    return Outcome(shown=tuple(shown), data=data)


def _chat(arguments: argparse.Namespace) -> Outcome:
    from sparsebit import llm
    from sparsebit.llm.chat import Chat

    chat = Chat(llm.LanguageModel.load(arguments.origin), most_tokens=arguments.tokens)
    if arguments.prompt is not None:
        answer = "".join(chat.answer(arguments.prompt))
        return Outcome(shown=(answer,), data={"answer": answer})
    print("An empty line ends the conversation.")
    while text := _asked():
        for piece in chat.answer(text):
            print(printable(piece), end="", flush=True)
        print()
    return Outcome()


def _asked() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


ACTIONS = {
    "quantize": Command(
        description="Quantize the weights of a model block by block, and save them packed; a stopped run resumes.",
        add_arguments=_add_quantize,
        check=_check_quantize,
        run=_quantize,
        writes="folder",
    ),
    "prune": Command(
        description="Write a smaller float model, with fewer blocks, heads or hidden channels.",
        add_arguments=_add_prune,
        check=_check_prune,
        run=_prune,
    ),
    "export": Command(
        description="Write a saved model for an engine, bit for bit, and load it there if the engine is installed.",
        add_arguments=_add_export,
        check=_check_export,
        run=_export,
    ),
    "eval": Command(
        description="Measure perplexity, the divergence from float, and accuracy on questions.",
        add_arguments=_add_evaluate,
        check=_check_evaluate,
        run=_evaluate,
    ),
    "chat": Command(
        description="Start a conversation.",
        add_arguments=_add_chat,
        check=_check_saved,
        run=_chat,
    ),
}
COMMAND = Command(
    description="Make a language model small, write it for an engine, measure it, and talk to it.",
    examples=(
        "sparsebit llm quantize sparsebit.demo:language_model --config w8 -o tiny-w8",
        "sparsebit llm export tiny-w8 --format compressed-tensors -o tiny-ct",
        "sparsebit llm prune sparsebit.demo:language_model --hidden 0.5 -o tiny-half",
    ),
    actions=ACTIONS,
)
