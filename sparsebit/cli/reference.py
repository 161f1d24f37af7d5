"""Objects of the user's own code by name: ``file.py:name`` and ``package.module:name``."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from sparsebit.cli.command import UsageError
from sparsebit.errors import SparsebitError, with_article


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference.

    Example:
        >>> is_reference("net.py:make"), is_reference("images/"), is_reference("data.npz")
        (True, False, False)
    """
    module, colon, name = text.rpartition(":")
    return bool(colon and module) and all(part.isidentifier() for part in name.split("."))


def resolve(reference: str, kind: str) -> Any:
    """The object that ``file.py:name`` or ``package.module:name`` refers to.

    Args:
        reference: the given text.
        kind: what it is for, for the message: "model", "data".
    """
    place, name = require_reference(reference, kind)
    found: Any = import_code(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise _missing(dir(found), part, place, kind)
        found = getattr(found, part)
    return found


def import_code(place: str) -> ModuleType:
    """The module of ``file.py`` or ``package.module``."""
    return _load_file(place) if place.endswith(".py") else _load_module(place)


def resolve_function(reference: str, kind: str) -> Callable[..., Any]:
    """The function that a reference names; errors inside it are reported as errors of that function."""
    found = resolve(reference, kind)
    if not callable(found):
        raise UsageError(f"{reference!r} is not a function", got=with_article(type(found).__name__))

    def called(*args: Any) -> Any:
        with blamed_on(f"the {kind} {reference!r}"):
            return found(*args)

    return called


def require_reference(reference: str, kind: str) -> tuple[str, str]:
    """The place and name of a reference, after checking that the place exists; nothing is imported."""
    if not is_reference(reference):
        raise UsageError(
            f"cannot tell which {kind} {reference!r} means",
            expected=f"{kind} as file.py:name or package.module:name",
            hint=_advice(reference),
        )
    place, _, name = reference.rpartition(":")
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise UsageError(f"no such file: {place}", hint=f"looked in {Path.cwd()}")
        _require_mention(place, name.partition(".")[0], kind)
    return place, name


def _require_mention(place: str, name: str, kind: str) -> None:
    """Raise an error if a file does not contain a name and cannot define it indirectly."""
    try:
        text = Path(place).read_text(encoding="utf-8")
        defined = [
            node.name
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
    except (OSError, ValueError, SyntaxError):  # the import itself says where and why
        return
    if not re.search(rf"\b{re.escape(name)}\b|import \*|__getattr__|globals|exec|setattr", text):
        raise _missing(defined, name, place, kind)


def call(function: Callable[[], Any], reference: str, kind: str) -> Any:
    """Call the object of a reference; a failure names the line of the user's code."""
    try:
        with blamed_on(f"the {kind} {reference!r}"):
            return function()
    except UsageError as error:
        if "required positional argument" not in error.message:
            raise
        hint = "name a function without required arguments, such as one that calls this with its arguments"
        raise UsageError(error.message, where=error.where, hint=hint) from error.__cause__


@contextlib.contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Errors inside the block are reported as mistakes in the user's code or data, with the failing line."""
    try:
        yield
    except SparsebitError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{what} failed: {type(error).__name__}: {error}",
            where=_last_line(error),
            hint="--debug shows the whole traceback",
        ) from error


def _advice(text: str) -> str:
    if text.endswith((".pt", ".pth", ".ckpt", ".safetensors", ".bin")):
        return "a weights file contains no code: name the code that builds the model, and add --weights FILE"
    if text.endswith(".py"):
        return f"say which object in the file: {text}:name"
    return "for example net.py:make_model, or torchvision.models:resnet18"


def _load_file(place: str) -> ModuleType:
    path = Path(place).resolve()
    # Imported under a separate name: a user's `torch.py` must not replace torch for other code.
    name = f"sparsebit_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as for a script, so that it can import modules beside it
    try:
        call(lambda: loader.exec_module(module), place, "file")
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(place: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with blamed_on(f"the module {place!r}"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not (place + ".").startswith(error.name + "."):
                raise UsageError(f"{place!r} imports {error.name!r}, which is not installed") from error
            hint = "write the file with its ending: net.py:make_model"
            raise UsageError(f"no module named {error.name!r}", hint=hint) from error


def _missing(known: Sequence[str], name: str, place: str, kind: str) -> UsageError:
    names = [public for public in known if not public.startswith("_")]
    near = get_close_matches(name, names, n=1)
    there = f"there are: {', '.join(names[:12])}" if names else None
    hint = f"did you mean {near[0]!r}?" if near else there
    return UsageError(f"{place} has no {kind} named {name!r}", hint=hint)


def _last_line(error: BaseException) -> str | None:
    """The line of the user's code that raised the error, or else of an installed package."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    ours = str(Path(__file__).parents[1])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(ours)
    ]
    users = [frame for frame in frames if "site-packages" not in frame.filename]
    last = next(reversed(users or frames), None)
    return f"{last.filename}:{last.lineno}" if last else None
