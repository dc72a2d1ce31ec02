"""What `paumer.load` gives: one object, whose methods are the functions."""

import inspect
import re

import numpy as np
import pytest
import torch
from PIL import Image

import paumer
from paumer import Mode, Model, Predictor, api, build_model
from paumer.classes import CAMVID
from paumer.scenes.scene import scene
from paumer.study.speed import SpeedSettings
from paumer.study.tradeoff import Budget
from paumer.study.tuning import Tuned

DATA = "scenes:2@96x64"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "model"
    build_model("test_vit", "linear", CAMVID.names, image_size=64).save_pretrained(path)
    return paumer.load(path)


def test_it_is_a_predictor_that_can_be_called(model):
    assert isinstance(model, Model)
    assert isinstance(model, Predictor)
    image = scene(1, (96, 64))[0]
    assert np.array_equal(model(image, "2:0.5").labels, model.predict(image, "2:0.5").labels)
    assert model.to("cpu") is model.to("auto") is model.to(torch.device("cpu")) is model
    assert repr(model).startswith("Model(test_vit")
    with pytest.raises(ValueError, match='cannot use device "nowhere"'):
        model.to("nowhere")


@pytest.mark.parametrize("name", ["evaluate", "sweep", "tune", "bench", "export"])
def test_a_method_is_the_function_with_this_model(name, model):
    assert getattr(Model, name) is getattr(api, name)
    function = inspect.signature(getattr(api, name)).parameters
    assert list(inspect.signature(getattr(model, name)).parameters) == list(function)[1:]
    assert next(iter(function)) == "model"


def test_a_device_moves_the_model(model):
    model.evaluate(DATA, limit=1, device="cpu")
    for call in (model.evaluate, model.bench):
        with pytest.raises(ValueError, match='cannot use device "nowhere"'):
            call(device="nowhere")


def test_every_kind_of_image(model, tmp_path):
    image = scene(1, (96, 64))[0]
    Image.fromarray(image).save(tmp_path / "a.png")
    path, tensor = tmp_path / "a.png", torch.from_numpy(image)
    kinds = (
        path,
        str(path),
        path.read_bytes(),
        Image.open(path),
        tensor,
        tensor.mT.contiguous().mT,
    )
    expected = model.predict(image, "2:0.5").labels
    assert len(np.unique(expected)) > 1
    for given in kinds:
        assert np.array_equal(model(given, "2:0.5").labels, expected)
    several = model.predict_batch(torch.stack([tensor, tensor]), "2:0.5")
    assert [np.array_equal(result.labels, expected) for result in several] == [True, True]


def test_methods_give_what_the_functions_give(model):
    (mine,), (given,) = model.evaluate(DATA, "2:0.5"), api.evaluate(model.source, DATA, "2:0.5")
    assert mine == given == Mode.parse("2:0.5")
    settings = SpeedSettings(rounds=1, warmup=0)
    report = model.bench("2:0.5", input="64", settings=settings)
    assert [str(item.mode) for item in report.measurements] == ["none", "2:0.5"]


def test_a_tuned_model_knows_its_point_and_a_built_in_one_is_tuned_in_a_copy(tmp_path, monkeypatch):
    def found(predictor, *_):
        choice = predictor.points["fast"]
        return Tuned(choice, True, {}, (choice,), Budget(speed_up=1.5))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paumer.study.tuning.tune", found)
    model = paumer.load("street-tiny")
    for name in ("mine", "again"):  # The second time the copy is there, and meant.
        model.tune(speed_up=1.5, name=name)
        assert model.mode(name) == model.points["fast"].mode
    assert {"fast", "mine", "again"} <= set(paumer.load("street-tiny-tuned").points)
    assert "mine" not in paumer.load("street-tiny").points


def test_what_lies_in_no_directory_is_not_tuned():
    fresh = Model(build_model("test_vit", "linear", 3, image_size=64))
    with pytest.raises(ValueError, match="lies in no directory"):
        fresh.tune(DATA, speed_up=1.5)
    with pytest.raises(ValueError, match="lies in no directory"):
        fresh.train(data=DATA)


@pytest.mark.slow
def test_training_gives_a_new_model(model, tmp_path):
    pytest.importorskip("lightning_fabric")
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    new = model.train(
        data=DATA, out=str(tmp_path / "run"), steps=2, batch=2, crop="64", workers=0,
        ranges="2-4:0.2-0.8", val_mode="none", lr=0.01,
    )  # fmt: skip
    assert isinstance(new, Model)
    assert new.source == tmp_path / "run"
    after = model.network.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    weights = new.network.state_dict()
    assert any(not torch.equal(weights[name], tensor) for name, tensor in before.items())
    assert new.classes.names == model.classes.names
    image = scene(1, (96, 64))[0]
    assert np.array_equal(new(image).labels, paumer.load(tmp_path / "run").predict(image).labels)
    again = new.train(
        data=DATA, out=tmp_path / "again", steps=1, batch=2, crop="64", workers=0, lr=0.0,
        ranges="2-4:0.2-0.8", val_mode="none", min_lr=0.0, logger="none",
    )  # fmt: skip
    assert np.array_equal(again(image).labels, new(image).labels)
    with pytest.raises(ValueError, match="starts from the model itself"):
        model.train(data=DATA, init="timm")


def test_an_exported_file_stays_on_the_cpu_and_is_not_trained(monkeypatch):
    network = build_model("test_vit", "linear", 3, image_size=64).to("meta")
    file = Model(network, source="a.onnx")
    assert file.to("cpu") is file.to("auto") is file
    assert file.device == torch.device("cpu")
    monkeypatch.setattr("paumer.inference.predictor.pick_device", torch.device)
    with pytest.raises(ValueError, match="runs on cpu, not cuda"):
        file.to("cuda")
    with pytest.raises(ValueError, match="is an exported file, and this needs the network itself"):
        file.train(data=DATA)


def test_an_option_that_there_is_not_is_one_of_the_call(model):
    for train in (model.train, api.train):
        with pytest.raises(TypeError, match=r"^train\(\) got an unexpected keyword .*'epochs'"):
            train(data=DATA, epochs=3)


def test_help_names_every_argument_of_a_training():
    options = inspect.signature(Model.train).parameters
    assert {"data", "out", "steps", "lr"} <= set(options)
    assert "init" not in options
    assert "data=" in inspect.getdoc(Model.train)


FUNCTIONS = [getattr(paumer, name) for name in paumer.__all__ if name not in ("train",)]
FUNCTIONS = [function for function in FUNCTIONS if inspect.isfunction(function)]


@pytest.mark.parametrize("function", [*FUNCTIONS, Model.predict])
def test_help_says_what_every_argument_is(function):
    text, names = inspect.getdoc(function), list(inspect.signature(function).parameters)
    known = ("self", "image")  # Said in the first line.
    assert [name for name in names if f"``{name}``" not in text and name not in known] == []
    if function not in (paumer.build_model, paumer.resume):
        assert re.search(r"\n\n    .*(paumer|model)\.", text)  # An example.
