"""The peers' own tests against our functions, through thin adapters; their files are read from clones, never kept here.

Run from the repository root, with clones (or extracted archives) of the projects:
``python -m benchmarks.peers.tests.run --onnxruntime FOLDER --compressed-tensors FOLDER --pytorch FOLDER``
and ``--old-sparsebit FOLDER`` for the names of megvii-research/Sparsebit. torch's tests need the package expecttest.
A suite whose folder is not given keeps its last counts. A test that never calls one of our functions, or that fails
here without us too, is not applicable.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.environment import describe
from benchmarks.peers.tests.substitution import RECORD
from benchmarks.peers.tests.suite import Suite

ROOT = Path(__file__).resolve().parents[3]
ABOUT = (
    "The tests of onnxruntime, compressed-tensors and torch.fx run unchanged, with our functions in place of theirs. "
    "A test that calls none of our functions is not applicable. For torch.ao's pruning tests and torch.export's "
    "examples, the models are theirs and the assertions are repeated in `benchmarks/peers/tests`. The names of the "
    "2022 Sparsebit are imported from their old paths."
)
# What a failure means, found by reading it: by the end of the test's name, or by a part of what it said. Anything else
# is shown as the test said it.
FORM = "by design: the test expects another form of the graph; ours has flat outputs, and functions instead of methods"
SCRIPT = "by design: a captured graph cannot be compiled by TorchScript"
FIXED = "by design: an argument that is not a tensor is fixed, and another value is an error"
REFUSED = "both raise an error; the test expects torch's own exception"
ZERO_RANGE = "by design: for a range of zero our scale is 2**-20, theirs is 1.0"
TIE = "a tie: the zero point is 127.5; we round it down, they round it up, and both are equally exact"
EXPLAINED = {
    "test_compute_scale_zp": ZERO_RANGE,
    "TestMinimumRealRangeOption::test_default": ZERO_RANGE,
    "TestSymmetricFlag::test_3": TIE,
    "TestTensorQuantOverridesOption::test_qdq_default": TIE,
    "'tuple' object has no attribute": FORM,
    "bad operand type for unary -: 'tuple'": FORM,
    "'Node' object is not iterable": FORM,
    "Expected output_node.args[0] to be torch.fx.Node": FORM,
    "argument of type 'builtin_function_or_method' is not iterable": FORM,
    "test_script_method_trace": FORM,
    "test_pretty_print_node": FORM,
    "test_pretty_print_targets": FORM,
    "not found in '\\n\\n\\ndef forward(self, x) -> _Any_:": FORM,
    "Unknown type annotation: 'CaptureReport'": SCRIPT,
    "calls a method of a TorchBind object": "not supported without example inputs: a TorchBind object",
    "is fixed in the captured graph": FIXED,
    "Proxy object cannot be iterated": REFUSED,
    "tuple index out of range": REFUSED,
    "missing a required argument": REFUSED,
    "test_deepcopy_no_recursion": "a graph that contains itself in its own meta is copied twice",
    "draws random numbers": "by design: without example inputs, a model that draws random numbers is an error",
}
ONNXRUNTIME = "onnxruntime/test/python/quantization"
PACKING = "tests/test_compressors/quantized_compressors"
FX = "test/test_fx.py::TestFX"


def onnxruntime_suite(folder: Path, limit: float, pattern: str) -> Suite:
    tests = folder / ONNXRUNTIME if (folder / ONNXRUNTIME).is_dir() else folder
    suite = Suite(
        "onnxruntime quantization",
        f"{ONNXRUNTIME}, on onnxruntime {importlib.metadata.version('onnxruntime')}; our choice of scales, "
        "quantization and packing of 2, 4 and 8 bits stand in for theirs",
    )
    for file in sorted(tests.glob(pattern)):
        run_file(suite, file, tests, "onnxruntime_adapter", [str(tests)], limit)
    return suite


def compressed_tensors_suite(folder: Path, limit: float, pattern: str) -> Suite:
    suite = Suite(
        "compressed-tensors packing", f"{PACKING}; our packing into 32-bit words stands in for theirs"
    )
    generated = folder / "src/compressed_tensors/version.py"
    if not generated.is_file():  # made when the package is built, which an archive is not
        generated.write_text('__version__ = version = "0"\n', encoding="utf-8")
    paths = [str(folder / "src"), str(folder)]
    for file in sorted((folder / PACKING).glob(pattern)):
        run_file(suite, file, folder, "compressed_tensors_adapter", paths, limit)
    return suite


def fx_suite(folder: Path, limit: float) -> Suite:
    suite = Suite("torch.fx", f"{FX} of pytorch; sparsebit.capture stands in for torch.fx.symbolic_trace")
    tests = folder / FX
    run_file(suite, tests, tests.parent, "fx_adapter", [str(tests.parent)], limit)
    return suite


def run_file(suite: Suite, file: Path, root: Path, adapter: str, paths: list[str], limit: float) -> None:
    """One file of tests with our functions; those that fail once more without, to tell whose failure it is."""
    found = run_pytest([str(file)], root, adapter, paths, limit)
    suite.files[file.name.partition("::")[0]] = 0
    if found is None:
        suite.not_applicable[file.name] = "the file cannot be imported, or exceeds the time limit"
        return
    bad = [name for name, test in found.items() if test.get("outcome") == "failed"]
    alone = run_pytest([str(root / name) for name in bad], root, "recorder", paths, limit) if bad else {}
    for name, test in found.items():
        if test.get("outcome") == "skipped":
            suite.not_applicable[name] = f"skipped by the suite itself: {test['reason'][:80]}"
        elif not test.get("calls"):
            suite.not_applicable[name] = "calls no function that ours replaces"
        elif test.get("outcome") == "passed":
            suite.passed += 1
            suite.files[file.name.partition("::")[0]] += 1
        elif (alone or {}).get(name, {}).get("outcome") == "failed":
            suite.not_applicable[name] = "also fails with the original functions"
        else:
            said = test["reason"]
            explained = (text for key, text in EXPLAINED.items() if name.endswith(key) or key in said)
            suite.failed[name] = next(explained, said)


def run_pytest(
    names: list[str], root: Path, plugin: str, paths: list[str], limit: float
) -> dict[str, dict[str, Any]] | None:
    """Outcome, reason and calls of our functions by test; None where the run could not end."""
    with tempfile.TemporaryDirectory() as place:
        record = Path(place) / "record.json"
        environment = os.environ | {
            RECORD: str(record),
            "PYTHONPATH": os.pathsep.join(filter(None, [*paths, str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", f"benchmarks.peers.tests.{plugin}"]
        command += ["-p", "no:cacheprovider", "-W", "ignore", "--rootdir", str(root), *names]
        try:
            subprocess.run(
                command, env=environment, cwd=root, capture_output=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        found: dict[str, dict[str, Any]] = json.loads(record.read_text()) if record.is_file() else {}
        return found or None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--onnxruntime", type=Path, help="a clone, or its folder of quantization tests")
    parser.add_argument("--compressed-tensors", type=Path, help="a clone")
    parser.add_argument("--pytorch", type=Path, help="a clone")
    parser.add_argument("--old-sparsebit", type=Path, help="a clone of megvii-research/Sparsebit")
    parser.add_argument("--files", default="test_*.py", help="pattern; other files keep their last counts")
    parser.add_argument("--no-torch", action="store_true", help="leave out what needs no clone")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one file of tests")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "results" / "tests.json")
    options = parser.parse_args()
    suites: list[Suite] = []
    if not options.no_torch:
        from benchmarks.peers.tests.export_examples import run_export_examples
        from benchmarks.peers.tests.pruning_networks import run_pruning_networks

        suites += [run_pruning_networks(), run_export_examples()]
    if options.compressed_tensors:
        suites.append(
            compressed_tensors_suite(options.compressed_tensors.resolve(), options.limit, options.files)
        )
    if options.pytorch:
        suites.append(fx_suite(options.pytorch.resolve(), options.limit))
    if options.onnxruntime:
        suites.append(onnxruntime_suite(options.onnxruntime.resolve(), options.limit, options.files))
    if options.old_sparsebit:
        from benchmarks.peers.tests.old_names import run_old_names

        suites.append(run_old_names(options.old_sparsebit.resolve()))
    write(suites, options.output)
    for suite in suites:
        counts = (
            f"{suite.passed} passed, {len(suite.failed)} failed, {len(suite.not_applicable)} not applicable"
        )
        print(f"{suite.suite}: {counts}")
        for name, reason in suite.failed.items():
            print(f"  {name}: {reason}")


def write(suites: list[Suite], output: Path) -> None:
    """The counts as JSON; suites that did not run keep what they had."""
    before = json.loads(output.read_text(encoding="utf-8"))["suites"] if output.is_file() else []
    merged = {entry["suite"]: Suite(**entry) for entry in before}
    for suite in suites:
        if suite.suite in merged:
            suite.add_rest_of(merged[suite.suite])
        merged[suite.suite] = suite
    content = {
        "environment": describe(0, ("torch", "onnx", "onnxruntime")),
        "about": ABOUT,
        "suites": [asdict(suite) for suite in merged.values()],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
