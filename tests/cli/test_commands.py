"""Each command on a user's own model: what it writes, what it says, and the way from one to the next."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from sparsebit.__main__ import main
from sparsebit.quantization import QuantModel
from sparsebit.sparse import load as load_pruned
from tests.cli.conftest import Cli, left_behind

pytest.importorskip("onnxruntime")

DATA = ("--data", "net.py:batches")


def test_capture_shows_nodes_and_writes_a_drawing(cli: Cli, place: Path) -> None:
    done = cli("capture", "net.py:make", "--input", "2x3x8x8", "--output", "graph.mmd")
    assert done.code == 0 and "features_0" in done.out and "operators known" in done.out
    assert Path("graph.mmd").read_text().startswith("flowchart TB")
    data = cli("capture", "net.py:make", "--input", "2x3x8x8", "--simplify", "--json").data
    assert [node["op"] for node in data["nodes"]] == [
        "placeholder",
        "conv2d",
        "relu",
        "conv2d",
        "relu",
        "mean",
        "linear",
        "output",
    ]
    assert data["cost"]["params"] > 0
    assert cli("capture", "net.py:make", "--frontend", "symbolic").code == 0
    assert cli("capture", "net.py:make", "--input", "2x3x8x8", "-o", "graph.xyz").code == 2


def test_a_model_that_fails_on_the_input_is_the_users_mistake(cli: Cli) -> None:
    done = cli("capture", "net.py:make", "--input", "2x1x8x8")
    assert done.code == 2 and "Traceback" not in done.err
    assert len(done.err.splitlines()) < 24


def test_the_way_from_quantize_to_bench(cli: Cli, place: Path) -> None:
    words = ("--config", "int8_onnxruntime", "--set", "A.OBSERVER.TYPE=minmax", "--test", "net.py:batches")
    data = cli("quantize", "net.py:make", *DATA, *words, "--report", "r.html", "-o", "int8", "--json").data
    assert data["ok"] and len(data["weights"]) == 3 and len(data["accuracy"]) == 2
    assert "net.py:make was quantized" in Path("r.html").read_text()
    profile = cli("profile", "net.py:make", "--quantized", "int8", *DATA, "--sort", "sqnr")
    assert profile.code == 0 and "features.0" in profile.out
    assert {
        layer["name"]
        for layer in cli("profile", "net.py:make", "--quantized", "int8", *DATA, "--json").data["layers"]
    }
    done = cli("export", "net.py:make", "--quantized", "int8", *DATA, "-o", "int8.onnx", "--json")
    assert done.data["check"]["problems"] == [] and Path("int8.onnx").stat().st_size == done.data["bytes"]
    assert cli("export", "net.py:make", "--input", "2x3x8x8", "-o", "float.onnx").code == 0
    assert cli("check", "int8.onnx", "net.py:make", "--quantized", "int8", *DATA).code == 0
    assert cli("check", "float.onnx", "net.py:make", "--input", "2x3x8x8").code == 0
    rows = cli("bench", "float.onnx", "int8.onnx", "--seconds", "0.02", "--threads", "1", "--json").data[
        "rows"
    ]
    assert [row["what"] for row in rows] == ["float.onnx", "int8.onnx"] and rows[0]["speedup"] == 1
    assert cli("bench", "net.py:make", "int8.onnx", *DATA, "--batch", "4", "--seconds", "0.02").code == 0
    assert left_behind(place) == []


def test_check_finds_a_file_of_other_weights(cli: Cli, place: Path) -> None:
    torch.manual_seed(9)
    torch.save(torch.nn.Module.state_dict(_other()), "other.pt")
    assert (
        cli("export", "net.py:make", "--weights", "other.pt", "--input", "2x3x8x8", "-o", "other.onnx").code
        == 0
    )
    done = cli("check", "other.onnx", "net.py:make", "--input", "2x3x8x8")
    assert done.code == 1 and "DIFFERS" in done.out


def _other() -> torch.nn.Module:
    from sparsebit.cli.model import load_model

    return load_model("net.py:Net")


def test_pruned_models_go_on_to_quantization(cli: Cli, place: Path) -> None:
    data = cli(
        "prune", "net.py:make", "--input", "2x3x8x8", "--set", "SPARSER.RATIO=0.5", "-o", "small", "--json"
    ).data
    assert data["params"][1] < data["params"][0]
    small = load_pruned("small", _other())
    assert sum(p.numel() for p in small.parameters()) == data["params"][1]
    assert cli("quantize", "net.py:make", "--pruned", "small", *DATA, "-o", "both").code == 0
    assert isinstance(QuantModel.load("both", small), QuantModel)
    done = cli("export", "net.py:make", "--pruned", "small", "--quantized", "both", *DATA, "-o", "both.onnx")
    assert done.code == 0, done.err


def test_pruning_by_gradients_takes_a_loss(cli: Cli, place: Path) -> None:
    Path("p.yaml").write_text("SPARSER: {TYPE: structured, STRATEGY: taylor, RATIO: 0.5}\n")
    words = ("--config", "p.yaml", "--test", "net.py:batches")
    assert (
        cli(
            "prune", "net.py:make", *DATA, *words, "--loss", "torch.nn.functional:cross_entropy", "-o", "a"
        ).code
        == 0
    )
    assert cli("prune", "net.py:make", *DATA, *words, "--loss", "net.py:unlabelled", "-o", "b").code == 2
    assert not Path("b").exists()


def test_a_metric_of_the_users_own(cli: Cli) -> None:
    words = ("--test", "net.py:batches", "--metric", "net.py:first_logit")
    assert cli("quantize", "net.py:make", *DATA, *words, "-o", "int8").code == 0
    done = cli("quantize", "net.py:make", *DATA, "--test", "net.py:unlabelled", "-o", "int8")
    assert done.code == 2 and "no labels" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--config", "int9"), "no such preset or file"),
        (("--set", "W.QUANTIZER.BITT=4"), "did you mean 'BIT'?"),
        (("--set", "W.QUANTIZER.BIT"), "KEY=VALUE"),
        (("--weights", "gone.pt"), "no such file of weights"),
        (("--pruned", "gone"), "no such folder: gone"),
        (("--batches", "0"), "expected 1 or more"),
        (("--frobnicate",), "sparsebit quantize --help"),
        (("--set", "DEVICE=tpu"), "there is no device 'tpu' here"),
        (("--report", "net.py/r.html"), "is a file"),
        (("--report", "out"), "both name out"),
        (("--metric", "net.py:first_logit"), "add --test DATA"),
        (("--test", "net.py:batches", "--metric", "net.py:words"), "is not a function"),
        (("--test", "net.py:batches", "--metric", "net.py:no_number"), "could not convert string to float"),
        (("--test", "net.py:batches", "--metric", "net.py:not_a_number"), "the metric is not a number"),
        (("--test", "net.py:foreign_labels"), "there is a label 9"),
        (("--test", "net.py:too_few_labels"), "labels do not fit the outputs"),
    ],
)
def test_mistakes_are_told_before_any_work(
    cli: Cli, place: Path, words: tuple[str, ...], message: str
) -> None:
    done = cli("quantize", "net.py:make", *DATA, "-o", "out", *words)
    assert done.code == 2 and message in done.err and done.out == ""
    assert not Path("out").exists() and left_behind(place) == []


def test_a_folder_with_other_things_is_left_alone(cli: Cli, place: Path) -> None:
    Path("mine").mkdir()
    Path("mine", "thesis.txt").write_text("years of work")
    done = cli("quantize", "net.py:make", *DATA, "-o", "mine")
    assert done.code == 2 and "holds something else" in done.err
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


def test_profile_needs_a_quantized_model(cli: Cli) -> None:
    assert cli("profile", "net.py:make", *DATA).code == 2


def test_schemas_and_presets(cli: Cli, place: Path) -> None:
    assert "$defs" in json.loads(cli("schema").out)
    assert cli("schema", "pruning", "--json").data["schema"]["title"] == "Sparsebit pruning config"
    assert cli("schema", "w4a8", "-o", "mine.yaml").code == 0
    assert cli("quantize", "net.py:make", *DATA, "--config", "mine.yaml", "-o", "w4").code == 0


def test_what_is_no_onnx_file_is_refused(cli: Cli, place: Path) -> None:
    Path("bad.onnx").write_text("hello")
    for words in (
        ("bench", "bad.onnx"),
        ("bench", "gone.onnx"),
        ("check", "bad.onnx", "net.py:make", "--input", "2x3x8x8"),
    ):
        done = cli(*words)
        assert done.code == 2, done
    assert cli("bench", "net.py:make").code == 2


def test_compress_finds_says_and_resumes(cli: Cli, place: Path) -> None:
    words = ("compress", "net.py:make", *DATA, "--max-drop", "0.5", "--size", "0.5", "--time-budget", "60")
    done = cli(*words, "-o", "found", "--report", "r.html", "--json")
    assert done.code == 0 and done.data["met"] and "QUANTIZE" in done.data["recipe"], done.err
    assert Path("found", "recipe.yaml").is_file() and "recipe.yaml" in Path("r.html").read_text()
    again = cli(*words, "-o", "found")
    assert again.code == 2 and "--resume" in again.err
    resumed = cli(*words, "-o", "found", "--resume", "--json")
    assert resumed.code == 0 and resumed.data["best"]["name"] == done.data["best"]["name"]
    exported = cli("export", "net.py:make", "--quantized", "found/quantized", *DATA, "-o", "found.onnx")
    assert exported.code == 0, exported.err
    assert left_behind(place) == []


def test_compress_refuses_to_promise(cli: Cli) -> None:
    words = ("compress", "net.py:make", *DATA, "--max-drop", "0", "--size", "0.001", "--time-budget", "1")
    done = cli(*words, "-o", "found", "--json")
    assert done.code == 1 and not done.data["met"] and done.data["limits"]
    assert cli("compress", "net.py:make", *DATA, "--size", "-1", "-o", "other").code == 2


def test_long_recovery_goes_on_where_it_stopped(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "quantize",
        "net.py:make",
        *DATA,
        "--config",
        "w4a8",
        "--set",
        "SCHEDULE.RECOVERY=[{adaround: {steps: 5}}]",
    )
    save = QuantModel.save
    monkeypatch.setattr(QuantModel, "save", _interrupted)
    assert cli(*words, "-o", "out").code == 130
    assert not Path("out").exists() and Path(".out.steps").is_dir()
    monkeypatch.setattr(QuantModel, "save", save)
    done = cli(*words, "-o", "out", "--resume")
    assert done.code == 0, done.err
    assert Path("out").is_dir() and left_behind(place) == []


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("quantize", "net.py:make", "--data", "net.py:breaks_off", "-o", "x"), "OSError: the disk is gone"),
        (("quantize", "net.py:make", "--data", "net.py:changes_shape", "-o", "x"), "expected input"),
        (("quantize", "net.py:make", *DATA, "--test", "net.py:changes_shape", "-o", "x"), "expected input"),
        (("bench", "net.py:make", "--input", "1x4x8x8"), "called with this input, failed"),
        (("quantize", "net.py:leaves", *DATA, "-o", "x"), "failed: SystemExit: 7"),
        (("compress", "net.py:make", *DATA, "-o", "x", "--finetune", "net.py:words"), "is not a function"),
        (("compress", "net.py:make", *DATA, "-o", "x", "--max-drop", "nan"), "0 or more"),
        (("compress", "net.py:make", *DATA, "-o", "x", "--metric", "net.py:not_a_number"), "is not a number"),
    ],
)
def test_failures_of_the_users_data_are_not_called_bugs(
    cli: Cli, words: tuple[str, ...], message: str
) -> None:
    done = cli(*words)
    assert done.code == 2 and message in done.err, done
    assert not Path("x").exists()


def test_what_the_users_code_prints_is_no_part_of_the_json(cli: Cli) -> None:
    done = cli("capture", "net.py:talkative", "--input", "2x3x8x8", "--json")
    assert done.data["ok"] and "hello from the factory" in done.err


def test_an_error_in_finetuning_is_the_users_to_see(cli: Cli) -> None:
    done = cli(
        "compress", "net.py:make", *DATA, "--finetune", "net.py:broken_training", "--size", "0.05", "-o", "x"
    )
    assert done.code == 2 and "the function 'net.py:broken_training' failed: ZeroDivisionError" in done.err


def test_a_file_is_fed_by_order_and_by_name(cli: Cli, place: Path) -> None:
    assert cli("export", "net.py:make", "--input", "2x3x8x8", "-o", "f.onnx").code == 0
    assert cli("bench", "f.onnx", "--input", "images=2x3x8x8", "--seconds", "0.01").code == 0
    done = cli("bench", "f.onnx", "--input", "2x3x8x8", "--input", "2x3")
    assert done.code == 2 and "do not fit f.onnx" in done.err
    done = cli("check", "f.onnx", "torch.nn:Identity", "--input", "2x3x8")
    assert done.code == 2, done


def test_a_failed_export_leaves_the_file_that_was_there(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("export", "net.py:make", "--input", "2x3x8x8", "-o", "f.onnx")
    assert cli(*words).code == 0
    good = Path("f.onnx").read_bytes()
    monkeypatch.setattr(sys.modules["sparsebit.export.onnx_export"], "_check", _interrupted)
    assert cli(*words, "--weights", "none.pt").code == 2
    assert cli(*words).code == 130
    assert Path("f.onnx").read_bytes() == good and left_behind(place) == []


def test_dynamic_axes_can_be_typed(cli: Cli, place: Path) -> None:
    import onnx

    words = ("export", "net.py:make", "--input", "2x3x8x8", "-o", "f.onnx")
    assert cli(*words, "--dynamic", "images=0,2").code == 0
    dims = onnx.load("f.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["batch", 3, "axis_2", 8]
    wrong = cli(*words, "--dynamic", "images=first")
    assert wrong.code == 2 and "expected NAME=AXES such as input_ids=0,1" in wrong.err
    assert "not an input or output" in cli(*words, "--dynamic", "image=0").err
    extra = cli("export", "net.py:make", "--input", "2x3x8x8", "--input", "2x3x8x8", "-o", "g.onnx")
    assert extra.code == 2 and "does not fit" in extra.err


TWO_INPUTS = """
import torch
from torch import nn


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(2, 8)

    def forward(self, image, meta):
        return self.a(image) + self.b(meta)


pairs = [(torch.randn(4, 4), torch.randn(4, 2)) for _ in range(2)]
"""


def test_a_model_with_two_inputs(cli: Cli, place: Path) -> None:
    """Batches of (image, meta) without labels work; one input is the same message everywhere."""
    Path("two.py").write_text(TWO_INPUTS)
    assert cli("quantize", "two.py:Two", "--data", "two.py:pairs", "-o", "q").code == 0
    assert cli("bench", "two.py:Two", "--data", "two.py:pairs", "--batch", "3", "--seconds", "0.01").code == 0
    for words in (("export", "-o", "x.onnx"), ("bench",), ("capture",), ("prune", "-o", "p")):
        done = cli(words[0], "two.py:Two", "--input", "2x4", *words[1:])
        assert (
            done.code == 2 and "the input does not fit Two: missing a required argument: 'meta'" in done.err
        )
        assert "forward(image, meta)" in done.err and "--input NAME=SHAPE" in done.err


def test_a_folder_of_another_model_is_named(cli: Cli, place: Path) -> None:
    Path("two.py").write_text(TWO_INPUTS)
    assert cli("quantize", "two.py:Two", "--data", "two.py:pairs", "-o", "q").code == 0
    done = cli("export", "net.py:make", "--quantized", "q", "--input", "2x3x8x8", "-o", "x.onnx")
    assert done.code == 2 and "'q' was saved from another model" in done.err
    assert "expected: a Two" in done.err and "got:      a Net" in done.err


def test_help_of_pruning_shows_a_key_that_pruning_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prune", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "such as SPARSER.RATIO=0.3" in text and "such as W.QUANTIZER.BIT" not in text
