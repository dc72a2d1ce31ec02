"""Exported files are the network: in numbers, at every ratio, and fused or rounded too."""

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paumer import Mode, PauseConfig, PausingSegmenter, build_model
from paumer.cli.main import app
from paumer.exporting.onnx import export_onnx
from paumer.exporting.traced import export_program
from paumer.exporting.verify import USE_SCRIPT, verify
from paumer.inference.exported import ExportInfo, fuse_attention, open_onnx, open_program

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
    export_onnx = unchecked("paumer.exporting.onnx").export_onnx
    export_program = unchecked("paumer.exporting.traced").export_program
    parse = unchecked("paumer.mode").Mode.parse
    dial, size = parse("2:0.5,4:0.5"), (64, 64)
    export_onnx(network, path / "dial.onnx", size, dial, dial=True)
    export_onnx(network, path / "int8.onnx", size, dial, dial=True, rounded=True)
    export_onnx(network, path / "exit.onnx", size, parse("2:0.4,4:0.4 exit protect=b"))
    export_program(network, path / "one.pt2", size, parse("2:0.4,4:0.4 by=neighbours"))
    return path


@pytest.fixture(scope="module")
def model(folder):
    return PausingSegmenter.from_pretrained(folder / "model")


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("fused", [False, True])
def test_one_file_serves_all_configurations(folder, model, batch, fused):
    info, run = open_onnx(folder / "dial.onnx", threads=1, fused=fused)
    images = torch.randn(batch, 3, 64, 64)
    assert verify(model, info, run, images, [Mode(pause=pause) for pause in CONFIGS]) > 0.999
    for pause in CONFIGS:
        with torch.inference_mode():
            own = model(images, pause, full_size=False)
        logits, paused = run(images.numpy(), info.kept(pause))
        assert np.allclose(logits, own.logits.numpy(), atol=1e-3)
        assert np.array_equal(paused, own.paused_after().numpy())


def fused_count(proto):
    return sum(node.op_type == "MultiHeadAttention" for node in proto.graph.node)


@pytest.mark.parametrize("name", ["dial", "exit"])
def test_every_attention_becomes_one_operation(folder, model, name):
    proto = onnx.load(folder / f"{name}.onnx")
    blocks = model.backbone.depth + len(model.decoder.blocks)
    assert sum(node.op_type == "Softmax" for node in proto.graph.node) >= blocks
    proto = fuse_attention(proto)
    assert fused_count(proto) == blocks
    assert fused_count(fuse_attention(proto)) == blocks
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
    assert fused_count(fuse_attention(proto)) == 0


def test_eight_bits_change_little(folder, model):
    info, run = open_onnx(folder / "int8.onnx", threads=1)
    images = torch.randn(4, 3, 64, 64)
    for pause in CONFIGS[:3]:
        with torch.inference_mode():
            own = model(images, pause, full_size=False).logits.numpy()
        logits, _ = run(images.numpy(), info.kept(pause))
        assert np.corrcoef(logits.ravel(), own.ravel())[0, 1] > 0.98
    alone, _ = run(images[:1].numpy(), info.kept(CONFIGS[0]))
    loud = torch.cat([images[:1], 9 * images[1:]])
    assert np.array_equal(run(loud.numpy(), info.kept(CONFIGS[0]))[0][:1], alone)
    assert (folder / "int8.onnx").stat().st_size < 0.5 * (folder / "dial.onnx").stat().st_size


def test_nothing_but_the_files_is_left(folder):
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["dial.onnx", "exit.onnx", "int8.onnx", "model", "one.pt2"]


def test_early_exit_and_programs(folder, model):
    images = torch.randn(3, 3, 64, 64)
    info, run = open_onnx(folder / "exit.onnx", threads=1)
    assert (str(info.mode), info.dial) == ("2:0.4,4:0.4 exit protect=b", False)
    assert verify(model, info, run, images) > 0.999
    with torch.inference_mode():
        own = model(images, info.mode, full_size=False).paused_after().numpy()
        other = model(images, "2:0.4,4:0.4 exit", full_size=False).paused_after().numpy()
    assert np.array_equal(run(images.numpy(), [])[1], own)
    assert not np.array_equal(own, other)
    program = replace(info, mode=Mode.parse("2:0.4,4:0.4 by=neighbours"))
    assert verify(model, program, open_program(folder / "one.pt2"), images) > 0.999


def test_a_file_that_disagrees_is_refused(folder, model):
    info, run = open_onnx(folder / "dial.onnx", threads=1)
    wrong = lambda images, kept: (-run(images, kept)[0], None)  # noqa: E731
    with pytest.raises(ValueError, match='disagrees with the original at "none": only'):
        verify(model, info, wrong, torch.randn(2, 3, 64, 64), [Mode(pause=CONFIGS[0])])


def test_a_file_says_what_it_can(folder):
    for name, mode, dial in (
        ("dial", "2:0.5,4:0.5", True),
        ("int8", "2:0.5,4:0.5", True),
        ("exit", "2:0.4,4:0.4 exit protect=b", False),
    ):
        info, _ = open_onnx(folder / f"{name}.onnx")
        assert info.config["classes"] == ["a", "b", "c"]
        assert (info.size, info.patches) == ((64, 64), 16)
        assert (str(info.mode), info.dial) == (mode, dial)
        assert ExportInfo.from_json(info.to_json()) == info


def test_the_script_of_use_needs_no_paumer(folder, tmp_path):
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
        (("--input", "60", "--mode", "2:0.5"), "whole patches"),
        (("--mode", "2:<0.5"), "takes ratios"),
        (("--mode", "2:0.5", "--dial", "--format", "program"), "holds one mode: give --mode"),
        (("--mode", "9:0.5", "--dial"), "cannot pause after block 9"),
        (("--mode", "none", "--dial"), "there is no ratio to turn: name stages"),
        (("--mode", "2:0.5 size=48"), "give --input instead"),
        (("--mode", "2:0.5 by=random"), "by=random is for evaluate and sweep alone"),
    ],
)
def test_what_cannot_be_exported_is_refused(folder, tmp_path, arguments, message):
    command = ["export", "--model", str(folder / "model"), "--out", str(tmp_path / "x.onnx")]
    with pytest.raises(ValueError, match=message):
        app([*command, *arguments], result_action="return_value")
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize("step", ["exporting.verify.export_onnx", "exporting.verify.verify"])
def test_what_fails_on_the_way_leaves_no_file(folder, tmp_path, monkeypatch, step):
    def export(model, path, *_):
        path.write_bytes((folder / "int8.onnx").read_bytes())

    def fail(model, path, *_):
        if isinstance(path, Path):
            path.write_bytes(b"half of a file")
        raise OSError("no space left on device")

    monkeypatch.setattr("paumer.exporting.verify.export_onnx", export)
    monkeypatch.setattr(f"paumer.{step}", fail)
    command = ["export", "--model", str(folder / "model"), "--format", "onnx-int8"]
    command += ["--mode", "2:0.5,4:0.5", "--dial", "--out", str(tmp_path / "x.onnx")]
    with pytest.raises(OSError, match="no space"):
        app(command, result_action="return_value")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_appears_meanwhile_is_kept(folder, tmp_path, monkeypatch):
    def export(model, path, *_):
        path.write_bytes((folder / "int8.onnx").read_bytes())
        (tmp_path / "x.onnx").write_text("mine")

    monkeypatch.setattr("paumer.exporting.verify.export_onnx", export)
    command = ["export", "--model", str(folder / "model"), "--format", "onnx-int8"]
    command += ["--mode", "2:0.5,4:0.5", "--dial", "--out", str(tmp_path / "x.onnx")]
    with pytest.raises(ValueError, match=r'x\.onnx" exists: name another --out'):
        app(command, result_action="return_value")
    assert [file.name for file in tmp_path.iterdir()] == ["x.onnx"]
    assert (tmp_path / "x.onnx").read_text() == "mine"


def test_a_context_is_exported_for_one_mode_only(model, tmp_path):
    model = copy.copy(model)
    model.config = replace(model.config, context=True)
    with pytest.raises(ValueError, match="how many means continue depends on them"):
        export_onnx(model, tmp_path / "x.onnx", (64, 64), Mode.parse("2:0.4,4:0.4"), dial=True)


@pytest.mark.parametrize("export", [export_onnx, export_program])
def test_what_no_file_can_hold_is_refused_before_tracing(model, tmp_path, export):
    for text, size, message in (
        ("2:<0.4", (64, 64), "takes ratios, not thresholds"),
        ("2:0.4 by=oracle", (64, 64), "by=oracle is for evaluate and sweep alone"),
        ("2:0.4 size=48", (64, 64), "a network takes images as they are"),
        ("2:0.4", (64, 60), "60x64 is not made of whole patches of 16x16"),
    ):
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / "x", size, Mode.parse(text))
    bare = copy.copy(model)
    bare.config = None
    with pytest.raises(ValueError, match="its classes are not known"):
        export(bare, tmp_path / "x", (64, 64))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_file_merges_as_the_network_does(folder, model, tmp_path, unchecked):
    network = unchecked("paumer.model.segmenter").PausingSegmenter.from_pretrained(folder / "model")
    export, parse = (
        unchecked("paumer.exporting.onnx").export_onnx,
        unchecked("paumer.mode").Mode.parse,
    )
    modes = [Mode.parse(text) for text in ("1-3:~0.1,4:0.9 exit", "1-3:~0.3,4:0.5 exit")]
    images = torch.randn(2, 3, 64, 64)
    for dial in (False, True):
        path = tmp_path / f"{dial}.onnx"
        export(network, path, (64, 64), parse(str(modes[0])), dial)
        info, run = open_onnx(path, threads=1)
        assert verify(model, info, run, images, modes) > 0.999
        for mode in modes if dial else modes[:1]:
            with torch.inference_mode():
                own = model(images, mode, full_size=False)
            logits, paused = run(images.numpy(), info.kept(mode) if dial else [])
            assert np.allclose(logits, own.logits.numpy(), atol=1e-3)
            assert np.array_equal(paused, own.paused_after().numpy())
    with pytest.raises(ValueError, match="cannot merge after block 4"):
        info.kept("4:~0.1")
    with pytest.raises(ValueError, match="no ratio to turn"):
        export(network, tmp_path / "all.onnx", (64, 64), parse("3:1 exit"), dial=True)
