"""From command-line arguments to an exit code: parsing, and the handling of errors.

Exit codes: 0 done; 1 done, but the result is negative (a file that differs from its model), or a bug in sparsebit;
2 the user's mistake; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TextIO

from sparsebit.cli.command import Command, Entry, Outcome, UsageError
from sparsebit.display import as_text, print_to, printable
from sparsebit.errors import SparsebitError
from sparsebit.progress import lines_without_terminal, waiting

USER_MISTAKE, TROUBLE, INTERRUPTED = 2, 1, 130
SCREEN = 24  # maximum lines of a message
GRACE = 10.0  # seconds for cleaning up, in which another Ctrl-C changes nothing

_ABOUT = """\
Make a trained PyTorch model small and fast, and verify the result.

A MODEL is code that builds one: net.py:factory or package.module:factory, a function, class or module object.
DATA is net.py:loader (batches, or a function that returns them), a folder of images, or an .npz file.
A CONFIG is the name of a preset or a YAML file; --set changes any key of it: --set W.QUANTIZER.BIT=4.
"""


class _Parser(argparse.ArgumentParser):
    """Mistakes in arguments are raised like all other errors, so that --json can report them too.

    Options are written out: ``--js`` for ``--json`` would be found by argparse, and not where errors are reported.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help shows the arguments and an example")


def build_parser(
    entries: Sequence[Entry], words: Sequence[str], version: str = ""
) -> argparse.ArgumentParser:
    """The parser for all commands; only the command in use is imported to add its arguments."""
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser = _Parser(prog="sparsebit", description=_ABOUT)
    parser.add_argument("--version", action="version", version=f"sparsebit {version}")
    subparsers = parser.add_subparsers(
        metavar="COMMAND", required=True, title="commands", parser_class=_Parser
    )
    for entry in entries:
        word = subparsers.add_parser(entry.name, help=entry.help)
        if entry.name == chosen:
            _declare(word, entry.load(), entry.name)
    return parser


def _declare(parser: argparse.ArgumentParser, command: Command, name: str) -> None:
    """Add a command's description and its arguments to its parser, or its actions with theirs."""
    if command.examples:
        examples = "\n".join(f"  {line}" for line in command.examples)
        parser.epilog = f"{'example' if len(command.examples) == 1 else 'examples'}:\n{examples}"
    parser.description = command.description.strip()
    if command.actions:
        actions = parser.add_subparsers(
            metavar="ACTION", required=True, title="actions", parser_class=_Parser
        )
        for action, inner in command.actions.items():
            help = inner.description.strip().partition(".")[0]
            own = actions.add_parser(action, help=help)
            _declare(own, inner, f"{name} {action}")
        return
    command.add_arguments(parser)
    common = parser.add_argument_group("for every command")
    common.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    common.add_argument(
        "--plug-in",
        metavar="FILE",
        action="append",
        default=[],
        help="file.py or package.module that registers plug-ins of yours, imported first; may be repeated",
    )
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    if command.resume:
        common.add_argument("--resume", action="store_true", help=command.resume)
    parser.set_defaults(command=command, name=name)


def run(words: Sequence[str] | None, entries: Sequence[Entry], *, version: str = "") -> int:
    """Run one command line; returns the exit code. Never raises, except for ``--help``."""
    words = list(sys.argv[1:] if words is None else words)
    as_json, debug = "--json" in words, "--debug" in words
    arguments, interrupt = argparse.Namespace(), _Interrupt()
    try:
        with _one_interrupt(interrupt), _warnings_in_a_line(sys.stderr), lines_without_terminal():
            arguments, unknown = build_parser(entries, words, version).parse_known_args(words)
            command: Command = arguments.command
            if unknown:
                raise UsageError(
                    f"unknown arguments: {' '.join(unknown)}",
                    hint=f"sparsebit {arguments.name} --help shows the arguments and an example",
                )
            from sparsebit.cli.preflight import (  # --help needs none of them
                require_named_things,
                require_one_process,
                require_outputs,
            )

            require_one_process()
            require_named_things(arguments)
            if arguments.plug_in:  # before configs are read, which may name what they register
                from sparsebit.cli.reference import import_code

                with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                    _load_torch(interrupt)
                    for place in arguments.plug_in:
                        import_code(place)
            command.check(arguments)
            require_outputs(arguments)
            if command.loads_torch:
                _load_torch(interrupt)
            with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                outcome = command.run(arguments)  # the user's code may print: not into the JSON
            if as_json:
                from sparsebit.storage.typed import to_plain

                _write_json(
                    {"command": arguments.name, "ok": outcome.exit_code == 0, **to_plain(outcome.data)}
                )
            else:
                _show(outcome)
            sys.stdout.flush()
            return outcome.exit_code
    except KeyboardInterrupt:
        return _fail(_interrupted(arguments), INTERRUPTED, as_json, debug)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if interrupt.seen:  # an import that was interrupted may raise anything
            return _fail(_interrupted(arguments), INTERRUPTED, as_json, debug)
        # an OSError is a disk that is full, or a folder that may not be written to
        code = USER_MISTAKE if isinstance(error, SparsebitError | OSError) else TROUBLE
        return _fail(error, code, as_json, debug)


def _load_torch(interrupt: _Interrupt) -> None:
    with waiting("loading torch"), interrupt.waiting():
        importlib.import_module("torch")


def _interrupted(arguments: argparse.Namespace) -> str:
    command: Command | None = getattr(arguments, "command", None)
    resumable = command is not None and bool(command.resume)
    more = "; run it again with --resume to continue" if resumable else ""
    return f"interrupted; no incomplete file was left{more}"


def _show(outcome: Outcome) -> None:
    """Print, fitted to the width of a terminal; in a pipe or a file, as wide as necessary."""
    from rich.console import Console

    console = Console()
    for part in outcome.shown:
        if console.is_terminal:
            print_to(console, part)
        else:
            sys.stdout.write(f"{as_text(part)}\n")


def _fail(error: Exception | str, code: int, as_json: bool, debug: bool) -> int:
    if debug and isinstance(error, Exception):
        traceback.print_exception(error)
    if as_json:
        _write_json({"ok": False, "exit_code": code, "error": _error_data(error)})
    else:
        sys.stderr.write(f"sparsebit: {printable(_one_screen(_error_text(error, debug)))}\n")
    return code


def _error_text(error: Exception | str, debug: bool) -> str:
    if isinstance(error, str | SparsebitError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or type(error).__name__}: {error.filename or error}"
    more = "" if debug else "\n  next: run it again with --debug to see where, and please report it"
    return f"unexpected {type(error).__name__}: {error}{more}"


def _error_data(error: Exception | str) -> dict[str, Any]:
    parts = ("where", "expected", "got", "hint")
    found = {name: value for name in parts if (value := getattr(error, name, None))}
    return {"type": type(error).__name__, "message": str(getattr(error, "message", error)), **found}


def _one_screen(text: str) -> str:
    """The head and the tail of a long message: the end says what to do next.

    Example:
        >>> len(_one_screen("a line\\n" * 99).splitlines()) == SCREEN
        True
    """
    lines = text.splitlines()
    if len(lines) <= SCREEN:
        return text
    left = SCREEN - 4
    return "\n".join(
        [*lines[:left], f"  … {len(lines) - left - 3} more lines; --debug shows all", *lines[-3:]]
    )


def _write_json(data: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


class _Interrupt:
    """Whether Ctrl-C was pressed, and whether it has to wait."""

    def __init__(self) -> None:
        self.seen = self.waits = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the block it waits: the import of torch swallows an interrupt, fails in another way, or aborts."""
        self.waits = True
        yield
        self.waits = False
        if self.seen:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _one_interrupt(interrupt: _Interrupt) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command once: another one during the cleanup only prints a message.

    After ``GRACE`` seconds, another one ends the command at once. A signal that is ignored, as in a background job of a
    shell, stays ignored. Only the main thread may install signal handlers.
    """
    last = -math.inf

    def stop(*_: object) -> None:
        nonlocal last
        if time.monotonic() - last < GRACE:
            sys.stderr.write("sparsebit: cleaning up, this takes a moment\n")
            return
        last, interrupt.seen = time.monotonic(), True
        if not interrupt.waits:
            raise KeyboardInterrupt

    def lost(unraisable: Any) -> None:
        """An interrupt in a callback that may raise nothing, such as that of a weak reference, is sent again.

        It is sent to the main thread, whose call that waits, as for a file, ends then and not by itself.
        """
        nonlocal last
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        last = -math.inf
        again.append(threading.Timer(0.1, signal.pthread_kill, [ident, signal.SIGINT]))
        again[-1].start()

    main, ident = threading.current_thread() is threading.main_thread(), threading.main_thread().ident
    signals = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.getsignal(number) for number in signals}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    hook, sys.unraisablehook = sys.unraisablehook, lost
    again: list[threading.Timer] = []
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _warnings_in_a_line(stream: TextIO) -> Iterator[None]:
    """Warnings and log messages as one line of text, without the line of our source."""

    def show(message: Warning | str, *_: object) -> None:
        stream.write(f"warning: {message}\n")

    logging.basicConfig(stream=stream, level=logging.WARNING, format="%(levelname)s: %(message)s")
    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield
