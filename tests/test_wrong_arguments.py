"""A wrong argument to any public call is answered by one sentence that says what would do."""

import inspect
import re

import numpy as np
import pytest
import torch
from PIL import Image

import paumer
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
    "no image in bytes": b"not an image",
    "no bytes": b"",
    "several": [IMAGE, IMAGE],
}
SIZES = ("number", "none")
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
VALUES = {
    "Inference": ("window", "stride", "batch", "scales", "flip"),
    "Mode": ("pause", "merge", "size", "protect", "criterion", "early_exit"),
    "PauseConfig": ("stages",),
    "Threshold": ("below",),
    "Client": ("url",),
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


@pytest.fixture
def function_of(model, checked_model):
    """A public function or method by its name."""

    def give(call):
        if call in ("load", "build_model"):
            return getattr(paumer, call)
        method = getattr(model if "predict" in call else checked_model, call)
        return (lambda **given: list(method(**given))) if call == "predict_many" else method

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


def test_checks_do_not_hide_signatures():
    assert "image" in inspect.signature(paumer.Model.predict).parameters
    assert inspect.getdoc(paumer.load).startswith("The model of that name")
