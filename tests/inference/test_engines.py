"""Whatever runs the network, the labels are the same."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from paumer import Mode, Predictor, build_model, load
from paumer.exporting.onnx import export_onnx
from paumer.inference.engines import TorchEngine, make_engine
from paumer.scenes.scene import scene

MODES = ("3:0.4", "3:0.4,5:0.4")


@pytest.fixture(scope="module")
def second(unchecked):
    """A second paumer whose shapes are not checked, because exporters cannot read the checks.

    A small network, a predictor of it, and a function that gives one with another engine.
    """
    torch.manual_seed(0)
    network = unchecked("paumer.model.build").build_model("test_vit", "mask", 3, image_size=64)
    make = unchecked("paumer.inference.engines").make_engine
    export = unchecked("paumer.exporting.onnx").export_onnx
    predictor = unchecked("paumer.inference.predictor").Predictor

    def with_engine(name):
        return predictor(network, engine=make(name, network, 1, export))

    return predictor(network), with_engine, unchecked("paumer.inference.tiles").Inference(batch=2)


def images(count):
    return list(np.random.default_rng(0).integers(0, 256, (count, 60, 64, 3), np.uint8))


def agreement(one, two):
    """The least share of pixels and of patches that agree over pairs of results."""
    pairs = list(zip(one, two, strict=True))
    labels = min(float((a.labels == b.labels).mean()) for a, b in pairs)
    return labels, min(float((a.paused_after == b.paused_after).mean()) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "least"), [("onnx", 0.999), ("onnx-int8", 0.9), ("openvino", 0.999)]
)
def test_labels_agree_with_torch(name, least, second, tmp_path_factory, monkeypatch):
    pytest.importorskip("onnxscript", reason="exporting needs onnxscript")
    pytest.importorskip("openvino" if name == "openvino" else "onnxruntime", reason=f"needs {name}")
    cache = tmp_path_factory.getbasetemp() / "engines"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    plain, with_engine, how = second
    fast = with_engine(name)
    for mode in (*MODES, *([] if name == "onnx-int8" else ["3:0.4,5:0.4 exit by=neighbours"])):
        one, two = (each.predict_batch(images(3), mode, how) for each in (plain, fast))
        assert min(agreement(one, two)) > least
    # One file for all modes and engines, beside what 8 bits made of it.
    assert len({file.name.replace(".int8", "") for file in cache.rglob("*.onnx")}) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on PATH")
def test_compiled_with_its_weights_packed_it_agrees_with_torch(second):
    torch.compiler.reset()
    plain, with_engine, how = second
    fast = with_engine("compile")
    for mode in ("none", "3:0.4 exit"):
        one, two = (each.predict_batch(images(2), mode, how) for each in (plain, fast))
        labels, paused = agreement(one, two)
        assert labels > 0.999
        assert paused == 1


def test_what_engines_cannot_do_is_said(tmp_path):
    network = build_model("test_vit", "mask", 3, image_size=32)
    with pytest.raises(ValueError, match='no engine "tensorrt": choose one of torch, compile'):
        make_engine("tensorrt", network, 1, export_onnx)
    engine = make_engine("onnx", network, 1, export_onnx, tmp_path)
    image, by_chance = np.zeros((32, 32, 3), np.uint8), {"random": lambda logits, indices: indices}
    predictor = Predictor(network, engine=engine)
    with pytest.raises(ValueError, match=r'takes ratios, not thresholds \("2:<0\.5"\)'):
        predictor.predict(image, "2:<0.5")
    with pytest.raises(ValueError, match="by=random is for evaluate and sweep alone"):
        list(predictor.predict_many([image], ["2:0.5 by=random"], given=by_chance))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, 'cannot use device "gpu": Expected one of cpu, cuda'),
        ({"device": "cpu:x"}, 'cannot use device "cpu:x"'),
        ({"engine": "tensorrt"}, 'no engine "tensorrt": choose one of torch, compile'),
    ],
)
def test_a_model_names_what_cannot_run_it(options, message):
    with pytest.raises(ValueError, match=message):
        load("street-tiny", **options)


def test_torch_answers_as_the_network_does_and_can_be_stopped(small_model):
    network, steps = small_model(), []
    pixels = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    modes = [Mode.parse(text) for text in ("none", "2:0.5", "2:0.5,4:0.5 exit", "1:~0.3,3:1 exit")]
    answers = list(TorchEngine(network, lambda: steps.append(1)).answers(pixels, modes, {}))
    assert sorted(number for number, *_ in answers) == [0, 1, 2, 3]
    for number, logits, paused, merged in answers:
        with torch.inference_mode():
            own = network(pixels, modes[number], full_size=False)
        assert torch.equal(logits, own.logits)
        assert torch.equal(paused, own.paused_after())
        assert torch.equal(merged, own.merged_after())
        assert bool(merged.any()) == (number == 3)
    assert len(steps) > network.backbone.depth

    def stop():
        steps.pop()
        if not steps:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        list(TorchEngine(network, stop).answers(pixels, modes, {}))
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.slow
def test_threads_share_an_exported_engine(unchecked, tmp_path):
    pytest.importorskip("openvino")
    engines, onnx = unchecked("paumer.inference.engines"), unchecked("paumer.exporting.onnx")
    predictor = unchecked("paumer.loaded").load("street-tiny")
    made = engines.make_engine("openvino", predictor.network, 1, onnx.export_onnx, tmp_path)
    predictor.engine = made
    image, modes = scene(3, (96, 64))[0], ["none", "3:0.4", "3:0.2,5:0.3"]
    with ThreadPoolExecutor(3) as pool:  # All of them meet a new size and mode at once.
        list(pool.map(lambda _: predictor.predict(image, "3:0.4"), range(3)))
        alone = {mode: predictor.predict(image, mode).labels for mode in modes}
        found = pool.map(
            lambda i: (i % 3, predictor.predict(image, modes[i % 3]).labels), range(60)
        )
        assert all(np.array_equal(labels, alone[modes[number]]) for number, labels in found)
