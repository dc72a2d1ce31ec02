"""A wrong argument to any public call is answered by one sentence that says what would do."""

import inspect
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import paumer
from paumer import Mode, arguments
from paumer.classes import CAMVID

DATA = "scenes:2@96x64"
IMAGE = np.zeros((64, 96, 3), np.uint8)
WRONG = {
    "number": 3,
    "fraction": 0.5,
    "name": "no such thing",
    "none": None,
    "empty list": [],
    "empty text": "",
    "list of numbers": [1, 2],
    "object": object(),
    "array": np.zeros((2, 2)),
    "tensor": torch.zeros(2, 2),
    "type": int,
    "not a number": math.nan,
    "long text": "x" * 5000,
    "null": "a\0b",
    "large number": 10**30,
}
IMAGES = {
    "grey": np.zeros((8, 8), np.uint8),
    "with alpha": np.zeros((8, 8, 4), np.uint8),
    "fractions": np.zeros((8, 8, 3), np.float32),
    "whole numbers": np.zeros((8, 8, 3), np.int64),
    "no pixels": np.zeros((0, 8, 3), np.uint8),
    "channels first": np.zeros((3, 8, 8), np.uint8),
    "complex": np.zeros((8, 8, 3), np.complex64),
    "names": np.array([["a"]]),
    "tensor of fractions": torch.zeros(8, 8, 3),
    "tensor, channels first": torch.zeros(3, 8, 8, dtype=torch.uint8),
    "tensor of half numbers": torch.zeros(8, 8, 3, dtype=torch.bfloat16),
    "tensor without content": torch.zeros(8, 8, 3, dtype=torch.uint8, device="meta"),
    "no image in bytes": b"not an image",
    "no bytes": b"",
    "several": [IMAGE, IMAGE],
}
SIZES = ("number", "none")
SIZE = {"size": (64, 96)}
HOW = {"mode": ("empty text",), "inference": ("none",)}
# Each call, what is usually given, and for each argument the wrong values that are right.
CALLS = {
    "load": ({}, {"name": (), "device": (), "engine": (), "threads": SIZES}),
    "to": ({"device": "cpu"}, {"device": ()}),
    "predict": (
        {"image": IMAGE},
        {
            "image": (),
            "mode": ("empty text",),
            "window": SIZES,
            "stride": ("none",),
            "scales": ("list of numbers",),
            "flip": (),
        },
    ),
    "predict_batch": (
        {"images": [IMAGE]},
        {"images": ("empty list",), "mode": ("empty text",), "inference": ("none",)},
    ),
    "predict_many": (
        {"images": [IMAGE], "modes": ["none"]},
        {"images": ("empty list",), "modes": ("empty list",), "inference": ("none",)},
    ),
    "evaluate": (
        {"data": DATA, "limit": 1},
        {
            "data": (),
            "mode": ("empty text",),
            "split": (),
            "limit": SIZES,
            "inference": ("none",),
            "by_size": (),
            "device": ("none",),
            "progress": ("none", "type"),
        },
    ),
    "tune": (
        {"data": DATA, "speed_up": 1.5},
        {
            "data": (),
            "mode": (),
            "speed_up": ("number", "fraction"),
            "name": ("name", "none", "empty text"),
            "split": (),
            "limit": SIZES,
            "settings": ("none",),
        },
    ),
    "bench": (
        {"input": "64"},
        {
            "mode": ("empty text",),
            "input": ("number",),
            "batch": ("number",),
            "images": ("none",),
            "engine": (),
            "settings": ("none",),
        },
    ),
    "Predictor": (
        {},
        {
            "network": (),
            "points": ("none",),
            "engine": ("none",),
            "source": ("name", "none", "empty text"),
        },
    ),
    "mode": ({}, {"given": ("empty text",), "study": ()}),
    "windows": (SIZE, {"size": (), **HOW}),
    "macs": (SIZE, {"size": (), **HOW}),
    "scaled": (SIZE, {"size": (), **HOW}),
    "geometry": (SIZE, {"size": (), **HOW}),
    "whole_geometry": (SIZE, {"size": ()}),
    "network_inputs": ({"image": IMAGE}, {"image": (), **HOW}),
    "whole_input": ({"image": IMAGE}, {"image": ()}),
    "scaled_labels": ({"labels": IMAGE[..., 0]}, {"labels": (), "mode": ("empty text",)}),
    "forward": (
        {"images": torch.zeros(1, 3, 64, 96)},
        {
            "images": (),
            "mode": ("empty text", "long text"),
            "criterion": ("none", "type"),
            "full_size": (),
        },
    ),
    "forward_many": (
        {"images": torch.zeros(1, 3, 64, 96), "modes": [Mode()]},
        {
            "images": (),
            "modes": ("empty list",),
            "given": (),
            "each_step": ("none", "type"),
        },
    ),
    "network macs": (SIZE, {"size": (), "mode": ("empty text",)}),
    "from_pretrained": (
        {"pretrained_model_name_or_path": "street-tiny"},
        {"pretrained_model_name_or_path": (), "map_location": ()},
    ),
    "overlay": ({}, {"alpha": ("fraction",)}),
    "blended": ({}, {"alpha": ("fraction",)}),
    "tinted": ({}, {"alpha": ("fraction",), "colours": ("none", "empty list")}),
    "entropy_map": ({}, {"full_size": ()}),
    "probabilities": ({}, {"full_size": ()}),
    "to_coco": ({}, {"file_name": ("name", "empty text"), "image_id": ("number",)}),
    "save": (
        {"directory": "new", "stem": "a"},
        {
            "directory": ("name", "empty text"),
            "stem": ("name", "empty text"),
            "kinds": ("empty list",),
        },
    ),
    "open_dataset": ({"spec": DATA}, {"spec": (), "split": ()}),
    "draw": ({"seed": 0, "step": 1}, {"ranges": ()}),
    "check": ({"depth": 12}, {"depth": ("number", "large number")}),
    "from_json": ({}, {"values": ()}),
    "parse": ({}, {"text": ("empty text", "long text")}),
    "build_model": (
        {"backbone": "test_vit", "image_size": 64},
        {
            "backbone": (),
            "decoder": (),
            "classes": ("number",),
            "image_size": SIZES,
            "drop_path": ("fraction",),
            "decoder_options": ("none",),
        },
    ),
    "sweep": (
        {"out": "new", "data": DATA},
        {"out": ("name", "empty text"), "grid": ("empty text",), "speed": (), "batch": ("number",)},
    ),
    "export": (
        {"out": "a.onnx"},
        {"out": (), "mode": ("empty text",), "format": (), "input": SIZES, "calibrate": ("none",)},
    ),
    "train": (
        {"out": "new", "data": DATA},
        {
            "data": (),
            "steps": ("number",),
            "lr": ("number", "fraction"),
            "val_mode": (),
            "out": ("name",),
        },
    ),
}
OF_RESULTS = ("overlay", "blended", "tinted", "entropy_map", "probabilities", "to_coco", "save")
OF_CHECKED = ("to", "evaluate", "sweep", "tune", "bench", "export", "train")
VALUES = {
    "Inference": ("window", "stride", "batch", "scales", "flip"),
    "Mode": ("pause", "merge", "size", "protect", "criterion", "early_exit"),
    "PauseConfig": ("stages",),
    "Threshold": ("below",),
    "Client": ("url", "retries", "timeout"),
    "Measurement": ("mode", "miou", "images", "predicted"),
}


@pytest.fixture(scope="module")
def checked_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    paumer.build_model("test_vit", "linear", CAMVID.names, image_size=64).save_pretrained(path)
    return paumer.load(path)


@pytest.fixture(scope="module")
def model(checked_model, unchecked):
    """The model as users have it: here shapes are checked by others first."""
    return unchecked("paumer.loaded").load(checked_model.source)


@pytest.fixture(scope="module")
def function_of(model, checked_model, unchecked):
    """A public function or method by its name; where others check first, of the other paumer."""
    network, result = model.network, model.predict(IMAGE, "2:0.5")
    functions = {
        "load": paumer.load,
        "build_model": paumer.build_model,
        "Predictor": unchecked("paumer.inference.predictor").Predictor,
        "forward": network.forward,
        "forward_many": network.forward_many,
        "network macs": network.macs,
        "from_pretrained": type(network).from_pretrained,
        "open_dataset": unchecked("paumer.data.datasets").open_dataset,
        "draw": unchecked("paumer.pause_config").PauseConfig.draw,
        "check": unchecked("paumer.pause_config").PauseConfig.parse("3:0.4").check,
        "from_json": unchecked("paumer.measurement").Measurement.from_json,
        "parse": unchecked("paumer.mode").Mode.parse,
        **{call: getattr(result, call) for call in OF_RESULTS},
        **{call: getattr(checked_model, call) for call in OF_CHECKED},
    }

    def give(call):
        function = functions.get(call) or getattr(model, call)
        return (lambda **given: list(function(**given))) if call.endswith("_many") else function

    return give


@pytest.fixture(autouse=True)
def nothing_written(tmp_path, monkeypatch):
    """An empty folder to be in, which wrong calls leave empty."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


def what_is_wrong_with(function, given):
    """What is wrong with the answer to wrong arguments; None if it is one helpful sentence."""
    try:
        found = function(**given)
    except Exception as error:
        text = str(error)
        fine = (
            isinstance(error, TypeError | ValueError | OSError)
            and type(error).__module__.split(".")[0] in ("builtins", "paumer")
            and "\n" not in text
            and 10 < len(text) < 400
            and not re.search(
                r"has no attribute|NoneType|not subscriptable|unsupported operand", text
            )
            and re.search(r": |, |does not exist", text)  # What was given, and what would do.
        )
        return None if fine else f"{type(error).__name__}: {text}"
    return f"no error, but {found!r}"


SLOW = pytest.param("train", marks=pytest.mark.slow)  # Loads Lightning.


@pytest.mark.parametrize("call", [SLOW if call == "train" else call for call in CALLS])
def test_wrong_values(call, function_of):
    """Every argument with every wrong value."""
    usual, arguments = CALLS[call]
    cases = [(name, kind) for name in arguments for kind in WRONG if kind not in arguments[name]]
    function = function_of(call)
    found = {
        case: what_is_wrong_with(function, {**usual, case[0]: WRONG[case[1]]}) for case in cases
    }
    assert {case: answer for case, answer in found.items() if answer} == {}
    with pytest.raises(TypeError, match="nonsense"):
        function(**usual, nonsense=1)


@pytest.mark.parametrize("call", ["load", "predict", "predict_batch", "predict_many"])
def test_right_values(call, function_of, model):
    """So that what is refused above is refused for what is wrong with it."""
    usual, arguments = CALLS[call]
    usual = {"name": model.source} if call == "load" else usual
    function = function_of(call)
    assert function(**usual) is not None
    for name, kinds in arguments.items():
        for kind in kinds:
            function(**{**usual, name: WRONG[kind]})


@pytest.mark.parametrize("name", VALUES)
def test_wrong_fields(name, unchecked):
    """Their constructors are checked by others first, in the other paumer."""
    module = unchecked(getattr(paumer, name).__module__)
    kinds = ("object", "array", "type", "name")
    found = {
        (field, kind): what_is_wrong_with(getattr(module, name), {field: WRONG[kind]})
        for field in VALUES[name]
        for kind in kinds
    }
    assert {case: answer for case, answer in found.items() if answer} == {}


def test_wrong_images(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.png").write_text("not an image")
    Image.fromarray(IMAGE).save(folder / "a.png")
    with (folder / "a.png").open("rb") as closed:
        pass
    files = (closed, folder / "missing.png", folder / "text.png", folder)
    for image in (*IMAGES.values(), *files):
        for function in (model.predict, model):
            assert what_is_wrong_with(function, {"image": image}) is None
        assert what_is_wrong_with(model.predict_batch, {"images": [image]}) is None
    assert what_is_wrong_with(model.predict, {"image": closed}) is None


def test_images_of_pillow_that_cannot_be_read(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)).save(path)
    content = path.read_bytes()
    with Image.open(path) as closed:
        pass
    path.write_bytes(content[: len(content) // 2])
    with Image.open(path) as cut_short:
        for image in (closed, cut_short, Image.new("F", (8, 8)), Image.new("RGB", (0, 8))):
            assert what_is_wrong_with(model.predict, {"image": image}) is None


def test_wrong_directories_to_save_in(model):
    save = model.network.save_pretrained
    for kind in set(WRONG) - {"name", "empty text"}:
        assert what_is_wrong_with(save, {"save_directory": WRONG[kind]}) is None


def test_several_images_are_sent_to_predict_batch(model):
    for several in ([IMAGE], ["a.png", "b.png"], (IMAGE, IMAGE), np.stack([IMAGE, IMAGE])):
        with pytest.raises((TypeError, ValueError), match="predict_batch"):
            model(several)


def test_wrong_models():
    for kind in ("object", "array", "type", "name", "number"):
        assert what_is_wrong_with(paumer.evaluate, {"model": WRONG[kind], "data": DATA}) is None
        assert what_is_wrong_with(paumer.export, {"model": WRONG[kind], "out": "a.onnx"}) is None
        assert what_is_wrong_with(paumer.sweep, {"model": WRONG[kind], "out": "new"}) is None
        assert what_is_wrong_with(paumer.bench, {"model": WRONG[kind]}) is None


def test_values_without_use_are_refused(model):
    for retries, timeout in ((-1, 1.0), (0, 0.0), (0, math.inf)):
        with pytest.raises(ValueError, match="give at least 0 retries, and seconds above 0"):
            paumer.Client("http://127.0.0.1:9", retries, timeout)
    with pytest.raises(ValueError, match="threads is 0: give at least 1"):
        paumer.load(model.source, threads=0)
    with pytest.raises(ValueError, match="engine is an empty list"):
        model.bench("2:0.5", input="64", engine=[])
    with pytest.raises(ValueError, match='cannot use device "meta": it holds no weights'):
        model.to("meta")
    with pytest.raises(TypeError, match="the linear decoder has no option"):
        paumer.build_model("test_vit", "linear", decoder_options={"depth": 1})


def test_numbers_of_numpy_are_named_as_such(model):
    with pytest.raises(TypeError, match=r"^limit is np.int64\(3\): give a whole number or None$"):
        model.evaluate(DATA, limit=np.int64(3))


def test_any_value_is_one_of_any():
    assert arguments.fits({"a": object()}, dict[str, Any])
    assert not arguments.fits({1: object()}, dict[str, Any])


def test_checks_do_not_hide_signatures():
    assert "image" in inspect.signature(paumer.Model.predict).parameters
    assert inspect.getdoc(paumer.load).startswith("The model of that ``name``")
