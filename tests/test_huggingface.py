"""Model directories in transformers: the same labels as by predict, without a network."""

import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import paumer
from paumer import Mode, build_model
from paumer.inference.points import write_points
from paumer.measurement import Measurement
from paumer.scenes.scene import scene

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
NAMES = [f"thing {i}" for i in range(12)]


@pytest.fixture(scope="module", autouse=True)
def known(unchecked):
    """Not checked for shapes: transformers rewrites the constructors of its configurations."""
    register = unchecked("paumer.huggingface").register
    register()
    register()  # Again does no harm.


@pytest.fixture(scope="module")
def directory(lively, tmp_path_factory):
    """A function that writes a model whose configuration says some more."""

    def give(name, **settings):
        path = tmp_path_factory.mktemp(name) / name
        network = lively(build_model("test_vit", "linear", NAMES, image_size=64))
        network.save_pretrained(path)
        config = json.loads((path / "config.json").read_text()) | settings
        (path / "config.json").write_text(json.dumps(config))
        write_points(path, {"fast": Measurement(mode=Mode.parse("2:0.6 exit"))})
        return path

    return give


def noise(seed, size):
    """An image with which a network of random weights sees several classes."""
    width, height = size
    small = np.random.default_rng(seed).integers(0, 256, (height // 16, width // 16, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize(size, Image.Resampling.NEAREST))


def labels_of(found, size):
    labels = np.full(size, 255)
    for part in found:
        assert part["score"] is None
        labels[np.asarray(part["mask"]) > 0] = NAMES.index(part["label"])
    return labels


@pytest.mark.parametrize(
    "settings", [{}, {"window": 48, "stride": 32}, {"trained_side": 64}, {"short_side": 80}]
)
@pytest.mark.parametrize("mode", ["none", "2:0.5,4:0.5", "fast"])
def test_the_pipeline_gives_the_labels_of_predict(directory, settings, mode, caplog):
    path = directory("model", **settings)
    pipe = transformers.pipeline("image-segmentation", model=str(path), model_kwargs={"mode": mode})
    model = paumer.load(path)
    for seed, size in enumerate([(96, 64), (130, 97)]):
        image = noise(seed, size)
        expected = model.predict(image, mode)
        assert len(np.unique(expected.labels)) > 1
        found = labels_of(pipe(Image.fromarray(image)), image.shape[:2])
        assert np.array_equal(found, expected.labels)
    assert not caplog.records


def test_a_batch_gives_the_labels_of_each(directory):
    path = directory("model", trained_side=64)
    pipe = transformers.pipeline("image-segmentation", model=str(path))
    model, images = paumer.load(path), [noise(seed, (130, 97)) for seed in range(3)]
    several = pipe([Image.fromarray(image) for image in images], batch_size=2)
    for image, found in zip(images, several, strict=True):
        assert np.array_equal(labels_of(found, (97, 130)), model.predict(image).labels)
    sizes = [noise(0, (96, 64)), noise(1, (64, 96)), noise(2, (130, 97))]
    for image, found in zip(sizes, pipe([Image.fromarray(one) for one in sizes]), strict=True):
        assert np.array_equal(labels_of(found, image.shape[:2]), model.predict(image).labels)


AGAIN = """
import sys
import numpy as np
from PIL import Image
from transformers import pipeline
from paumer.huggingface import register

register()
directory, mode, image, out = sys.argv[1:]
pipe = pipeline("image-segmentation", model=directory, model_kwargs={"mode": mode})
names = list(pipe.model.config.id2label.values())
with Image.open(image) as opened:
    labels = np.zeros((opened.height, opened.width), np.uint8)
for part in pipe(image):
    labels[np.asarray(part["mask"]) > 0] = names.index(part["label"])
np.save(out, labels)
"""


@pytest.mark.parametrize("settings", [{"short_side": 80}, {"window": 48, "stride": 32}])
def test_what_transformers_saved_is_read_by_another_process(directory, settings, tmp_path):
    pipe = transformers.pipeline("image-segmentation", model=str(directory("model", **settings)))
    with torch.no_grad():
        pipe.model.decoder.head.bias.add_(torch.randn(len(NAMES)) / 10)
    pipe.save_pretrained(tmp_path / "saved")
    Image.fromarray(noise(0, (130, 97))).save(tmp_path / "a.png")
    arguments = (tmp_path / "saved", "2:0.5", tmp_path / "a.png", tmp_path / "labels.npy")
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(paumer.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = paumer.load(tmp_path / "saved").predict(tmp_path / "a.png", "2:0.5").labels
    assert len(np.unique(expected)) > 1
    assert np.array_equal(np.load(tmp_path / "labels.npy"), expected)


def test_a_configuration_alone_is_saved_and_read(directory, tmp_path):
    path = directory("model", short_side=80)
    config = transformers.AutoConfig.from_pretrained(path, mode="fast")
    config.save_pretrained(tmp_path / "config")
    again = transformers.AutoConfig.from_pretrained(tmp_path / "config")
    assert again.model_config() == config.model_config()
    assert (again.mode, again.id2label) == ("fast", dict(enumerate(NAMES)))
    fresh = transformers.AutoModelForSemanticSegmentation.from_config(again)
    assert fresh(torch.zeros(1, 3, 32, 48), mode="none").logits.shape == (1, 12, 32, 48)


def test_what_trainers_ask_of_a_model(directory, tmp_path):
    """A loss that is a mean is divided by theirs; only the first process writes."""
    model = transformers.AutoModelForSemanticSegmentation.from_pretrained(directory("model"))
    kinds = [item.kind for item in inspect.signature(model.forward).parameters.values()]
    assert inspect.Parameter.VAR_KEYWORD not in kinds  # Or they count pixels instead.
    model.save_pretrained(tmp_path / "other", state_dict=None, is_main_process=False)
    assert not (tmp_path / "other").exists()


def test_the_built_in_model_in_the_pipeline():
    """Its file holds weights in 16 bits, with which labels would differ."""
    from paumer.model.directory import find_model

    pipe = transformers.pipeline("image-segmentation", model=str(find_model("street-tiny")))
    model, image = paumer.load("street-tiny"), scene(3, (192, 144))[0]
    found = pipe(Image.fromarray(image))
    expected = model.predict(image).labels
    for part in found:
        label = model.classes.names.index(part["label"])
        assert np.array_equal(np.asarray(part["mask"]) > 0, expected == label)


def test_the_auto_classes(directory, tmp_path):
    path = directory("model")
    model = transformers.AutoModelForSemanticSegmentation.from_pretrained(path)
    processor = transformers.AutoImageProcessor.from_pretrained(path)
    assert model.config.id2label == dict(enumerate(NAMES))
    images = [noise(seed, (96, 64)) for seed in range(2)]
    inputs = processor(images=images, return_tensors="pt")
    outputs = model(**inputs, mode="2:0.5")
    assert outputs.logits.shape == (2, 12, 64, 96)
    expected = paumer.load(path).predict_batch(images, "2:0.5")
    found = processor.post_process_semantic_segmentation(outputs, [(64, 96)] * 2)
    for labels, result in zip(found, expected, strict=True):
        assert np.array_equal(labels, result.labels)

    truth = torch.zeros(2, 64, 96, dtype=torch.uint8)
    model(**inputs, labels=truth).loss.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "aux_head" not in n)

    with torch.no_grad():
        model.decoder.head.bias.add_(1)
    model.save_pretrained(tmp_path / "mine")  # As transformers' Trainer does.
    again = paumer.load(tmp_path / "mine").network.state_dict()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_tables_that_no_file_holds_are_made(tmp_path):
    network = build_model("eva02_tiny_patch14_224", "linear", NAMES, image_size=56)
    network.save_pretrained(tmp_path / "rotary")
    model = transformers.AutoModelForSemanticSegmentation.from_pretrained(tmp_path / "rotary")
    images = torch.randn(1, 3, 56, 70)
    with torch.inference_mode():
        expected = network.eval()(images, "3:0.5").logits
        assert torch.allclose(model.eval()(images, mode="3:0.5").logits, expected, atol=1e-5)


def test_what_cannot_be_done_is_said(directory):
    path = directory("model")
    model = transformers.AutoModelForSemanticSegmentation.from_pretrained(path)
    processor = transformers.AutoImageProcessor.from_pretrained(path)
    images = torch.zeros(1, 3, 32, 32)
    with pytest.raises(ValueError, match="operating points of this model: fast"):
        model(images, mode="quick")
    with pytest.raises(ValueError, match="the image processor scales images"):
        model(images, mode="2:0.5 size=64")
    different = [np.zeros((32, 48, 3), np.uint8), np.zeros((32, 32, 3), np.uint8)]
    with pytest.raises(ValueError, match="images of 48x32 and 32x32 pixels make no batch"):
        processor(images=different)
    for call in (lambda: model(images, mood="fast"), lambda: processor(different, do_resize=False)):
        with pytest.raises(TypeError, match="got an unexpected keyword argument"):
            call()


def test_loading_warns_of_nothing(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transformers.AutoConfig.from_pretrained(directory("model"))
