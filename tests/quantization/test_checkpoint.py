"""Save and load: the same bits in another process, and nothing that cannot be trusted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from sparsebit.batches import Call
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QUANTIZERS, QuantModel, parse_qconfig
from sparsebit.quantization.modules.freeze import frozen_names
from sparsebit.quantization.quantizers import Frozen
from sparsebit.storage import ArtifactError
from tests.quantization.nets import CONFIGS, config, images, quantized, residual
from tests.storage.artifacts import edit_file, edit_manifest, file_of
from tests.zoo import ZOO, outputs_of

ROOT = Path(__file__).resolve().parents[2]


def tensors(folder: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in folder.iterdir()}


@pytest.mark.parametrize("method", ["empirical", "analytic"])
def test_a_loaded_model_is_calibrated_again_as_the_saved_one(method: str, tmp_path: Path) -> None:
    """What was added to biases is taken back first, and statistics are those of the batch norms that were folded."""
    steps = [{"bias_correction": {"method": method}}]
    settings = config(SCHEDULE={"FUSE_BN": True, "RECOVERY": steps}, W__QUANTIZER={"BIT": 3})
    qmodel = quantized(residual(), settings, images(8))
    qmodel.save(tmp_path / "saved", floats=True)
    loaded = QuantModel.load(tmp_path / "saved", residual(seed=1))
    for each in (qmodel, loaded):
        each.calibrate([images(8, seed=3)], progress=False)
    biases = [{n: p for n, p in each.named_parameters() if n.endswith("bias")} for each in (qmodel, loaded)]
    assert biases[0] and all(torch.equal(p, biases[1][n]) for n, p in biases[0].items())


@pytest.mark.parametrize("target", sorted(CONFIGS))
def test_a_round_trip_is_exact(target: str, tmp_path: Path) -> None:
    qmodel = quantized(residual(), CONFIGS[target])
    qmodel.save(tmp_path / "saved")
    assert {"sparsebit.json", "state", "example"} <= tensors(tmp_path / "saved")
    other = residual(seed=1)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    loaded = QuantModel.load(tmp_path / "saved", other)
    assert torch.equal(loaded(images()), qmodel(images()))
    assert loaded.plan == qmodel.plan and loaded.cfg == qmodel.cfg and str(loaded) == str(qmodel)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    qmodel.save(tmp_path / "floats", floats=True)
    loaded = QuantModel.load(tmp_path / "floats", other)
    assert torch.equal(loaded(images()), qmodel(images()))
    loaded.set_quant()
    qmodel.set_quant()
    assert torch.equal(loaded(images()), qmodel(images()))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize(("bits", "scheme", "most"), [
    (8, "per-channel-symmetric", 0.28), (8, "per-group-affine", 0.28), (4, "per-channel-symmetric", 0.16),
    (4, "per-group-symmetric", 0.16), (4, "per-group-affine", 0.16),
])  # fmt: skip
def test_quantized_weights_are_written_as_codes(bits: int, scheme: str, most: float, tmp_path: Path) -> None:
    def build(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)]
        return torch.nn.Sequential(*layers).eval()

    group = {"GROUP_SIZE": 64} if "group" in scheme else {}
    settings = {
        "BACKEND": "virtual",
        "W": {"QSCHEME": scheme, **group, "QUANTIZER": {"TYPE": "uniform", "BIT": bits}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "uniform", "BIT": 8}},
    }
    x = torch.randn(2, 512)
    qmodel = QuantModel(build(0), settings, example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    qmodel.save(tmp_path / "floats", floats=True)
    in_float = sum(p.numel() * 4 for p in build(0).parameters())
    expected = qmodel(x)
    for frozen in (False, True):
        if frozen:
            qmodel.freeze()
        qmodel.save(tmp_path / "codes")
        assert size_of(tmp_path / "codes") <= most * in_float
        loaded = QuantModel.load(tmp_path / "codes", build(1))
        assert torch.equal(loaded(x), expected)
        assert bool(frozen_names(loaded.model)) == frozen
    loaded.thaw()
    with pytest.warns(
        UserWarning, match=r"calibration starts from weights that are already quantized.*floats=True"
    ):
        loaded.calibrate([x], progress=False)


def test_a_model_in_training_keeps_its_floats(tmp_path: Path) -> None:
    qmodel = quantized(residual())
    qmodel.init_QAT()
    qmodel.save(tmp_path / "saved")
    loaded = QuantModel.load(tmp_path / "saved", residual(seed=1))
    for name, parameter in qmodel.model.named_parameters():
        assert torch.equal(loaded.model.get_parameter(name), parameter)


def learned(kind: str) -> QuantModel:
    settings = config()
    for side in ("W", "A"):
        settings[side] = {**settings[side], "QUANTIZER": {"TYPE": kind, "BIT": 8}}
    qmodel = quantized(residual(), settings)
    qmodel.init_QAT()
    return qmodel


@pytest.mark.parametrize("kind", ["lsq", "lsq+"])
def test_a_scale_that_training_pushed_below_zero_comes_back(kind: str, tmp_path: Path) -> None:
    qmodel = learned(kind)
    for quantizer in qmodel.quantizers.values():
        quantizer.scale.data.neg_()
    qmodel.save(tmp_path / "saved")
    assert torch.equal(QuantModel.load(tmp_path / "saved", residual(seed=1))(images()), qmodel(images()))


def test_a_grid_that_would_not_load_is_not_saved(tmp_path: Path) -> None:
    qmodel = learned("lsq")
    next(iter(qmodel.quantizers.values())).scale.data.fill_(torch.nan)
    with pytest.raises(SparsebitError, match="cannot be saved") as error:
        qmodel.save(tmp_path / "saved")
    assert "finite scales above 0" in str(error.value) and not (tmp_path / "saved").exists()


def test_damaged_codes_are_refused(tmp_path: Path) -> None:
    qmodel = quantized(residual())
    qmodel.freeze()
    held = next(q for q in qmodel.quantizers.values() if isinstance(q, Frozen))
    held.packed = held.packed[:-1]
    qmodel.save(tmp_path / "saved")
    with pytest.raises(ArtifactError, match=r"does not fit this model: the weight '.*' has another size"):
        QuantModel.load(tmp_path / "saved", residual(seed=1))
    with pytest.raises(SparsebitError, match=r"takes a torch.nn.Module\n +got: a NoneType"):
        QuantModel.load(tmp_path / "saved", None)  # type: ignore[arg-type]


# Weights under one name and two, recurrent ones, running statistics, keywords, functions torch does not name.
@pytest.mark.parametrize(
    "name",
    [
        *("nasty_tied_embedding", "nasty_called_twice", "lstm_classifier", "nasty_nested_input"),
        *("hf_llama_eager", "nasty_autograd_function", "nasty_scripted_function", "nasty_root_parameters"),
        *("nasty_plain_tensor_attribute", "nasty_unregistered_modules", "nasty_non_persistent_buffer"),
    ],
)
def test_unusual_models(name: str, tmp_path: Path) -> None:
    entry = ZOO[name]
    args, kwargs = entry.inputs(2)
    qmodel = QuantModel(entry.make(), config(SCHEDULE={}), args, kwargs)
    qmodel.prepare_calibration()
    qmodel(*args, **kwargs)
    qmodel.calc_qparams()
    qmodel.set_quant(w_quant=True, a_quant=True)
    qmodel.save(tmp_path / "saved")
    torch.manual_seed(1)
    loaded = QuantModel.load(tmp_path / "saved", entry.make())
    args, kwargs = entry.inputs(3)
    with torch.no_grad():
        pairs = zip(outputs_of(loaded(*args, **kwargs)), outputs_of(qmodel(*args, **kwargs)), strict=True)
        assert all(torch.equal(got, expected) for got, expected in pairs)
    assert len(list(loaded.parameters())) == len(list(qmodel.parameters())), "a tie was lost"


@pytest.mark.parametrize("kind", sorted(QUANTIZERS))
def test_every_quantizer_comes_back(kind: str, tmp_path: Path) -> None:
    settings = config(SCHEDULE={"FUSE_BN": True})
    for side in ("W", "A"):
        changed = {**settings, side: {**settings[side], "QUANTIZER": {"TYPE": kind, "BIT": 8}}}
        try:
            settings = parse_qconfig(changed).to_dict()
        except SparsebitError:
            continue
    if kind == "adaround":
        settings = parse_qconfig(settings).to_dict()
        pytest.skip("its reconstruction has tests of its own")
    qmodel = quantized(residual(), settings)
    qmodel.save(tmp_path / "saved")
    loaded = QuantModel.load(tmp_path / "saved", residual(seed=1))
    assert torch.equal(loaded(images()), qmodel(images()))


def test_switches_bits_and_fusions_come_back(tmp_path: Path) -> None:
    qmodel = quantized(on=False)
    qmodel.model.fc.weight_quantizer.set_bit(4)
    qmodel.model.conv2.input_quantizer.set_fake_fused()
    qmodel.calibrate([images()], progress=False)
    qmodel.set_quant(w_quant=True)
    qmodel.save(tmp_path / "saved")
    loaded = QuantModel.load(tmp_path / "saved", residual(seed=1))
    assert loaded.model.fc.weight_quantizer.bit == 4 and loaded.model.conv2.input_quantizer.fake_fused
    assert {n: q.is_enable for n, q in loaded.quantizers.items()} == {
        n: q.is_enable for n, q in qmodel.quantizers.items()
    }
    assert torch.equal(loaded(images()), qmodel(images()))


def test_an_uncalibrated_model_and_a_traced_one(tmp_path: Path) -> None:
    QuantModel(residual(), config()).save(tmp_path / "traced")
    loaded = QuantModel.load(tmp_path / "traced", residual(seed=1))
    torch.testing.assert_close(loaded(images()), residual()(images()), rtol=1e-4, atol=1e-5)
    loaded.calibrate([images()], progress=False)
    assert all(quantizer.is_enable for quantizer in loaded.quantizers.values())


PROGRAM = """
import sys, torch
from sparsebit.quantization import QuantModel
from tests.quantization.nets import images, residual
from tests.storage.artifacts import edit_manifest, file_of
from tests.zoo import ZOO
torch.set_num_threads(1)
loaded = QuantModel.load(sys.argv[1] + "/net", residual(seed=1))
odd = QuantModel.load(sys.argv[1] + "/odd", ZOO["nasty_autograd_function"].make())
x = ZOO["nasty_autograd_function"].inputs(2)[0]
torch.save([loaded(images()), odd(*x)], sys.argv[1] + "/output.pt")
"""


def test_another_process_gets_the_same_bits(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    qmodel = quantized()
    qmodel.save(tmp_path / "net")
    entry = ZOO["nasty_autograd_function"]
    odd = QuantModel(entry.make(), config(), *entry.inputs(2))
    odd.save(tmp_path / "odd")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    net, other = torch.load(tmp_path / "output.pt", weights_only=True)
    assert torch.equal(net, qmodel(images())) and torch.equal(other, odd(*entry.inputs(2)[0]))


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    quantized().save(tmp_path / "saved")
    return tmp_path / "saved"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "sparsebit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


def test_another_model_is_refused(saved: Path) -> None:
    class Wider(type(residual())):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 6)

    for other in (Wider().eval(), nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), nn.Flatten()):
        with pytest.raises(
            ArtifactError,
            match=r"saved from another model(.|\n)*a Residual(.|\n)*when it was saved(.|\n)*--pruned FOLDER",
        ):
            QuantModel.load(saved, other)


@pytest.mark.parametrize("name", ["state", "example", "sparsebit.json"])
@pytest.mark.parametrize("cut", [0, 40, -3])
def test_a_truncated_file_is_refused(saved: Path, name: str, cut: int) -> None:
    path = saved / name if name == "sparsebit.json" else file_of(saved, name)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ArtifactError, match=rf"{name}(.|\n)*again"):
        QuantModel.load(saved, residual())


def test_a_changed_file_is_refused(saved: Path) -> None:
    data = bytearray(file_of(saved, "state").read_bytes())
    data[-3] ^= 1
    file_of(saved, "state").write_bytes(data)
    with pytest.raises(ArtifactError, match="truncated or was changed"):
        QuantModel.load(saved, residual())


def test_a_newer_format_is_refused(saved: Path) -> None:
    edit(saved, version=99, content={"unheard": "of"})
    with pytest.raises(ArtifactError, match=r"newer sparsebit(.|\n)*upgrade"):
        QuantModel.load(saved, residual())


def test_an_edited_config_is_refused(saved: Path) -> None:
    content = json.loads((saved / "sparsebit.json").read_text())["content"]
    content["config"]["W"]["QUANTIZER"]["BIT"] = 4
    edit(saved, content=content)
    with pytest.raises(ArtifactError, match="changed after it was saved"):
        QuantModel.load(saved, residual())


def test_what_cannot_be_saved_says_so(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor, how: Any = None) -> Tensor:
            y: Tensor = self.fc(x)
            return y

    x = torch.randn(2, 4)
    qmodel = quantized(Odd().eval(), None, x)
    qmodel.inputs.example = Call((x, object()))
    qmodel.save(tmp_path / "saved")
    with pytest.raises(ArtifactError, match=r"example inputs(.|\n)*example_inputs="):
        QuantModel.load(tmp_path / "saved", Odd().eval())
    loaded = QuantModel.load(tmp_path / "saved", Odd().eval(), example_inputs=(x,))
    assert torch.equal(loaded(x), qmodel(x))


def test_a_folder_from_a_machine_with_a_gpu_loads_on_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = quantized()
    saved.cfg = saved.cfg.settle_device(lambda: 0)
    object.__setattr__(saved.cfg, "DEVICE", "cuda:7")
    saved.save(tmp_path / "q")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert QuantModel.load(tmp_path / "q", residual()).cfg.DEVICE == "cpu"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("floats", [False, True])
def test_models_in_other_precisions_are_saved(
    tmp_path: Path, dtype: torch.dtype, converted: bool, floats: bool
) -> None:
    x = images().to(dtype)
    saved = quantized().to(dtype) if converted else quantized(residual().to(dtype), None, x)
    saved.save(tmp_path / "q", floats=floats)
    loaded = QuantModel.load(tmp_path / "q", residual().to(dtype))
    assert torch.equal(loaded(x), saved(x)) and loaded(x).dtype == dtype


# -- what a damaged folder says -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scale: scale * torch.nan, "finite scales above 0"),
        (lambda scale: scale * torch.inf, "finite scales above 0"),
        (lambda scale: scale * 0, "finite scales above 0"),
        (lambda scale: -scale, "finite scales above 0"),
        (lambda scale: scale.double(), "in float32, or all in float64"),
        (lambda scale: scale.half(), "in float32, or all in float64"),
        (lambda scale: scale[:0], "a zero point for each scale"),
    ],
)
def test_scales_that_no_calibration_gives_are_refused(saved: Path, change: Any, message: str) -> None:
    state = load_file(file_of(saved, "state"))
    key = next(name for name in state if name.endswith("scale"))
    state[key] = change(state[key])
    edit_file(saved, "state", save(state))
    with pytest.raises(ArtifactError, match=message):
        QuantModel.load(saved, residual())


def test_a_zero_point_of_packed_values_has_their_type(saved: Path) -> None:
    state = load_file(file_of(saved, "state"))
    key = next(name for name in state if name.endswith("weight_quantizer.zero_point"))
    edit_file(saved, "state", save(state | {key: state[key].to(torch.complex64)}))
    with pytest.raises(ArtifactError, match="has another type"):
        QuantModel.load(saved, residual())


@pytest.mark.parametrize(
    "key", ["use_quant", "qat", "tuned", "training", "aliases", "packed", "graph", "plan", "config"]
)
@pytest.mark.parametrize("value", [None, [1], {"a": 1}])
def test_fields_of_another_type_are_our_error(saved: Path, key: str, value: Any) -> None:
    edit_manifest(saved, lambda manifest: manifest["content"].update({key: value}))
    with pytest.raises(SparsebitError):
        QuantModel.load(saved, residual())


def test_a_model_is_saved_in_inference_mode(tmp_path: Path) -> None:
    qmodel = quantized(residual(), config())
    with torch.inference_mode():
        qmodel.save(tmp_path / "saved")
    assert torch.equal(QuantModel.load(tmp_path / "saved", residual())(images()), qmodel(images()))
