"""A user's program with every public call: `make check` reads its types, a slow test runs it."""

import sys
from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from torch.utils.data import DataLoader

import paumer
from paumer import (
    Client,
    Inference,
    Measurement,
    Mode,
    Model,
    PauseConfig,
    PausingSegmenter,
    Prediction,
    Predictor,
    Segmentation,
    Stage,
    Threshold,
)
from paumer.data.datasets import open_dataset
from paumer.data.samples import Dataset, Sample
from paumer.study.accuracy import Tally
from paumer.study.speed import SpeedReport, SpeedSettings
from paumer.study.tuning import Tuned, TuneSettings

DATA = "scenes:2@96x64"
QUICK = SpeedSettings(rounds=1, warmup=0)


def values() -> None:
    """Modes and pause configurations."""
    pause = PauseConfig.parse("3:0.2,5:0.4")
    assert pause in (PauseConfig(((3, 0.2), (5, 0.4))), *paumer.PAPER_CONFIGS)
    assert_type(pause.blocks, tuple[int, ...])
    pause.check(depth=12, early_exit=False)
    assert not pause.leaves
    assert PauseConfig.draw(seed=0, step=1).stages
    assert str(PauseConfig(((3, Threshold(0.35)),))) == "3:<0.35"
    mode = Mode.parse("3:0.4,9:0.9 exit by=neighbours protect=car size=96")
    assert mode.stages[0] == (3, False, 0.4)
    assert (mode.criterion, mode.early_exit) == ("neighbours", True)
    assert (mode.protect, mode.size) == (("car",), 96)
    assert Mode(pause=mode.pause, merge=mode.merge, size=96) != mode
    print(mode.slug, paumer.__version__, paumer.DEFAULT_MODEL)


def network_alone(folder: Path) -> None:
    """Tensors in, logits out."""
    names = open_dataset(DATA).class_set.names
    network = paumer.build_model("test_vit", "linear", names, image_size=64)
    network.save_pretrained(folder)
    network = PausingSegmenter.from_pretrained(folder)
    images = torch.rand(1, 3, 64, 96)
    prediction: Prediction = network(images, "2:0.5")
    stage: Stage = prediction.stages[0]
    assert stage.kept.shape == (1, 12)
    assert prediction.paused_after().shape == prediction.merged_after().shape == (1, 4, 6)
    assert len(prediction.maps()) == 3
    assert [number for number, _ in network.forward_many(images, [Mode(), Mode.parse("2:0.5")])]
    assert network.macs((64, 96), "2:0.5") < network.macs((64, 96))
    assert Predictor(network).source is None


def predicting(model: Model) -> Segmentation:
    """Images of every kind, one and many."""
    image = open_dataset(DATA, "val")[0].image
    size = (image.shape[0], image.shape[1])
    result = model.predict(image, "2:0.5 exit", window=64, stride=32, scales=(1.0, 0.5), flip=True)
    assert_type(result, Segmentation)
    assert_type(model(torch.from_numpy(image)), Segmentation)
    (one,) = model.predict_batch([image], PauseConfig.parse("2:0.5"), Inference(batch=2))
    for number, (two,) in model.predict_many([image], ["none", Mode()], Inference(flip=True)):
        assert (number, two.mode) in [(0, Mode()), (1, Mode())]
    assert_type(model.mode("2:0.5"), Mode)
    assert_type(model.modes, dict[str, Mode])
    assert_type(model.points, dict[str, Measurement])
    assert model.to("auto").to(torch.device("cpu")).device == torch.device("cpu")
    assert model.known_source() == model.source
    assert model.weights() is model.network
    assert model.windows(size, inference=Inference(window=64)) == len(
        model.geometry(size, inference=Inference(window=64)).corners
    )
    assert model.scaled(size) == model.whole_geometry(size).scaled
    assert model.scaled_labels(one.labels.astype(np.uint8)).shape == size
    assert model.network_inputs(image).shape == model.whole_input(image).shape
    assert model.macs(size, "2:0.5") < model.macs(size)
    print(model, model.fingerprint(), model.config.backbone, model.classes.names, model.engine.name)
    return result


def results(result: Segmentation, folder: Path) -> None:
    """What a segmentation gives."""
    height, width = result.labels.shape
    assert_type(result.class_ratios(), dict[str, float])
    assert result.probabilities().shape[1:] == (height, width)
    assert result.probabilities(full_size=False).shape[1:] == result.entropy.shape
    assert result.paused_after.shape == result.merged_after.shape
    assert set(result.polygons()) <= set(result.classes.names)
    assert set(result.to_coco("a.png", image_id=7)) == {"images", "annotations", "categories"}
    result.overlay(alpha=0.5).save(folder / "overlay.png")
    result.pause_map().save(folder / "paused.png")
    arrays = [result.tinted(), result.blended(0.3), result.painted(), result.entropy_map()]
    assert {array.shape for array in arrays} == {result.image.shape}
    assert_type(result.save(folder, "a", ["mask", "entropy"]), list[Path])
    print(result, result.mode, result.seconds, result.patch, len(result.answers))


def data_sets() -> None:
    """torch's data sets of torch's samples."""
    dataset = open_dataset(DATA, "val")
    own: Dataset = dataset
    given: torch.utils.data.Dataset[Sample] = dataset
    assert_type(dataset[0], Sample)
    for name, image, labels in dataset:
        assert image.shape[:2] == labels.shape
        print(name, len(dataset), dataset.name, dataset.split, dataset.class_set, own.files(0))
    for batch in DataLoader(given, batch_size=2):
        assert batch.image.shape == (2, 64, 96, 3)
    assert dataset.problems == ()


def measuring(model: Model, folder: Path) -> None:
    """Each command as a function and as a method."""
    assert_type(model.evaluate(DATA, ["none", "2:0.5"], limit=1), dict[Mode, Tally])
    for tally in paumer.evaluate(model, open_dataset(DATA, "val"), device="cpu").values():
        print(tally.miou, tally.iou, tally.interval(), tally.to_json(model.classes.names))
    assert_type(model.bench("2:0.5", input="64", settings=QUICK), SpeedReport)
    assert len(paumer.bench(model.network, "2:0.5", input="64", settings=QUICK).measurements) == 2
    assert_type(model.sweep(folder / "one", DATA, "2:0.5", speed="none"), list[Measurement])
    (first, *_) = paumer.sweep(model, folder / "two", DATA, "2:0.5", speed="none")
    assert Measurement.from_json(first.to_json()) == first
    settings = TuneSettings(most=2, finalists=2, speed=QUICK)
    assert_type(model.tune(DATA, max_drop=100, limit=1, name="a", settings=settings), Tuned)
    tuned = paumer.tune(model, DATA, "auto exit", speed_up=1.0, limit=1, settings=settings)
    print(tuned.choice, tuned.met, tuned.points, tuned.evaluated)


def training(model: Model, folder: Path) -> None:
    """Trained by two calls, and longer."""

    def callback(step: int, values: dict[str, float]) -> None:
        print(step, values["loss"])

    run = paumer.train(
        data=DATA, out=str(folder / "a"), init=str(model.source), steps=1, batch=2, crop="64",
        workers=0, ranges="2-4:0.2-0.8", val_mode="none", logger="none", callbacks=[callback],
    )  # fmt: skip
    assert_type(paumer.resume(run, steps=2, callbacks=[callback]), Path)
    new = model.train(
        data=DATA, out=folder / "b", steps=1, batch=2, crop="64", workers=0, logger=["none"],
        ranges="2-4:0.2-0.8", val_mode=["none"],
    )  # fmt: skip
    assert_type(new, Model)


def exporting(model: Model, folder: Path) -> None:
    """A file that is loaded again."""
    made = model.export(folder / "a.onnx", "2:0.5", input="96x64")
    print(made, made.agreement, made.modes, made.script)
    file = paumer.load(made.path, device="cpu", threads=1).to("auto")
    assert file.predict(open_dataset(DATA, "val")[0].image, "2:0.5").labels.shape == (64, 96)
    assert paumer.export(model, str(folder / "b.pt2"), "2:0.5", format="program").agreement > 0.9


def serving() -> None:
    """A service that is not there."""
    client = Client("http://127.0.0.1:9", retries=0, timeout=1.0)
    image = np.zeros((8, 8, 3), np.uint8)
    try:
        client.predict(image, "auto", floor="fast", deadline_ms=200, priority="high")
        print(client.model())
    except ConnectionError as error:
        print(error)


def main(folder: Path) -> None:
    values()
    network_alone(folder / "model")
    model = paumer.load(folder / "model", device="auto", engine="torch")
    results(predicting(model), folder)
    data_sets()
    measuring(model, folder)
    training(model, folder)
    exporting(model, folder)
    serving()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
