"""What the example scripts of the old toolkit do, step by step and without ``example_inputs``, on tiny models."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparsebit.compat  # noqa: F401  # the one line that is new in them
from sparsebit.quantization import QuantModel, parse_qconfig
from sparsebit.sparse import SparseModel, parse_sconfig

PTQ = """
BACKEND: {backend}
SCHEDULE: {{FUSE_BN: True}}
W: {{QSCHEME: per-channel-symmetric, QUANTIZER: {{TYPE: uniform, BIT: 8}}, OBSERVER: {{TYPE: MINMAX}}}}
A:
  QSCHEME: per-tensor-{symmetry}
  QUANTIZER: {{TYPE: uniform, BIT: 8}}
  OBSERVER: {{TYPE: MINMAX, LAYOUT: {layout}}}
  {more}
"""
QAT = """
BACKEND: virtual
W: {{QSCHEME: per-channel-symmetric, QUANTIZER: {{TYPE: {w}, BIT: 4}}}}
A: {{QSCHEME: per-tensor-affine, QUANTIZER: {{TYPE: {a}, BIT: 4}}}}
"""


class Block(nn.Module):
    def __init__(self, planes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False), nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class TinyResNet(nn.Module):
    """The shape of the old CIFAR-10 ResNet, with one block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return self.fc(F.avg_pool2d(out, out.size()[3]).view(out.size(0), -1))


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.size, self.causal = heads, hidden // heads, causal
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dense = nn.Linear(hidden, hidden)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.view(x.size()[:-1] + (self.heads, self.size)).permute(0, 2, 1, 3)  # noqa: RUF005  # as traced there

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.size**0.5
        context = torch.matmul(F.softmax(scores + mask, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view(context.size()[:-2] + (self.heads * self.size,)))  # noqa: RUF005


class TinyTransformer(nn.Module):
    """BERT with a classifier, or GPT-2 with a language head, as the old examples wrote them out for tracing."""

    def __init__(
        self, classes: int, *, causal: bool, vocabulary: int = 50, hidden: int = 16, length: int = 8
    ) -> None:
        super().__init__()
        self.causal, self.length = causal, length
        self.word_embeddings, self.position_embeddings = (
            nn.Embedding(vocabulary, hidden),
            nn.Embedding(length, hidden),
        )
        self.register_buffer("position_ids", torch.arange(length)[None])
        self.register_buffer("causal_mask", torch.full((length, length), -1e4).triu(1)[None, None])
        self.layer_norm, self.attention = nn.LayerNorm(hidden), Attention(hidden, 2, causal)
        self.mlp = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(hidden, classes)

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        input_ids = input_ids.view(-1, input_ids.size()[-1])
        x = self.dropout(self.word_embeddings(input_ids) + self.position_embeddings(self.position_ids))
        mask = self.causal_mask if self.causal else (1.0 - attention_mask[:, None, None, :]) * -1e4
        x = self.layer_norm(x + self.attention(x, mask))
        x = x + self.mlp(x)
        return self.head(x) if self.causal else self.head(x[:, 0])


def write(path: Path, text: str, **values: str) -> str:
    path.write_text(text.format(**values))
    return str(path)


def images(count: int = 8) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def train(
    model: nn.Module, calls: list[Any], labels: Tensor, steps: int = 4, extra: Any = None
) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    model.train()
    for _ in range(steps):
        loss = F.cross_entropy(model(*calls), labels)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        (loss + (extra() if extra else 0)).backward()
        optimizer.step()
    model.eval()
    return losses


def test_cifar10_post_training(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = TinyResNet().eval()
    qconfig = parse_qconfig(
        write(tmp_path / "q.yaml", PTQ, backend="tensorrt", symmetry="symmetric", layout="NCHW", more="")
    )
    qmodel = QuantModel(model, config=qconfig).to(torch.device("cpu"))
    qmodel.eval()
    qmodel.prepare_calibration()
    with torch.no_grad():
        for batch in images(16).split(8):
            qmodel(batch)
        qmodel.calc_qparams()
        qmodel.set_quant(w_quant=True, a_quant=True)
        quantized = qmodel(images())
    assert 0 < (quantized - model(images())).norm() < 0.1 * model(images()).norm()
    path = tmp_path / "qresnet20.onnx"
    qmodel.export_onnx(torch.randn(1, 3, 16, 16), name=str(path), extra_info=True)
    assert Path(qmodel.add_extra_info_to_onnx(str(path))).is_file()
    session = ort.InferenceSession(str(path))
    (out,) = session.run(None, {session.get_inputs()[0].name: images(1).numpy()})
    torch.testing.assert_close(torch.from_numpy(out), quantized[:1], atol=0.05, rtol=0)


@pytest.mark.parametrize(("w", "a"), [("lsq", "lsq"), ("dorefa", "dorefa"), ("dorefa", "pact")])
def test_cifar10_training(tmp_path: Path, w: str, a: str) -> None:
    torch.manual_seed(0)
    qmodel = QuantModel(TinyResNet(), parse_qconfig(write(tmp_path / "q.yaml", QAT, w=w, a=a)))
    for layer in (qmodel.model.conv1, qmodel.model.fc):  # first and last layer at 8 bits
        layer.input_quantizer.set_bit(bit=8)
        layer.weight_quantizer.set_bit(bit=8)
    qmodel.prepare_calibration()
    with torch.no_grad():
        qmodel(images())
        qmodel.init_QAT()
    clips = [p for name, p in qmodel.named_parameters() if name.endswith("alpha")]
    assert bool(clips) is (a == "pact")
    losses = train(
        qmodel, [images()], torch.arange(8), extra=lambda: 1e-4 * sum(p.square().sum() for p in clips)
    )
    assert losses[-1] < losses[0]
    graph = io.StringIO()
    qmodel.dump_mermaid(graph)
    assert "layer1_0_conv1" in graph.getvalue()


def test_cifar10_structured_pruning(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    path = tmp_path / "s.yaml"
    path.write_text("SPARSER: {TYPE: structed, STRATEGY: l1norm, RATIO: 0.5}")
    smodel = SparseModel(TinyResNet(), parse_sconfig(str(path)))
    smodel.disable_sparse_before_add()
    smodel.model.fc.sparser.set_ratio(0.0)
    smodel.calc_params()
    train(smodel, [images()], torch.arange(8), steps=2)
    weight = smodel.model.layer1_0_conv1.weight
    assert int((weight.abs().sum((1, 2, 3)) == 0).sum()) == 8
    smodel.export_onnx(torch.randn(1, 3, 16, 16), name=str(tmp_path / "s.onnx"))
    assert (tmp_path / "s.onnx").is_file()


def test_cifar10_unstructured_pruning(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "s.yaml"
    path.write_text("SPARSER: {TYPE: unstructed, STRATEGY: l1norm, RATIO: 0.5}")
    smodel = SparseModel(TinyResNet(), parse_sconfig(str(path)))
    smodel.calc_params()
    train(smodel, [images()], torch.arange(8), steps=2)
    weight = smodel.model.layer1_0_conv1.weight
    assert float((weight == 0).float().mean()) == pytest.approx(0.5, abs=0.01)


NORMS_IN_FLOAT = (
    'SPECIFIC: [{"*layer_norm": ["QUANTIZER.DISABLE", True], "softmax*": ["QUANTIZER.DISABLE", True]}]'
)


@pytest.mark.parametrize("task", ["cola", "gpt2"])
def test_transformers_post_training(tmp_path: Path, task: str) -> None:
    torch.manual_seed(0)
    model = TinyTransformer(2 if task == "cola" else 50, causal=task == "gpt2").eval()
    qconfig = parse_qconfig(
        write(
            tmp_path / "q.yaml", PTQ, backend="virtual", symmetry="affine", layout="NLC", more=NORMS_IN_FLOAT
        )
    )
    qmodel = QuantModel(model, qconfig)
    words = torch.randint(0, 50, (4, 8), generator=torch.Generator().manual_seed(0))
    call = (words,) if task == "gpt2" else (words, torch.ones(4, 8))
    qmodel.prepare_calibration()
    with torch.no_grad():
        qmodel(*call)
        qmodel.calc_qparams()
        qmodel.set_quant(w_quant=True, a_quant=True)
        error = (qmodel(*call) - model(*call)).norm() / model(*call).norm()
    assert 0 < error < 0.1
    assert len(qmodel.model.matmul.input_quantizers) == 2


def test_glue_unstructured_pruning(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "s.yaml"
    path.write_text("SPARSER: {TYPE: unstructed, STRATEGY: l1norm, RATIO: 0.25}")
    smodel = SparseModel(TinyTransformer(2, causal=False), parse_sconfig(str(path)))
    smodel.calc_params()
    words = torch.randint(0, 50, (8, 8), generator=torch.Generator().manual_seed(0))
    losses = train(smodel, [words, torch.ones(8, 8)], torch.arange(8) % 2)
    assert losses[-1] < losses[0]
    assert float((smodel.model.attention_query.weight == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
