"""A wrong argument to any public call is answered by one sentence that says what would do."""

import inspect
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import paumer
from paumer import Model, build_model
from paumer.classes import CAMVID

DATA = "scenes:2@96x64"
IMAGE = np.zeros((64, 96, 3), np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    build_model("test_vit", "linear", CAMVID.names, image_size=64).save_pretrained(path)
    return paumer.load(path)


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """An image file that was opened, and is closed again."""
    path = tmp_path_factory.mktemp("closed") / "a.png"
    Image.fromarray(IMAGE).save(path)
    with path.open("rb") as file:
        return file


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
}
# Where a wrong value is right.
FINE = {
    ("load", "threads"): ("number", "none"),
    ("predict", "window"): ("number", "none"),
    ("predict", "stride"): ("none",),
    ("predict", "scales"): ("list of numbers",),
    ("predict_batch", "images"): ("empty list",),
    ("predict_batch", "inference"): ("none",),
    ("predict_many", "images"): ("empty list",),
    ("predict_many", "modes"): ("empty list",),
    ("predict_many", "inference"): ("none",),
    ("evaluate", "limit"): ("number", "none"),
    ("evaluate", "inference"): ("none",),
    ("evaluate", "progress"): ("none",),
    ("tune", "limit"): ("number", "none"),
    ("tune", "speed_up"): ("number", "fraction"),
    ("tune", "name"): ("name", "none", "empty text"),
    ("tune", "settings"): ("none",),
    ("bench", "batch"): ("number",),
    ("bench", "images"): ("none",),
    ("bench", "settings"): ("none",),
    ("evaluate", "mode"): ("empty text",),  # Nothing pauses.
    ("predict", "mode"): ("empty text",),
    ("predict_batch", "mode"): ("empty text",),
    ("bench", "mode"): ("empty text",),
    ("build_model", "classes"): ("number",),
    ("build_model", "image_size"): ("number", "none"),
    ("build_model", "drop_path"): ("fraction",),
    ("build_model", "decoder_options"): ("none",),
}
CALLS = {
    "load": (lambda m: paumer.load, {}, ("name", "device", "engine", "threads")),
    "to": (lambda m: m.to, {}, ("device",)),
    "predict": (
        lambda m: m.predict,
        {"image": IMAGE},
        ("image", "mode", "window", "stride", "scales", "flip"),
    ),
    "predict_batch": (
        lambda m: m.predict_batch,
        {"images": [IMAGE]},
        ("images", "mode", "inference"),
    ),
    "predict_many": (
        lambda m: lambda **given: list(m.predict_many(**given)),
        {"images": [IMAGE], "modes": ["none"]},
        ("images", "modes", "inference"),
    ),
    "evaluate": (
        lambda m: m.evaluate,
        {"data": DATA, "limit": 1},
        ("data", "mode", "split", "limit", "inference", "by_size", "progress"),
    ),
    "tune": (
        lambda m: m.tune,
        {"data": DATA, "speed_up": 1.5},
        ("data", "mode", "speed_up", "name", "split", "limit", "settings"),
    ),
    "bench": (
        lambda m: m.bench,
        {"input": "64"},
        ("mode", "input", "batch", "images", "engine", "settings"),
    ),
    "build_model": (
        lambda m: build_model,
        {"backbone": "test_vit", "image_size": 64},
        ("backbone", "decoder", "classes", "image_size", "drop_path", "decoder_options"),
    ),
}
CASES = [
    (call, name, kind)
    for call, (_, _, names) in CALLS.items()
    for name in names
    for kind in WRONG
    if kind not in FINE.get((call, name), ())
]


def assert_one_sentence(error):
    text = str(error.value)
    assert isinstance(error.value, TypeError | ValueError | OSError), error.value
    assert type(error.value).__module__.split(".")[0] in ("builtins", "paumer")
    assert "\n" not in text
    assert 10 < len(text) < 400
    assert not re.search(r"has no attribute|NoneType|not subscriptable|unsupported operand", text)
    assert re.search(r": |, |does not exist", text), text  # What was given, and what would do.


@pytest.mark.parametrize(("call", "name", "kind"), CASES)
def test_a_wrong_value(call, name, kind, model, plain, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    give, usual, _ = CALLS[call]
    with pytest.raises(Exception) as error:
        give(plain if "predict" in call else model)(**{**usual, name: WRONG[kind]})
    assert_one_sentence(error)


@pytest.mark.parametrize(
    "call", ["load", "predict", "predict_batch", "predict_many", "build_model"]
)
def test_a_right_value(call, model):
    """So that what is refused above is refused for what is wrong with it."""
    give, usual, names = CALLS[call]
    given = {"name": model.source} if call == "load" else usual
    assert give(model)(**given) is not None
    for name in names:
        for kind in FINE.get((call, name), ()):
            give(model)(**{**given, name: WRONG[kind]})


@pytest.fixture(scope="module")
def plain(model, unchecked):
    """The model as users have it: here shapes are checked by others first."""
    return unchecked("paumer.loaded").load(model.source)


@pytest.mark.parametrize("kind", IMAGES)
def test_a_wrong_image(kind, plain):
    for give in (plain.predict, plain, lambda image: plain.predict_batch([image])):
        with pytest.raises((TypeError, ValueError)) as error:
            give(IMAGES[kind])
        assert_one_sentence(error)


def test_a_closed_file_a_missing_one_and_one_without_an_image(plain, closed, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    for image in (closed, tmp_path / "missing.png", tmp_path / "text.png", tmp_path):
        with pytest.raises((TypeError, ValueError, OSError)) as error:
            plain.predict(image)
        assert_one_sentence(error)


@pytest.mark.parametrize(
    "make",
    [
        lambda p, value: p.Inference(window=value, stride=value, batch=value),
        lambda p, value: p.Inference(scales=value),
        lambda p, value: p.Inference(flip=value),
        lambda p, value: p.Mode(pause=value),
        lambda p, value: p.Mode(size=value, protect=value),
        lambda p, value: p.PauseConfig(stages=value),
        lambda _, value: paumer.train(data=value, out="nowhere"),
        lambda _, value: paumer.train(steps=value, lr=value, data="scenes"),
        lambda _, value: paumer.resume(value),
        lambda _, value: paumer.sweep(value, data=value),
        lambda _, value: paumer.export(value, model=value),
        lambda p, value: p.Threshold(value),
    ],
)
@pytest.mark.parametrize("kind", ["object", "array", "type", "name"])
def test_a_wrong_value_of_a_value(make, kind, tmp_path, monkeypatch, unchecked):
    monkeypatch.chdir(tmp_path)
    stages = unchecked("paumer.pause_config")  # Their constructors are checked by others first.
    values = SimpleNamespace(
        Inference=unchecked("paumer.inference.tiles").Inference,
        Mode=unchecked("paumer.mode").Mode,
        PauseConfig=stages.PauseConfig,
        Threshold=stages.Threshold,
    )
    with pytest.raises(Exception) as error:
        make(values, WRONG[kind])
    assert_one_sentence(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [*CALLS, "train", "export"])
def test_an_argument_that_there_is_not(call, model):
    give, usual, _ = CALLS.get(call, (lambda m: getattr(m, call), {"out": "nowhere"}, ()))
    with pytest.raises(TypeError, match="nonsense"):
        give(model)(**usual, nonsense=1)


def test_checks_do_not_hide_signatures():
    assert "image" in inspect.signature(Model.predict).parameters
    assert inspect.getdoc(paumer.load).startswith("The model of that name")
