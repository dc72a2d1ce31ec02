"""The network before the first step: which weights, classes, colours and points it has."""

import json
import warnings
from dataclasses import replace

import pytest
import torch

from paumer import Mode, PausingSegmenter, build_model, load
from paumer.classes import ADE20K, CAMVID, CITYSCAPES, ClassSet, distinct_colours
from paumer.data.datasets import open_dataset
from paumer.data.samples import Dataset
from paumer.inference.points import read_points, write_points
from paumer.measurement import Measurement
from paumer.training import run
from paumer.training.initial import initial_network, known_colours


class Classes(Dataset):
    """Data of some classes, of which no image is read."""

    name, split = "some", "train"

    def __init__(self, *names):
        self.class_set = ClassSet(names, distinct_colours(len(names)))

    def __len__(self):
        return 0

    def __getitem__(self, index):
        raise IndexError


@pytest.fixture(params=["mask", "linear", "pup"])
def model(request, lively, tmp_path):
    """A trained model of three classes."""
    network = lively(build_model("test_vit", request.param, ("a", "b", "c"), image_size=32))
    network.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def rows(network):
    """What there is for every class, by name, and the other tensors."""
    known = ("aux_head.", "class_embedding", "mask_norm", "decoder.head.", "classifier")
    tensors = network.state_dict()
    own = {n: t for n, t in tensors.items() if any(part in n for part in known)}
    classes = {}
    for number, name in enumerate(network.config.classes):
        parts = [t[:, number] if "embedding" in n else t[number] for n, t in own.items()]
        classes[name] = torch.cat([part.flatten() for part in parts])
    return classes, {n: t for n, t in tensors.items() if n not in own}


def test_classes_of_the_same_name_keep_their_weights(tiny, model):
    said = []
    options = replace(tiny, init=str(model))
    network = initial_network(options, Classes("d", "c", "a", "e"), said.append)
    assert network.config.classes == ("d", "c", "a", "e")
    (found, rest), (before, others) = rows(network), rows(PausingSegmenter.from_pretrained(model))
    assert torch.equal(found["c"], before["c"])
    assert torch.equal(found["a"], before["a"])
    assert all(not torch.equal(found["d"], row) for row in before.values())
    assert all(torch.equal(rest[name], others[name]) for name in others)
    text = "knows 2 of the 4 classes, which keep their weights; re-initialised: d, e"
    assert said == [f"{model} {text}"]
    again = initial_network(options, Classes("d", "c", "a", "e"))
    assert torch.equal(rows(again)[0]["d"], found["d"])


def test_other_classes_start_afresh_and_the_same_say_nothing(tiny, model):
    said = []
    options = replace(tiny, init=str(model))
    initial_network(options, Classes("x", "y"), said.append)
    assert said == [f"{model} knows none of the 2 classes: its heads are re-initialised"]
    same = initial_network(options, Classes("a", "b", "c"), said.append)
    assert len(said) == 1
    before = PausingSegmenter.from_pretrained(model).state_dict()
    assert all(torch.equal(tensor, before[n]) for n, tensor in same.state_dict().items())
    turned = rows(initial_network(options, Classes("c", "a", "b"), said.append))[0]
    assert torch.equal(turned["a"], rows(same)[0]["a"])
    assert said[1].endswith("knows 3 of the 3 classes, which keep their weights")


def test_a_model_without_names_keeps_its_order(tiny, lively, tmp_path):
    lively(build_model("test_vit", "mask", 3, image_size=32)).save_pretrained(tmp_path / "model")
    before = PausingSegmenter.from_pretrained(tmp_path / "model").state_dict()
    network = initial_network(replace(tiny, init=str(tmp_path / "model")), Classes("a", "b", "c"))
    assert all(torch.equal(tensor, before[n]) for n, tensor in network.state_dict().items())


def test_weights_come_from_wherever_a_model_can_be_named(tiny, whole):
    data = open_dataset(tiny.data, "train")
    of_run, of_model = (
        initial_network(replace(tiny, init=str(path)), data) for path in (whole, whole / "model")
    )
    assert torch.equal(of_run.aux_head.weight, of_model.aux_head.weight)
    of_file = initial_network(replace(tiny, init=str(whole / "model/model.safetensors")), data)
    assert torch.equal(of_file.aux_head.weight, of_model.aux_head.weight)
    builtin = initial_network(replace(tiny, init="street-tiny"), open_dataset("scenes:1"))
    assert torch.equal(builtin.aux_head.weight, load("street-tiny").network.aux_head.weight)
    assert builtin.config.trained_side is None


@pytest.mark.parametrize(
    "change", [{"image_size": [60000, 60000]}, {"decoder_options": {"depth": 60}}]
)
def test_a_hostile_configuration_allocates_nothing(tiny, whole, tmp_path, monkeypatch, change):
    config = json.loads((whole / "model/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    (tmp_path / "model.safetensors").write_bytes((whole / "model/model.safetensors").read_bytes())
    built, real = [], PausingSegmenter.from_config

    def note(config):
        built.append(torch.empty(0).device.type)
        return real(config)

    monkeypatch.setattr(PausingSegmenter, "from_config", note)
    with pytest.raises(ValueError, match="do not fit the model"):
        initial_network(replace(tiny, init=str(tmp_path)), open_dataset(tiny.data))
    assert built == ["meta"]


def test_colours_of_known_classes_stay_where_the_data_gives_none(tiny, model):
    data = Classes("road", "rider", "x", "pedestrian")
    found = known_colours(data.class_set)
    assert found[0] == CAMVID.colours[CAMVID.names.index("road")]
    assert found[1] == CITYSCAPES.colours[CITYSCAPES.names.index("rider")]
    assert found[2] == data.class_set.colours[2]
    assert found[3] == CAMVID.colours[CAMVID.names.index("pedestrian")]
    own = ClassSet(("road", "x"), ((1, 2, 3), (4, 5, 6)))
    assert known_colours(own) == own.colours
    assert known_colours(ADE20K) == ADE20K.colours
    network = PausingSegmenter.from_pretrained(model)
    config = replace(network.config, colours=((9, 9, 9), (8, 8, 8), data.class_set.colours[1]))
    three = Classes("c", "x", "a").class_set
    found = known_colours(three, config)
    assert (found[0], found[2]) == (data.class_set.colours[1], (9, 9, 9))
    assert len(set(found)) == 3  # x had the colour that c now has.


def test_operating_points_of_the_model_become_candidates_of_the_run(tiny, model, tmp_path):
    if "pup" in (model / "config.json").read_text():
        pytest.skip("nothing exits early")
    texts = {"fast": "2:0.5,3:0.5 exit", "kept": "3:0.5 protect=a", "gone": "3:0.5 protect=b"}
    points = {n: Measurement(mode=Mode.parse(t), miou=0.5, speed_up=2.0) for n, t in texts.items()}
    write_points(model, points)
    options = replace(tiny, init=str(model), steps=1, out=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.train(options)
    for name in ("model", "best"):
        found = read_points(options.out / name)
        assert {n: str(point.mode) for n, point in found.items()} == texts
        assert {point.miou for point in found.values()} == {None}
        assert load(options.out / name).mode("fast") == Mode.parse(texts["fast"])
