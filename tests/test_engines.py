import shutil

import numpy as np
import pytest
import torch

from paumer import Inference, PauseConfig, Predictor, build_model
from paumer.criteria import confidence
from paumer.engines import make_engine

pytestmark = pytest.mark.slow
WAYS = [("3:0.4", False), ("3:0.4,5:0.4", False)]


@pytest.fixture(scope="module")
def unchecked_paumer(unchecked):
    """A second paumer whose shapes are not checked: exporters cannot read the checks."""
    return unchecked


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "least"), [("onnx", 0.999), ("onnx-int8", 0.9), ("openvino", 0.999)]
)
def test_labels_agree_with_torch(name, least, unchecked_paumer, tmp_path_factory, monkeypatch):
    pytest.importorskip("onnxscript", reason="exporting needs onnxscript")
    pytest.importorskip("openvino" if name == "openvino" else "onnxruntime", reason=f"needs {name}")
    cache = tmp_path_factory.getbasetemp() / "engines"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    torch.manual_seed(0)
    other = unchecked_paumer("paumer.predict")
    segmenter, pauses = (
        unchecked_paumer(f"paumer.{m}") for m in ("model.segmenter", "pause_config")
    )
    network = segmenter.build_model("test_vit", "mask", 3, image_size=64)
    pictures = list(np.random.default_rng(0).integers(0, 256, (3, 60, 64, 3), np.uint8))
    plain = other.Predictor(network)
    fast = other.Predictor(
        network, engine=unchecked_paumer("paumer.engines").make_engine(name, network, 1)
    )
    for text, early_exit in WAYS:
        how = other.Inference(pause=pauses.PauseConfig.parse(text), early_exit=early_exit, batch=2)
        pairs = zip(
            plain.predict_batch(pictures, how), fast.predict_batch(pictures, how), strict=True
        )
        for one, two in pairs:
            assert (one.labels == two.labels).mean() > least
            assert (one.paused_after == two.paused_after).mean() > least
    # One file for both configurations and for all engines, beside what 8 bits made of it.
    files = {file.name.split(".")[0] for file in cache.rglob("*.onnx")}
    assert len([file for file in files if "neighbours" not in file]) == 1
    if name == "onnx-int8":
        return
    who = unchecked_paumer("paumer.criteria").neighbours
    how = other.Inference(pause=pauses.PauseConfig.parse("3:0.4,5:0.4"), criterion=who, batch=2)
    pairs = zip(plain.predict_batch(pictures, how), fast.predict_batch(pictures, how), strict=True)
    for one, two in pairs:
        assert (one.labels == two.labels).mean() > least
        assert (one.paused_after == two.paused_after).mean() > least


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on PATH")
def test_compiled_with_its_weights_packed_it_agrees_with_torch(unchecked_paumer):
    torch.manual_seed(0)
    torch.compiler.reset()
    other, segmenter, pauses, engines = (
        unchecked_paumer(f"paumer.{m}")
        for m in ("predict", "model.segmenter", "pause_config", "engines")
    )
    network = segmenter.build_model("test_vit", "mask", 3, image_size=64)
    pictures = list(np.random.default_rng(0).integers(0, 256, (2, 60, 64, 3), np.uint8))
    plain = other.Predictor(network)
    fast = other.Predictor(network, engine=engines.make_engine("compile", network))
    for text, early_exit in [("none", False), ("3:0.4", True)]:
        how = other.Inference(pause=pauses.PauseConfig.parse(text), early_exit=early_exit, batch=2)
        pairs = zip(
            plain.predict_batch(pictures, how), fast.predict_batch(pictures, how), strict=True
        )
        for one, two in pairs:
            assert (one.labels == two.labels).mean() > 0.999
            assert (one.paused_after == two.paused_after).all()


def test_what_engines_cannot_do_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    network = build_model("test_vit", "mask", 3, image_size=32)
    with pytest.raises(ValueError, match='no engine "tensorrt"'):
        make_engine("tensorrt", network)
    predictor = Predictor(network, engine=make_engine("onnx", network))
    how = Inference(pause=PauseConfig.parse("2:0.5"), criterion=confidence)
    with pytest.raises(ValueError, match="pause by one of entropy, borders"):
        predictor.predict_batch([np.zeros((32, 32, 3), np.uint8)], how)
