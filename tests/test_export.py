import copy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import PauseConfig, build_model
from paumer.cli import app
from paumer.export import ExportInfo, export_onnx, open_onnx, open_program, round_onnx, verify
from paumer.export_fused import fuse_attention

onnx = pytest.importorskip("onnx", reason="exported files are ONNX")
pytest.importorskip("onnxruntime", reason="exported files run in onnxruntime")
pytest.importorskip("onnxscript", reason="exporting needs onnxscript")

# Warnings are the exporter's own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
CONFIGS = [PauseConfig.parse(t) for t in ("none", "2:0.4", "4:0.5", "2:0.4,4:0.4", "2:0.9,4:0.9")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, unchecked):
    """A model and what was exported of it."""
    path = tmp_path_factory.mktemp("export")
    torch.manual_seed(0)
    build_model("test_vit", "mask", ("a", "b", "c"), image_size=64).save_pretrained(path / "model")
    # Compilers cannot read the shape checks of the tests: a second paumer exports without them.
    network = unchecked("paumer.model.segmenter").PausingSegmenter.from_pretrained(path / "model")
    other, pauses = unchecked("paumer.export"), unchecked("paumer.pause_config")
    other.export_onnx(network, path / "dial.onnx", (64, 64), None, (2, 4))
    pause = pauses.PauseConfig.parse("2:0.4,4:0.4")
    other.export_onnx(network, path / "exit.onnx", (64, 64), pause, early_exit=True)
    other.export_program(network, path / "one.pt2", (64, 64), pause, criterion="borders")
    return path


@pytest.fixture(scope="module")
def model(folder):
    from paumer import PausingSegmenter

    return PausingSegmenter.from_pretrained(folder / "model")


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("fused", [False, True])
def test_one_file_serves_all_configurations(folder, model, batch, fused):
    info, run = open_onnx(folder / "dial.onnx", threads=1, fused=fused)
    images = torch.randn(batch, 3, 64, 64)
    assert verify(model, info, run, images, CONFIGS) > 0.999
    for pause in CONFIGS:
        with torch.inference_mode():
            own = model(images, pause, full_size=False)
        logits, paused = run(images.numpy(), info.kept(pause))
        assert np.allclose(logits, own.logits.numpy(), atol=1e-3)
        assert np.array_equal(paused, own.paused_after().numpy())


@pytest.mark.parametrize("name", ["dial", "exit"])
def test_every_attention_becomes_one_operation(folder, model, name):
    proto = onnx.load(folder / f"{name}.onnx")
    blocks = model.backbone.depth + len(model.decoder.blocks)
    assert sum(node.op_type == "Softmax" for node in proto.graph.node) >= blocks
    assert fuse_attention(proto) == blocks
    kinds = [node.op_type for node in proto.graph.node]
    assert kinds.count("MultiHeadAttention") == blocks
    assert fuse_attention(proto) == 0
    onnx.checker.check_model(proto)


def scale_values(proto, node):
    """Multiply the values by 3 before they are mixed."""
    constant = onnx.numpy_helper.from_array(np.float32([3]), "three")
    proto.graph.initializer.append(constant)
    values = node.input[1]
    node.input[1] = f"{values}_times_3"
    place = list(proto.graph.node).index(node)
    proto.graph.node.insert(
        place, onnx.helper.make_node("Mul", [values, "three"], [f"{values}_times_3"])
    )


def change(proto, form):
    """Make every attention one that only looks like the usual."""
    nodes = list(proto.graph.node)
    softmaxes = {node.output[0] for node in nodes if node.op_type == "Softmax"}
    for node in nodes:
        if form == "values" and node.op_type == "MatMul" and node.input[0] in softmaxes:
            scale_values(proto, node)
        if form == "axis" and node.op_type == "Softmax":
            node.attribute[0].i = -2
        if form == "thirds" and node.op_type == "Slice" and len(node.input) == 4:
            node.input[1] = node.input[3]
        if form == "turn" and node.op_type == "Transpose":
            del node.attribute[:]
    if form == "scale":
        for tensor in proto.graph.initializer:
            value = onnx.numpy_helper.to_array(tensor)
            if value.dtype == np.float32 and value.size == 1:
                other = onnx.numpy_helper.from_array(value * np.float32(1.5), tensor.name)
                tensor.CopyFrom(other)


@pytest.mark.parametrize("form", ["values", "axis", "thirds", "turn", "scale"])
def test_attention_of_another_form_is_left_alone(folder, form):
    proto = onnx.load(folder / "dial.onnx")
    change(proto, form)
    assert fuse_attention(proto) == 0


def test_eight_bits_change_little(folder, model, tmp_path):
    round_onnx(folder / "dial.onnx", tmp_path / "int8.onnx")
    info, run = open_onnx(tmp_path / "int8.onnx", threads=1)
    images = torch.randn(4, 3, 64, 64)
    for pause in CONFIGS[:3]:
        with torch.inference_mode():
            own = model(images, pause, full_size=False).logits.numpy()
        logits, _ = run(images.numpy(), info.kept(pause))
        assert np.corrcoef(logits.ravel(), own.ravel())[0, 1] > 0.98
    alone, _ = run(images[:1].numpy(), info.kept(CONFIGS[0]))
    loud = torch.cat([images[:1], 9 * images[1:]])
    assert np.array_equal(run(loud.numpy(), info.kept(CONFIGS[0]))[0][:1], alone)
    assert (tmp_path / "int8.onnx").stat().st_size < 0.5 * (folder / "dial.onnx").stat().st_size
    assert [file.name for file in tmp_path.iterdir()] == ["int8.onnx"]


def test_early_exit_and_programs(folder, model):
    images = torch.randn(3, 3, 64, 64)
    info, run = open_onnx(folder / "exit.onnx", threads=1)
    assert (info.pause, info.early_exit) == ("2:0.4,4:0.4", True)
    assert verify(model, info, run, images, CONFIGS[3:4]) > 0.999
    plain = ExportInfo(**{**vars(info), "early_exit": False, "criterion": "borders"})
    assert verify(model, plain, open_program(folder / "one.pt2"), images, CONFIGS[3:4]) > 0.999


def test_a_file_that_disagrees_is_refused(folder, model):
    info, run = open_onnx(folder / "dial.onnx", threads=1)
    wrong = lambda images, kept: (-run(images, kept)[0], None)  # noqa: E731
    with pytest.raises(ValueError, match="disagrees with the original"):
        verify(model, info, wrong, torch.randn(2, 3, 64, 64), CONFIGS)


def test_a_file_says_what_it_can(folder):
    info, _ = open_onnx(folder / "dial.onnx")
    assert info.config["classes"] == ["a", "b", "c"]
    assert info.kept(PauseConfig.parse("2:0.5,4:0.5")) == [8, 4]
    with pytest.raises(ValueError, match="cannot pause after block 3"):
        info.kept(PauseConfig.parse("3:0.5"))
    with pytest.raises(ValueError, match="takes shares"):
        info.kept(PauseConfig.parse("2:<0.5"))
    assert ExportInfo.from_json(info.to_json()) == info


def test_the_script_of_use_needs_no_paumer(folder, tmp_path):
    from paumer.export import USE_SCRIPT

    (tmp_path / "dial.onnx").write_bytes((folder / "dial.onnx").read_bytes())
    (tmp_path / "use.py").write_text(USE_SCRIPT.format(file="dial.onnx"))
    noise = np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "street.png")
    done = subprocess.run(
        [sys.executable, "use.py", "street.png", "0.5", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "50% of the patches paused" in done.stdout
    with Image.open(tmp_path / "street_mask.png") as mask:
        assert mask.size == (70, 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "60"), "whole patches"),
        (("--pause", "2:<0.5"), "takes shares"),
        (("--format", "program"), "give --pause"),
        (("--blocks", "9"), "cannot pause after block 9"),
    ],
)
def test_what_cannot_be_exported_is_refused(folder, tmp_path, arguments, message):
    command = ["export", "--model", str(folder / "model"), "--out", str(tmp_path / "x.onnx")]
    with pytest.raises(ValueError, match=message):
        app([*command, *arguments], result_action="return_value")
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize("step", ["round_onnx", "verify"])
def test_what_fails_on_the_way_leaves_no_file(folder, tmp_path, monkeypatch, step):
    def export(model, path, *_):
        path.write_bytes((folder / "dial.onnx").read_bytes())
        return open_onnx(path)[0]

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("paumer.export.export_onnx", export)
    monkeypatch.setattr(f"paumer.export.{step}", fail)
    command = ["export", "--model", str(folder / "model"), "--format", "onnx-int8"]
    with pytest.raises(OSError, match="no space"):
        app([*command, "--out", str(tmp_path / "x.onnx")], result_action="return_value")
    assert list(tmp_path.iterdir()) == []


def test_a_context_is_exported_for_one_configuration_only(model, tmp_path):
    model = copy.copy(model)
    model.config = replace(model.config, context=True)
    with pytest.raises(ValueError, match="how many means go on depends on where patches pause"):
        export_onnx(model, tmp_path / "x.onnx", (64, 64), blocks=(2, 4))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="paumer export"):
        open_onnx(tmp_path / "nothing.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    with pytest.raises(ValueError, match="cannot read"):
        open_onnx(tmp_path / "bad.onnx")
