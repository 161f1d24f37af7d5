"""How many lines does the library take, by folder and kind, beside another commit?

    python -m benchmarks.lines.run --before COMMIT --output result.json

Reads both commits from git. Features that came after the earlier commit are listed in ``NEW``, each with the files that
serve it alone; all other lines are for features that were there before. A feature that is spread over older files
counts as there before, so that part is never made to look smaller than it is.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.environment import report

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "sparsebit/"
NEW = {
    "language models": (
        *("llm/", "config/llm/", "cli/llm.py", "report/of_language_model.py", "demo/language.py"),
    ),
    "GPU kernels and training memory": (
        *("kernels/", "quantization/quantizers/prepared_kernels.py", "quantization/quantizers/recomputed.py"),
        "quantization/training/weight_groups.py",
    ),
    "weights held as packed values": (
        *("numerics/packed.py", "numerics/packing.py", "quantization/quantizers/frozen.py"),
        "quantization/modules/freeze.py",
    ),
    "names and checkpoints of the 2022 toolkit": ("compat/",),
    "files written as a stream, killed processes, locks": (
        *("storage/tensor_file.py", "storage/drafts.py", "storage/locks.py", "storage/work_folder.py"),
    ),
    "files run in a process of their own": ("runtime/isolation.py", "runtime/child.py", "runtime/wire.py"),
    "several processes": ("processes.py", "quantization/training/sharded.py"),
    "three verbs": ("quantization/verb.py", "export/verb.py", "sparse/pruning.py"),
    "2:4 kernels, kept biases, the user's own class or config when pruned": (
        *("sparse/semi_structured.py", "sparse/shrink/biases.py", "sparse/shrink/pretrained.py"),
        "sparse/shrink/forms.py",
    ),
    "patterns and weights replaced in the graph": (
        *("graph/passes/replace_patterns.py", "graph/passes/fold_computed_weights.py"),
    ),
    "input sizes proven, names as text, capture in threads": (
        *("graph/capture/recording/prove_sizes.py", "graph/capture/call/input_size.py"),
        *("graph/capture/dynamic.py", "graph/codegen.py", "graph/exclusive.py"),
    ),
}


def read_library(commit: str) -> dict[str, str]:
    """The text of every Python file of the library in a commit, by its path inside the package."""
    packed = subprocess.run(
        ["git", "archive", commit, LIBRARY], cwd=ROOT, check=True, capture_output=True
    ).stdout
    files = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            held = archive.extractfile(member) if member.name.endswith(".py") else None
            if held is not None:
                files[member.name.removeprefix(LIBRARY)] = held.read().decode()
    return files


def count_kinds(text: str) -> Counter[str]:
    """Lines of a file by what they are: docstrings, imports, errors that are raised, other code, blank."""
    lines = text.splitlines()
    kinds = ["code" if line.strip() else "blank" for line in lines]

    def mark(node: ast.stmt, kind: str) -> None:
        last = node.end_lineno or node.lineno
        kinds[node.lineno - 1 : last] = [kind] * (last - node.lineno + 1)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            mark(node, "imports")
        elif isinstance(node, ast.Raise):
            mark(node, "raised errors")
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            mark(node.body[0], "docstrings")
    return Counter(kinds)


def feature_of(path: str) -> str | None:
    """The new feature that a file serves alone, or None."""
    return next((name for name, parts in NEW.items() if path.startswith(parts)), None)


def summarize(files: dict[str, str]) -> dict[str, Any]:
    """Lines by folder, by feature and by kind."""
    folders: Counter[str] = Counter()
    features: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {"there before": Counter(), "new": Counter()}
    for path, text in files.items():
        folder, _, rest = path.partition("/")
        found = count_kinds(text)
        folders[folder if rest else "(top)"] += found.total()
        feature = feature_of(path)
        features[feature or "there before"] += found.total()
        kinds["new" if feature else "there before"] += found
    return {
        "lines": folders.total(),
        "files": len(files),
        "folders": dict(sorted(folders.items())),
        "features": dict(features.most_common()),
        "kinds": {part: dict(sorted(found.items())) for part, found in kinds.items()},
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, help="the earlier commit")
    parser.add_argument("--now", default="HEAD", help="the later one")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = {}
    for name in ("before", "now"):
        commit = getattr(arguments, name)
        done = subprocess.run(
            ["git", "rev-parse", "--short", commit], cwd=ROOT, check=True, capture_output=True, text=True
        )
        result[name] = {"commit": done.stdout.strip(), **summarize(read_library(commit))}
    report(result, arguments.output)


if __name__ == "__main__":
    main()
