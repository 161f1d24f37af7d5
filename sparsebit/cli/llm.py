"""``sparsebit llm``: quantize a language model, prune it, write it for an engine, measure it, talk to it."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsebit.cli.arguments import add_config, add_output, add_report, positive
from sparsebit.cli.command import Command, Outcome, UsageError
from sparsebit.cli.preflight import require_outputs
from sparsebit.cli.reference import is_reference, require_reference, resolve
from sparsebit.config.llm import FORMAT_NAMES, LlmConfig
from sparsebit.display import printable
from sparsebit.errors import ArtifactError, SparsebitError
from sparsebit.storage import MANIFEST, remove_steps, require_place
from sparsebit.storage.place import require_new

NEEDS = {
    "quantize": ("output",),
    "prune": ("output",),
    "export": ("output", "format"),
    "eval": (),
    "chat": (),
}
USES = {
    "quantize": ("config", "overrides", "text", "output", "report"),
    "prune": ("text", "output", "hidden", "heads", "blocks"),
    "export": ("output", "format", "text", "length", "rounding_budget", "report"),
    "eval": ("text", "length", "reference", "questions"),
    "chat": ("prompt", "tokens"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit llm``."""
    parser.add_argument(
        "verb", metavar="ACTION", choices=tuple(NEEDS), help="quantize, prune, export, eval or chat"
    )
    parser.add_argument(
        "origin",
        metavar="MODEL",
        help="quantize and prune: a folder that save_pretrained wrote, or file.py:factory; "
        "export, eval and chat: a folder that `sparsebit llm quantize` wrote",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        help="text file to calibrate with (quantize, prune), measure on (eval), or compare the engine on (export)",
    )
    add_output(parser, "quantize, prune: folder to write; export: file or folder to write", required=False)
    add_report(parser, "quantize, export: ")
    parser.add_argument(
        "--length",
        type=positive,
        default=512,
        metavar="N",
        help="eval: tokens per window; export: tokens of --text to compare on (512)",
    )
    add_config(
        parser.add_argument_group("quantize"),
        what=f"a YAML file or a preset: {', '.join(LlmConfig.preset_names())}",
        key="W.BIT=3",
        default="w4_g32",
    )
    group = parser.add_argument_group("prune (at least one)")
    group.add_argument(
        "--hidden", type=float, default=0.0, metavar="FRACTION", help="fraction of hidden channels to remove"
    )
    group.add_argument(
        "--heads", type=float, default=0.0, metavar="FRACTION", help="fraction of attention heads to remove"
    )
    group.add_argument(
        "--blocks", type=int, default=0, metavar="N", help="number of blocks to remove; needs --text"
    )
    group = parser.add_argument_group("export")
    group.add_argument("--format", choices=FORMAT_NAMES, help="file format; required")
    group.add_argument(
        "--rounding-budget",
        type=float,
        metavar="NATS",
        help="onnxruntime-genai: divergence that 8-bit activations may cause; layers beyond it run in float (0.02)",
    )
    group = parser.add_argument_group("eval (--text or --questions is required)")
    group.add_argument("--reference", metavar="FOLDER", type=Path, help="the float model to compare with")
    group.add_argument(
        "--questions",
        metavar="FILE",
        type=Path,
        help="one line of JSON for each question, with question, choices and answer",
    )
    group = parser.add_argument_group("chat")
    group.add_argument("--prompt", metavar="TEXT", help="answer this prompt and stop")
    group.add_argument(
        "--tokens",
        type=positive,
        default=256,
        metavar="N",
        help="maximum length of an answer, in tokens (256)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Check the arguments of each verb, before torch is loaded."""
    from sparsebit.config.llm import load_llm_config

    os.environ.setdefault("TQDM_DISABLE", "1")  # bars of transformers; tqdm reads this when it is imported
    _refuse_unused(arguments)
    for name in NEEDS[arguments.verb]:
        if getattr(arguments, name) is None:
            raise UsageError(f"llm {arguments.verb} needs --{name}")
    if arguments.verb == "eval" and arguments.text is None and arguments.questions is None:
        raise UsageError("llm eval needs --text or --questions")
    if arguments.verb == "prune" and not (arguments.hidden or arguments.heads or arguments.blocks):
        raise UsageError("llm prune needs --hidden, --heads or --blocks")
    if arguments.verb == "prune" and arguments.blocks and arguments.text is None:
        raise UsageError(
            "llm prune --blocks needs --text",
            hint="the blocks that change the hidden states of this text least are removed",
        )
    for path in (arguments.text, arguments.questions):
        if path is not None and not path.is_file():
            raise UsageError(f"no such file: {path}", expected="a UTF-8 text file")
    require_outputs(arguments)
    if arguments.verb == "quantize":
        load_llm_config(arguments.config, arguments.overrides)
        require_place(arguments.output)
    elif arguments.verb in ("prune", "export"):
        require_new(arguments.output)
    if arguments.verb in ("quantize", "prune"):
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
    elif not Path(arguments.origin, MANIFEST).is_file():
        raise UsageError(
            f"{arguments.origin} is not a saved language model",
            expected=f"a folder that `sparsebit llm quantize` wrote, with {MANIFEST} in it",
        )


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Options of other verbs would have no effect."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name in dict.fromkeys(itertools.chain(*USES.values())):
        if name not in USES[arguments.verb] and getattr(arguments, name) != parser.get_default(name):
            option = "set" if name == "overrides" else name.replace("_", "-")
            users = [f"llm {verb}" for verb, names in USES.items() if name in names]
            raise UsageError(
                f"llm {arguments.verb} has no --{option}", hint=f"it is an option of {', '.join(users)}"
            )


def run(arguments: argparse.Namespace) -> Outcome:
    """Run the verb."""
    verbs = {
        "quantize": _quantize, "prune": _prune, "export": _export, "eval": _evaluate, "chat": _chat
    }  # fmt: skip
    return verbs[arguments.verb](arguments)


def _origin(arguments: argparse.Namespace) -> Any:
    return resolve(arguments.origin, "model")() if is_reference(arguments.origin) else arguments.origin


def _quantize(arguments: argparse.Namespace) -> Outcome:
    from sparsebit import llm
    from sparsebit.config.llm import load_llm_config

    config = load_llm_config(arguments.config, arguments.overrides)
    # A stopped run resumes after its finished blocks.
    unfinished = arguments.output.with_name(f"{arguments.output.name}.unfinished")
    made = llm.quantize(_origin(arguments), arguments.text, config, folder=unfinished)
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
    outside = "rounded to nearest"  # the note on an embedding, which is not multiplied
    names = [record.name for record in records if not record.tokens and record.remark != outside]
    if not names or not any(record.tokens for record in records):
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
            return f"sparsebit llm export {output} --format {name} -o {place}"
    return f"sparsebit llm eval {output} --text test.txt"


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
            f"next:    sparsebit llm quantize {arguments.output} --text {text} -o quantized",
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
        found = model.evaluate(ids, reference=reference, length=arguments.length)
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


COMMAND = Command(
    description="""
quantize  quantize the weights, block by block, and save them packed; a stopped run resumes
prune     write a smaller float model, with fewer blocks, heads or hidden channels
export    write a quantized model for an engine, and load it there if the engine is installed
eval      measure perplexity, the divergence from float, and accuracy on questions
chat      start a conversation
""",
    examples=(
        "sparsebit llm quantize sparsebit.demo:language_model --config w8 -o tiny-w8",
        "sparsebit llm export tiny-w8 --format compressed-tensors -o tiny-ct",
        "sparsebit llm prune sparsebit.demo:language_model --hidden 0.5 -o tiny-half",
    ),
    add_arguments=add_arguments,
    check=check,
    run=run,
)
