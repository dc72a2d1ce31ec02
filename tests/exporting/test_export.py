"""Exported files are the model: in labels, at every size, in every mode, through every command."""

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import paumer
from paumer import Mode, build_model
from paumer.cli.main import app
from paumer.exporting.onnx import fuse_attention
from paumer.inference.points import write_points
from paumer.measurement import Measurement
from paumer.scenes.scene import scene
from paumer.study.speed import SpeedSettings
from paumer.study.tuning import TuneSettings

onnx = pytest.importorskip("onnx", reason="exported files are ONNX")
onnxruntime = pytest.importorskip("onnxruntime", reason="exported files run in onnxruntime")
pytest.importorskip("onnxscript", reason="exporting needs onnxscript")

# Warnings are the exporter's own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
QUICK = "2:0.4,4:0.5 exit by=neighbours"
MERGING = "1-3:~0.1,4:0.9 exit"
MODES = ("none", "2:0.4", "1:0.2,2:0.4,4:0.4 exit", "quick", MERGING, "4:1 exit", "3:0.9 protect=b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, unchecked):
    """A model and what was exported of it."""
    path = tmp_path_factory.mktemp("export")
    torch.manual_seed(0)
    network = build_model("test_vit", "mask", ("a", "b", "c"), image_size=64)
    network.config = replace(network.config, trained_side=72)
    network.save_pretrained(path / "model")
    write_points(path / "model", {"quick": Measurement(mode=Mode.parse(QUICK))})
    # Compilers cannot read the shape checks of the tests: a second paumer exports without them.
    export = unchecked("paumer.api").export
    found = [
        export(path / "model", path / "any.onnx", "quick"),
        export(path / "model", path / "any.pt2", format="program"),
        export(
            path / "model", path / "one.onnx", "2:0.4",
            input="64x60", pixels="normalised", output="logits",
        ),
    ]  # fmt: skip
    assert all(done.agreement > 0.999 and done.images == 20 for done in found)
    assert [done.script and done.script.name for done in found] == ["any.py", None, None]
    assert found[0].script_agreement > 0.999
    return path


@pytest.fixture(scope="module")
def model(folder):
    return paumer.load(folder / "model")


@pytest.fixture(scope="module")
def plain(unchecked):
    """The graph of a small network before its attention is fused."""
    module, found = unchecked("paumer.exporting.onnx"), []
    network = unchecked("paumer.model.build").build_model("test_vit", "linear", 3, image_size=32)
    mode = unchecked("paumer.mode").Mode()
    info = unchecked("paumer.exporting.description").describe(network, mode, (32, 32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "fuse_attention", lambda p: found.append(p.SerializeToString()))
        with pytest.raises(AttributeError):  # Nothing is left to write.
            module.make_onnx(network, info)
    return found[0]


def images(sizes=((96, 64), (70, 90), (160, 120))):
    """Three scenes, one of them larger than those of training."""
    return [scene(seed, size)[0] for seed, size in enumerate(sizes)]


@pytest.mark.parametrize("name", ["any.onnx", "any.pt2", "openvino"])
def test_a_file_gives_the_labels_of_its_model(folder, model, name):
    engine, modes = "torch", MODES
    if name == "openvino":
        pytest.importorskip("openvino")
        # It rounds differently, and scores of protected patches are nearly equal.
        name, engine, modes = "any.onnx", "openvino", MODES[:-2]
    elif name == "any.pt2":
        modes = [mode for mode in MODES if mode not in (MERGING, "4:1 exit")]
    exported = paumer.load(folder / name, engine=engine, threads=1)
    assert (exported.classes, exported.config) == (model.classes, model.config)
    assert exported.modes == model.modes
    for mode in modes:
        for image in images():
            one, two = (each.predict(image, mode, window=64) for each in (model, exported))
            assert (one.labels == two.labels).mean() > 0.999
            assert np.array_equal(one.paused_after, two.paused_after)
            assert np.array_equal(one.merged_after, two.merged_after)
            assert np.allclose(one.entropy, two.entropy, atol=1e-3)
    batch = [image[:60, :60] for image in images()]
    pairs = zip(*(each.predict_batch(batch, "quick") for each in (model, exported)), strict=True)
    assert all((one.labels == two.labels).mean() > 0.999 for one, two in pairs)


def test_what_a_file_cannot_run_is_refused_by_name(folder, model):
    (image, *_) = images()
    small = paumer.load(folder / "one.onnx")
    assert small.predict(image[:60, :64], "2:0.4").labels.shape == (60, 64)
    with pytest.raises(ValueError, match="takes images of 64x64 alone, and this one runs at 96x64"):
        small.predict(image, "2:0.4")
    with pytest.raises(ValueError, match=r'this file runs in mode "2:0\.4" alone, not in "none"'):
        small.predict(image)
    for name, mode, message in (
        ("any.onnx", "2:<0.5", "takes ratios, not thresholds"),
        ("any.onnx", "9:0.5", "cannot pause after block 9"),
        ("any.pt2", "2:~0.1", r'a torch.export program cannot merge \("2:~0.1"\)'),
    ):
        with pytest.raises(ValueError, match=message):
            paumer.load(folder / name).predict(image, mode)
    if importlib.util.find_spec("openvino"):
        with pytest.raises(ValueError, match="OpenVINO cannot let all patches leave"):
            paumer.load(folder / "any.onnx", engine="openvino").predict(image, "4:1 exit")


@pytest.mark.parametrize("how", ["pup", "context", "rotary"])
def test_networks_of_other_kinds_run_in_every_mode(tmp_path, unchecked, how):
    torch.manual_seed(0)
    name = "eva02_tiny_patch14_224" if how == "rotary" else "test_vit"
    decoder = "pup" if how == "pup" else "linear"
    network = build_model(name, decoder, ("a", "b", "c"), image_size=64)
    network.config = replace(network.config, context=how == "context")
    network.save_pretrained(tmp_path / "model")
    found = unchecked("paumer.exporting.onnx")
    load = unchecked("paumer.loaded").load
    found.export_onnx(load(tmp_path / "model").weights(), tmp_path / "x.onnx")
    one, two = paumer.load(tmp_path / "model"), paumer.load(tmp_path / "x.onnx", threads=1)
    for mode in ("none", "2:0.4,4:0.01", "1-2:~0.2", "1:~0.1,2:0.3,4:0.5"):
        for image in images()[:2]:
            pair = [each.predict(image, mode) for each in (one, two)]
            assert (pair[0].labels == pair[1].labels).mean() > 0.999
            assert np.array_equal(pair[0].paused_after, pair[1].paused_after)


def labelled(folder, *sizes):
    """A data set of three images, or of such sizes, whose labels are made up."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir()
    for number, image in enumerate(images(sizes) if sizes else images()):
        Image.fromarray(image).save(folder / f"images/{number}.png")
        Image.fromarray(image[..., 0] % 3).save(folder / f"masks/{number}.png")
    folders = "{images: images, masks: masks}"
    text = f"train: {folders}\nval: {folders}\nclasses: [a, b, c]\n"
    (folder / "data.yaml").write_text(text)
    return str(folder / "data.yaml")


@pytest.mark.parametrize("format", ["onnx", "onnx-int8", "openvino"])
def test_8_bits_are_refused_where_they_cost_too_much(folder, tmp_path, monkeypatch, format):
    pytest.importorskip("openvino")
    sizes = [(64, 60)] if format == "openvino" else []
    data, file = labelled(tmp_path, *sizes), tmp_path / "x.onnx"
    made = onnx.load(folder / ("one.onnx" if format == "openvino" else "any.onnx"))
    monkeypatch.setattr("paumer.exporting.verify.make_onnx", lambda *_: made)
    monkeypatch.setattr("paumer.exporting.verify.ROUNDED_AGREEMENT", 0.9)
    how = {"format": format, "mode": "quick"}
    if format == "openvino":  # Of one size, so that the file can be one that is there already.
        how = {"format": format, "mode": "2:0.4", "input": "64x60", "pixels": "normalised"}
    with pytest.raises(ValueError, match=r"8 bits lose .* points of mIoU in mode \"2:0"):
        paumer.export(folder / "model", file, **how, calibrate=data, max_drop=-100)
    assert not file.exists()
    done = paumer.export(folder / "model", file, **how, calibrate=data, max_drop=100)
    assert done.agreement > 0.9
    assert done.rounded[0].speed_up > 0
    kinds = {node.op_type for node in onnx.load(file).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert "DynamicQuantizeLinear" not in kinds


def test_other_programs_get_labels_of_any_size(folder, model):
    session = onnxruntime.InferenceSession(folder / "any.onnx")
    info = json.loads(session.get_modelmeta().custom_metadata_map["paumer"])
    (image, *_) = images()
    own = model.predict(image, "quick").labels
    (labels,) = session.run(["labels"], {"images": image[None]})  # In the file's own mode.
    assert labels.dtype == np.uint8
    assert (labels[0] == own).mean() > 0.999
    unpaused = {name: np.array(value) for name, value in info["modes"]["none"].items()}
    feed = {"images": image[None], "protect": np.zeros(3, np.float32)}
    feed |= {name: unpaused[name] for name in ("ratios", "exit", "neighbours")}
    labels, paused = session.run(["labels", "paused_after"], feed)
    assert (labels[0] == model.predict(image).labels).mean() > 0.999
    assert not paused.any()
    large = np.asarray(Image.fromarray(image).resize((144, 96)))
    (labels,) = session.run(["labels"], {"images": image[None], "size": np.array([96, 144])})
    assert labels.shape == (1, *large.shape[:2])
    seen = model.network_inputs(image[:60, :64]).numpy()
    (logits,) = onnxruntime.InferenceSession(folder / "one.onnx").run(["logits"], {"images": seen})
    own = model.predict(image[:60, :64], "2:0.4").labels
    assert (logits[0].argmax(0)[:60] == own).mean() > 0.999


def test_the_script_needs_no_paumer(folder, model, tmp_path):
    for name in ("any.onnx", "any.py"):
        shutil.copy(folder / name, tmp_path)
    for number, image in enumerate(images()):
        Image.fromarray(image).save(tmp_path / f"{number}.png")

    def run(*arguments):
        command = [sys.executable, "-I", tmp_path / "any.py", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert "--mode {none,quick}" in run("--help").stdout
    assert "the following arguments are required: images" in run().stderr
    done = run("0.png", "2.png", "--mode", "quick", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0.png: ")
    for number in (0, 2):
        image = images()[number]
        with Image.open(tmp_path / f"out/{number}_mask.png") as mask:
            assert mask.mode == "P"
            assert tuple(mask.getpalette()[:9]) == sum(model.classes.colours, ())
            labels = np.asarray(mask)
        assert (labels == model.predict(image, "quick").labels).mean() > 0.999
        with Image.open(tmp_path / f"out/{number}_overlay.png") as overlay:
            assert overlay.size == image.shape[1::-1]


def test_commands_take_a_file(folder, tmp_path, capsys):
    shutil.copy(folder / "any.onnx", tmp_path / "mine.onnx")
    file = str(tmp_path / "mine.onnx")
    Image.fromarray(images()[0]).save(tmp_path / "a.png")

    def run(*arguments):
        app([str(part) for part in arguments], result_action="return_value")
        return capsys.readouterr().out

    run("predict", tmp_path / "a.png", "--model", file, "--mode", "quick", "--out", tmp_path / "o")
    assert (tmp_path / "o/a_mask.png").exists()
    bench = ("--input", "64", "--rounds", 1, "--warmup", 0, "--json", tmp_path / "bench.json")
    run("bench", "--model", file, "--mode", "quick", *bench)
    timed = json.loads((tmp_path / "bench.json").read_text())["measurements"]
    assert [(item["engine"], item["mode"]) for item in timed] == [("onnx", "none"), ("onnx", QUICK)]
    with pytest.raises(ValueError, match="is an exported file, and this needs the network itself"):
        run("export", "--model", file, "--out", tmp_path / "again.onnx")


def test_a_file_can_be_tuned_and_keeps_its_points(folder, tmp_path):
    shutil.copy(folder / "any.onnx", tmp_path / "mine.onnx")
    data = labelled(tmp_path)
    model, speed = paumer.load(tmp_path / "mine.onnx"), SpeedSettings(rounds=1, warmup=0)
    settings = TuneSettings(most=3, speed=speed)
    tuned = model.tune(data, speed_up=1.01, name="mine", settings=settings)
    assert tuned.choice.engine == "onnx"
    assert set(paumer.load(tmp_path / "mine.onnx").points) >= {"quick", "unpaused"}


def fused_count(graph):
    graph = getattr(graph, "graph", graph)
    inner = [item.g for node in graph.node for item in node.attribute if item.HasField("g")]
    own = sum(node.op_type == "MultiHeadAttention" for node in graph.node)
    return own + sum(map(fused_count, inner))


@pytest.mark.parametrize(("name", "forms"), [("any", 2), ("one", 1)])
def test_every_attention_is_one_operation(folder, model, name, forms):
    blocks = model.network.backbone.depth + len(model.network.decoder.blocks)
    assert fused_count(onnx.load(folder / f"{name}.onnx")) == forms * blocks  # With merging or not.


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
def test_attention_of_another_form_is_left_alone(plain, form):
    proto = onnx.load_from_string(plain)
    assert fused_count(fuse_attention(proto)) > 0
    change(proto, form)
    assert fused_count(fuse_attention(proto)) == 0


def test_nothing_but_the_files_is_left(folder):
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["any.onnx", "any.pt2", "any.py", "model", "one.onnx"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mode", "2:<0.5"), "takes ratios"),
        (("--mode", "9:0.5"), "cannot pause after block 9"),
        (("--mode", "2:0.5 size=48"), "a file scales no images"),
        (("--mode", "2:0.5 by=random"), "by=random is for evaluate and sweep alone"),
        (("--format", "program"), "is to be a .pt2 file: name --out x.pt2"),
    ],
)
def test_what_cannot_be_exported_is_refused(folder, tmp_path, arguments, message):
    command = ["export", "--model", str(folder / "model"), "--out", str(tmp_path / "x.onnx")]
    with pytest.raises(ValueError, match=message):
        app([*command, *arguments], result_action="return_value")
    assert list(tmp_path.iterdir()) == []


def stub(folder, monkeypatch, change=lambda content: content, then=lambda: None):
    """Let exports be made of a file that is there already."""

    class Made:
        def SerializeToString(self):  # noqa: N802
            then()
            return change((folder / "any.onnx").read_bytes())

    monkeypatch.setattr("paumer.exporting.verify.make_onnx", lambda *_: Made())


def test_a_file_or_a_script_that_disagrees_is_refused(folder, tmp_path, monkeypatch):
    def other(content):
        proto = onnx.load_from_string(content)
        for node in proto.graph.node:
            if node.output[0] == "labels":  # What other programs get, and paumer does not.
                node.op_type, node.input[0] = "Cast", "wrong"
        wrong = onnx.helper.make_node("ArgMin", ["full"], ["wrong"], axis=1, keepdims=0)
        proto.graph.node.insert(len(proto.graph.node) - 1, wrong)
        return proto.SerializeToString()

    stub(folder, monkeypatch, other)
    with pytest.raises(ValueError, match=r"the exported script gives only .*% of the pixels"):
        paumer.export(folder / "model", tmp_path / "x.onnx", "quick")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_on_the_way_leaves_no_file(folder, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left on device")

    stub(folder, monkeypatch)
    monkeypatch.setattr("paumer.exporting.verify.compare", fail)
    out = tmp_path / "new" / "folder" / "x.onnx"
    with pytest.raises(OSError, match="no space"):
        paumer.export(folder / "model", out, "quick")
    assert list(out.parent.iterdir()) == []


def test_a_prepared_link_is_not_followed(folder, tmp_path, monkeypatch):
    (tmp_path / "notes").write_text("of the user")
    for name in (".x.partial.onnx", ".x.partial.py"):
        (tmp_path / name).symlink_to(tmp_path / "notes")
    stub(folder, monkeypatch, change=lambda _: b"half")
    with pytest.raises(ValueError, match="cannot read"):
        paumer.export(folder / "model", tmp_path / "x.onnx", "quick")
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]
    assert (tmp_path / "notes").read_text() == "of the user"


def test_a_file_that_appears_meanwhile_is_kept(folder, tmp_path, monkeypatch):
    stub(folder, monkeypatch, then=lambda: (tmp_path / "x.onnx").write_text("mine"))
    with pytest.raises(ValueError, match=r'x\.onnx" exists: name another --out'):
        paumer.export(folder / "model", tmp_path / "x.onnx", "quick")
    assert [file.name for file in tmp_path.iterdir()] == ["x.onnx"]
    assert (tmp_path / "x.onnx").read_text() == "mine"
