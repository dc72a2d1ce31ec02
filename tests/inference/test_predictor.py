import json
import math
import pickle
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional as F

from paumer import Inference, Measurement, Mode, PauseConfig, Predictor, build_model
from paumer.data.datasets import open_dataset
from paumer.data.transforms import normalise
from paumer.study.speed import peak_memory

NAMES = [f"thing {i}" for i in range(6)]


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return Predictor(build_model("test_vit", "mask", NAMES, image_size=64))


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def direct(predictor, image, mode="none"):
    """Labels straight from the network's full-size logits, and where they are clear."""
    config = predictor.config
    tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())[None]
    with torch.inference_mode():
        images = normalise(tensor, config.mean, config.std)
        logits = predictor.network(images, mode).logits[0]
    two = logits.topk(2, dim=0).values
    return logits.argmax(0).numpy(), (two[0] - two[1] > 1e-4).numpy()


@pytest.mark.parametrize("size", [(64, 64), (50, 70), (7, 5), (100, 33)])
@pytest.mark.parametrize("mode", ["none", "2:0.4", "2:0.3,4:0.5", "2:0.4 by=neighbours"])
def test_labels_are_those_of_the_network_at_the_size_that_came_in(predictor, size, mode):
    image = picture(*size)
    result = predictor.predict(image, mode)
    labels, clear = direct(predictor, image, mode)
    assert result.labels.shape == size
    assert result.labels.dtype == np.uint8
    assert np.array_equal(result.labels[clear], labels[clear])
    assert result.image is image
    assert str(result.mode) == mode


def test_early_exit_reaches_the_network(predictor):
    image = picture(64, 64)
    labels, clear = direct(predictor, image, "2:0.8 exit")
    result = predictor.predict(image, "2:0.8 exit")
    assert np.array_equal(result.labels[clear], labels[clear])
    assert not np.array_equal(result.labels, predictor.predict(image, "2:0.8").labels)


def test_a_mode_is_given_as_itself_as_text_as_stages_or_by_name(predictor):
    named = Predictor(predictor.network, {"fast": Measurement(mode=Mode.parse("2:0.5 exit"))})
    assert named.modes == {"fast": Mode.parse("2:0.5 exit")}
    for given_ in ("fast", "2:0.5 exit", Mode.parse("2:0.5 exit")):
        assert named.mode(given_) == Mode.parse("2:0.5 exit")
    assert named.mode(PauseConfig.parse("2:0.5")) == Mode.parse("2:0.5")
    with pytest.raises(ValueError, match="operating points of this model: fast"):
        named.mode("slow")
    with pytest.raises(ValueError, match="operating points of this model: none"):
        predictor.mode("fast")


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("14:0.2", "cannot pause after block 14: this backbone has 6 blocks"),
        ("2:0.5 by=random", "by=random is for evaluate and sweep alone"),
        ("2:0.5 by=oracle", "by=oracle is for evaluate and sweep alone"),
        ("2:0.5 protect=thing", 'no class "thing" to protect: the model knows thing 0, thing 1'),
        ("6:0.5", "saves nothing without early exit"),
    ],
)
def test_modes_that_cannot_run_are_refused(predictor, mode, message):
    with pytest.raises(ValueError, match=message):
        predictor.predict(picture(8, 8), mode)


def test_studies_run_more_than_others(predictor):
    mode = Mode.parse("2:0.5 by=random")
    assert predictor.mode(mode, study=True) == mode
    with pytest.raises(ValueError, match='nothing says what "random" knows'):
        predictor.network(torch.zeros(1, 3, 32, 32), mode)

    def left_first(logits, indices):
        return (indices % 4).float()

    given_ = {"random": left_first}
    ((_, (result,)),) = predictor.predict_many([picture(64, 64)], [mode], given=given_)
    assert (result.paused_after == [[2, 2, 0, 0]] * 4).all()


def test_what_is_neither_a_mode_nor_an_image_is_a_type_error(unchecked):
    network = unchecked("paumer.model.build").build_model("test_vit", "mask", 3, image_size=32)
    predictor = unchecked("paumer.inference.predictor").Predictor(network)
    with pytest.raises(TypeError, match=r"mode is 0\.5: give a Mode, a PauseConfig or a text"):
        predictor.predict(picture(8, 8), 0.5)
    with pytest.raises(TypeError, match="int is not an image: give a path, the content of"):
        predictor.predict(3)
    with pytest.raises(ValueError, match=r"shape \(3, 8, 8\) and type float32 was given"):
        predictor.predict(np.zeros((3, 8, 8), np.float32))


def test_patches_of_protected_classes_pause_last(predictor):
    image = picture(64, 64)
    with torch.inference_mode():
        stage = predictor.network(predictor.whole_input(image), "2:0.5").stages[0]
    looks = stage.logits.argmax(-1)[0]
    kept = torch.zeros(16, dtype=torch.bool).index_fill(0, stage.kept[0], True)
    number = next(int(label) for label in looks[~kept].unique() if (looks == label).sum() <= 8)
    result = predictor.predict(
        image, Mode(pause=PauseConfig(((2, 0.5),)), protect=(NAMES[number],))
    )
    assert (result.paused_after.ravel()[(looks == number).numpy()] == 0).all()
    assert (result.paused_after > 0).sum() == 8


def test_the_pause_map_counts_what_paused(predictor):
    result = predictor.predict(picture(64, 64), "2:0.25,4:0.5")
    blocks, counts = np.unique(result.paused_after, return_counts=True)
    assert blocks.tolist() == [0, 2, 4]
    assert counts.tolist() == [6, 4, 6]
    assert result.entropy.shape == result.paused_after.shape == (4, 4)
    assert (result.entropy >= 0).all()
    assert (result.entropy <= np.log(6) + 1e-4).all()


def test_a_window_larger_than_the_image_is_one_pass(predictor):
    image = picture(40, 60)
    once = predictor.predict(image, "2:0.4")
    windowed = predictor.predict(image, "2:0.4", window=64, stride=32)
    assert np.array_equal(once.labels, windowed.labels)


def test_windows_see_their_part_only(predictor):
    left, right = picture(64, 64, 1), picture(64, 64, 2)
    whole = np.concatenate([left, right], 1)
    both = predictor.predict(whole, window=64, stride=64)
    assert np.array_equal(both.labels[:, :64], predictor.predict(left).labels)
    assert np.array_equal(both.labels[:, 64:], predictor.predict(right).labels)
    assert both.paused_after.shape == (4, 8)


def test_the_size_scales_and_labels_come_back_at_full_size(predictor):
    image = np.kron(picture(4, 6), np.ones((16, 16, 1), np.uint8))
    small = predictor.predict(image, "none size=32")
    assert small.labels.shape == (64, 96)
    assert small.paused_after.shape == (2, 3)
    assert small.mode == Mode(size=32)


@pytest.mark.parametrize(
    ("size", "mode", "inference", "windows", "seen"),
    [
        ((64, 96), "none", Inference(), 1, (64, 96)),
        ((64, 96), "2:0.5 size=32", Inference(), 1, (32, 48)),
        ((64, 160), "2:0.5", Inference(window=64, stride=48), 3, (64, 64)),
        ((32, 80), "2:0.5 exit size=64", Inference(window=64, stride=48), 3, (64, 64)),
        ((50, 30), "2:0.5", Inference(window=64), 1, (50, 30)),
    ],
)
def test_what_the_network_will_see_is_known_before(predictor, size, mode, inference, windows, seen):
    named = Predictor(predictor.network, {"fast": Measurement(mode=Mode.parse(mode))})
    padded = tuple(-(-side // 16) * 16 for side in seen)
    one = predictor.network.macs(seen, replace(Mode.parse(mode), size=None))
    for given_ in (Mode.parse(mode), mode, "fast"):
        assert named.windows(size, given_, inference) == windows
        assert named.geometry(size, given_, inference).window == seen
        inputs = named.network_inputs(picture(*size), given_, inference)
        assert inputs.shape == (windows, 3, *padded)
        assert named.macs(size, given_, inference) == windows * one
    with pytest.raises(ValueError, match="operating points of this model: fast"):
        named.macs(size, "slow", inference)


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3), (0, 0, 3)])
@pytest.mark.parametrize("mode", ["none", "2:0.5 size=32"])
def test_an_empty_image_is_refused(predictor, shape, mode):
    image = np.zeros(shape, np.uint8)
    message = f"an image of {shape[1]}x{shape[0]} pixels is empty"
    for call in (predictor.predict, predictor.network_inputs):
        with pytest.raises(ValueError, match=message):
            call(image, mode)
    with pytest.raises(ValueError, match=message):
        predictor.whole_input(image)
    with pytest.raises(ValueError, match=message):
        predictor.macs(shape[:2], mode)


def test_a_model_says_how_large_its_images_are(predictor):
    network = build_model("test_vit", "mask", NAMES, image_size=64)
    network.config = replace(network.config, short_side=32, window=32, stride=16)
    trained = Predictor(network)
    assert trained.geometry((64, 96)).window == (32, 32)
    assert trained.windows((64, 96)) == 2
    assert trained.windows((64, 96), Mode(size=64)) == 15
    assert trained.windows((64, 96), inference=Inference(window=48)) == 1
    assert trained.whole_input(picture(64, 96)).shape == (1, 3, 32, 48)
    assert predictor.whole_input(picture(64, 96)).shape == (1, 3, 64, 96)


def test_true_labels_are_scaled_without_new_values(predictor):
    labels = np.kron(np.array([[0, 1, 2], [3, 255, 5]], np.uint8), np.ones((16, 16), np.uint8))
    assert np.array_equal(predictor.scaled_labels(labels), labels)
    small = predictor.scaled_labels(labels, "none size=2")
    assert small.tolist() == [[0, 1, 2], [3, 255, 5]]
    large = predictor.scaled_labels(labels, Mode(size=64))
    assert np.array_equal(large, labels.repeat(2, 0).repeat(2, 1))


@settings(max_examples=15)
@given(
    sizes=st.lists(st.sampled_from([(32, 32), (48, 32), (33, 50)]), min_size=1, max_size=6),
    batch=st.integers(1, 4),
)
def test_batches_change_nothing_and_keep_the_order(predictor, sizes, batch):
    images = [picture(*size, seed=i) for i, size in enumerate(sizes)]
    together = predictor.predict_batch(images, "3:0.4", Inference(batch=batch))
    for image, result in zip(images, together, strict=True):
        alone = predictor.predict(image, "3:0.4").labels
        assert (result.labels == alone).mean() > 0.995


def test_images_come_as_files_images_and_arrays(predictor, tmp_path):
    image = picture(30, 40)
    Image.fromarray(image).save(tmp_path / "a.png")
    expected = predictor.predict(image).labels
    for given_ in (tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(image)):
        assert np.array_equal(predictor.predict(given_).labels, expected)


@pytest.mark.parametrize("mode", ["I;16", "LA", "RGBA", "P", "1", "CMYK"])
def test_an_image_of_pillow_is_what_its_file_is(predictor, tmp_path, mode):
    """16 bits are scaled, not cut off; a palette with transparency warns of nothing."""
    image = picture(30, 40)
    given_ = Image.fromarray(image).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        given_ = Image.fromarray(np.asarray(given_).astype(np.uint16) * 257)
    if mode == "P":
        given_.info["transparency"] = bytes(range(256))
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    given_.save(path)
    expected = predictor.predict(path)
    for one in (given_, Image.open(path)):
        assert np.array_equal(predictor.predict(one).image, expected.image)


def test_a_read_only_array_is_an_image(predictor):
    channels_first = np.ascontiguousarray(picture(30, 40).transpose(2, 0, 1))
    channels_first.setflags(write=False)
    image = channels_first.transpose(1, 2, 0)
    assert np.array_equal(predictor.predict(image).labels, predictor.predict(image.copy()).labels)


def test_a_result_can_be_kept(predictor):
    """Pickled, compared and put into sets, and nothing of the other images comes with it."""
    images = [picture(50, 70, seed=seed) for seed in range(6)]
    first, second, *_ = predictor.predict_batch(images, "2:0.5")
    content = pickle.dumps(first)
    again = pickle.loads(content)
    assert np.array_equal(again.labels, first.labels)
    assert np.array_equal(again.probabilities(), first.probabilities())
    assert np.array_equal(again.overlay(), first.overlay())
    assert (repr(again), again.mode) == (repr(first), first.mode)
    assert len(content) < 1.1 * len(pickle.dumps(predictor.predict(images[0], "2:0.5")))
    assert first != second
    assert len({first, second, first}) == 2


def test_a_notebook_shows_the_overlay(predictor):
    result = predictor.predict(picture(50, 70), "2:0.5")
    shown = Image.open(BytesIO(result._repr_png_()))
    assert np.array_equal(np.asarray(shown), np.asarray(result.overlay()))


def test_saving_writes_mask_overlay_and_pause_map(predictor, tmp_path):
    result = predictor.predict(picture(50, 70), "2:0.5")
    paths = result.save(tmp_path / "new", "a")
    assert [path.name for path in paths] == ["a_mask.png", "a_overlay.png", "a_paused.png"]
    assert np.array_equal(np.asarray(Image.open(paths[0])), result.labels)
    assert abs(sum(result.class_ratios().values()) - 1) < 1e-6


@pytest.mark.parametrize("options", [{}, {"window": 40}, {"scales": (1.0, 0.5), "flip": True}])
def test_probabilities_are_those_of_the_labels(predictor, options):
    result = predictor.predict(picture(50, 70), "2:0.5", **options)
    full, coarse = result.probabilities(), result.probabilities(full_size=False)
    assert full.shape == (len(NAMES), 50, 70)
    assert np.allclose(full.sum(0), 1, atol=1e-5)
    assert np.array_equal(full.argmax(0), result.labels)
    assert coarse.shape == (len(NAMES), *result.entropy.shape)
    assert np.allclose(-(coarse * np.log(coarse)).sum(0), result.entropy, atol=1e-5)


def test_probabilities_are_enlarged_logits(predictor):
    """Between cells logits are interpolated, as the network's own forward does."""
    image = picture(64, 96)
    result = predictor.predict(image, "2:0.5")
    with torch.inference_mode():
        logits = predictor.network(predictor.network_inputs(image), "2:0.5").logits[0]
    assert np.allclose(result.probabilities(), logits.softmax(0), atol=1e-5)


def test_each_mode_keeps_its_own_probabilities(predictor):
    image, modes = picture(50, 70), ["none", "2:0.5", "4:0.5 exit"]
    together = dict(predictor.predict_many([image], modes))
    for number, mode in enumerate(modes):
        alone = predictor.predict(image, mode).probabilities()
        assert np.array_equal(together[number][0].probabilities(), alone)


def test_polygons_and_coco_hold_the_labels(predictor, tmp_path):
    result = predictor.predict(picture(50, 70), "2:0.5")
    present = [NAMES[label] for label in np.unique(result.labels)]
    areas = {
        name: sum(x @ np.roll(y, -1) - np.roll(x, -1) @ y for x, y in (r.T for r in rings)) / 2
        for name, rings in result.polygons().items()
    }
    assert list(areas) == present
    ratios = result.class_ratios()
    assert all(areas[name] / result.labels.size == pytest.approx(ratios[name]) for name in areas)
    content = result.to_coco("a.png", image_id=7)
    (tmp_path / "labels.json").write_text(json.dumps(content))
    Image.fromarray(result.image).save(tmp_path / "a.png")
    (tmp_path / "data.yaml").write_text("train: {images: ., coco: labels.json}\n")
    again = open_dataset(str(tmp_path / "data.yaml"), "train")
    assert again.class_set.names == tuple(NAMES)
    assert np.array_equal(again[0].labels, result.labels)


def test_coco_is_read_by_its_own_tools(predictor, tmp_path):
    pycocotools = pytest.importorskip("pycocotools.coco")
    result = predictor.predict(picture(50, 70))
    (tmp_path / "labels.json").write_text(json.dumps(result.to_coco("a.png")))
    coco, labels = pycocotools.COCO(str(tmp_path / "labels.json")), np.full((50, 70), 255)
    for annotation in coco.loadAnns(coco.getAnnIds(1)):
        mask = coco.annToMask(annotation).astype(bool)
        labels[mask] = annotation["category_id"] - 1
        assert mask.sum() == annotation["area"]
        x, y, width, height = annotation["bbox"]
        assert mask[y : y + height, x : x + width].sum() == annotation["area"]
    assert np.array_equal(labels, result.labels)


def test_saving_writes_the_kinds_that_are_named(predictor, tmp_path):
    result = predictor.predict(picture(50, 70), "2:0.5")
    paths = result.save(tmp_path, "deep/a", ("entropy", "colour"))
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "deep/a_entropy.png",
        "deep/a_colour.png",
    ]
    for path, expected in zip(paths, (result.entropy_map(), result.painted()), strict=True):
        assert np.array_equal(np.asarray(Image.open(path)), expected)
    with pytest.raises(ValueError, match='cannot write "masks": choose from mask, colour'):
        result.save(tmp_path, "b", ("mask", "masks"))
    assert not list(tmp_path.glob("b*"))


def test_the_pause_map_tints_paused_patches_only(predictor):
    result = predictor.predict(picture(64, 64), "2:0.25")
    drawn = result.tinted()
    changed = (drawn != result.image).any(2).reshape(4, 16, 4, 16).mean((1, 3)) > 0.5
    assert result.pause_map().width >= 64
    assert np.array_equal(changed, result.paused_after > 0)


def test_merged_patches_are_striped(predictor):
    image = np.full((64, 64, 3), 128, np.uint8)
    image[::3] = 90
    result = predictor.predict(image, "1-2:~0.2,3:0.3")
    own = predictor.network(predictor.network_inputs(image), "1-2:~0.2,3:0.3", full_size=False)
    assert np.array_equal(result.merged_after, own.merged_after()[0].numpy())
    plain = replace(result, merged_after=np.zeros_like(result.merged_after))
    changed = (result.tinted() != plain.tinted()).any(2)
    down, across = (round(side) for side in result.patch)
    cells = changed.reshape(64 // down, down, 64 // across, across).any((1, 3))
    assert np.array_equal(cells, result.merged_after > 0)
    assert 0 < cells.sum() < cells.size
    assert result.pause_map().height > replace(plain, mode=Mode.parse("3:0.3")).pause_map().height


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"stride": 8}, "without a window"),
        ({"window": 8, "stride": 9}, "leaves gaps"),
        ({"scales": (math.inf,)}, "scales are"),
        ({"scales": (math.nan,)}, "scales are"),
        ({"scales": (1e9,)}, "scaled to 8000000000x8000000000"),
        ({"scales": (1e9,), "window": 8}, "scaled to 8000000000x8000000000"),
        ({"mode": "none size=1"}, "8x8 pixels would be scaled to 1x1"),
    ],
)
def test_bad_options_are_named(predictor, options, message):
    with pytest.raises(ValueError, match=message):
        predictor.predict(picture(8, 8), **options)


def test_small_windows_do_not_move_pixel_by_pixel(predictor, monkeypatch):
    seen = []
    monkeypatch.setattr("paumer.inference.tiles.anchors", lambda *given: seen.append(given) or (0,))
    for window in (7, 40, 512):
        predictor.predict(picture(8, 8), window=window)
    assert [given[2] for given in seen[::2]] == [4, 20, 480]


def test_a_missing_image_is_named(predictor):
    with pytest.raises(FileNotFoundError, match="nothing"):
        predictor.predict("nothing.png")


@pytest.mark.slow
def test_a_large_image_with_many_classes_needs_little_memory():
    predictor = Predictor(build_model("test_vit", "linear", 150, image_size=64))
    image = picture(1024, 2048)
    predictor.predict(image[:64, :64])
    needed = peak_memory(lambda: predictor.predict(image, window=512), torch.device("cpu"))
    if needed is None:
        pytest.skip("resident memory is known on Linux only")
    assert needed < 400  # The full-size logits alone would be 1,258 MB.


def test_the_grid_of_odd_windows_lies_where_the_image_says(predictor):
    result = predictor.predict(picture(64, 400), "2:0.5", window=50, stride=50)
    assert result.paused_after.shape == (4, 25)
    assert result.entropy.shape == (4, 25)


MODES = [
    *("none", "2:0.3", "2:0.3,4:0.5", "2:0.3,5:0.5", "2:0.6", "4:0.5", "none", "2:0.3 exit"),
    *("2:0.3 by=neighbours", "2:0.3 size=32", "2:0.3,4:0.5 exit size=32", "none size=80"),
]


@pytest.mark.parametrize(("batch", "window"), [(4, None), (2, None), (4, 32)])
def test_many_modes_at_once_are_bit_equal_to_each_alone(predictor, batch, window):
    images = [picture(48, 64, seed) for seed in range(3)]
    how = Inference(batch=batch, window=window)
    seen = dict(predictor.predict_many(images, MODES, how))
    assert sorted(seen) == list(range(len(MODES)))
    for number, mode in enumerate(MODES):
        alone = predictor.predict_batch(images, mode, how)
        for one, other in zip(seen[number], alone, strict=True):
            assert np.array_equal(one.labels, other.labels)
            assert np.array_equal(one.paused_after, other.paused_after)
            assert np.array_equal(one.entropy, other.entropy)
            assert one.mode == other.mode == Mode.parse(mode)


def test_what_modes_have_in_common_runs_once(predictor, monkeypatch):
    backbone, calls = predictor.network.backbone, []
    run_block = backbone.run_block
    monkeypatch.setattr(
        backbone,
        "run_block",
        lambda number, *rest: calls.append(number) or run_block(number, *rest),
    )
    list(predictor.predict_many([picture(32, 32)], ["none", "4:0.2", "4:0.4 exit", "4:0.4"]))
    assert len(calls) == 6 + 2 * 2  # Once through all six blocks, twice through the last two.


def test_a_symmetric_image_has_symmetric_labels_when_mirrored(predictor):
    half = np.random.default_rng(3).integers(0, 256, (48, 32, 3), np.uint8)
    picture = np.concatenate([half, half[:, ::-1]], 1)
    plain = predictor.predict(picture).labels
    both = predictor.predict(picture, flip=True).labels
    assert (plain != plain[:, ::-1]).mean() > 0.01
    assert (both != both[:, ::-1]).mean() < 0.005


def test_scales_average_probabilities(predictor):
    picture = np.random.default_rng(4).integers(0, 256, (32, 48, 3), np.uint8)
    pixels = torch.from_numpy(picture.transpose(2, 0, 1).copy())[None]
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in (predictor.config.mean, predictor.config.std)
    )
    total = 0
    for scale in (1, 2):
        size = (32 * scale, 48 * scale)
        large = pixels
        if scale > 1:
            large = F.interpolate(pixels, size=size, mode="bilinear", antialias=True)
        with torch.inference_mode():
            logits = predictor.network((large / 255 - mean) / std).logits
        total = total + F.interpolate(logits, size=(32, 48), mode="bilinear").softmax(1)
    found = predictor.predict(picture, scales=(1.0, 2.0)).labels
    alone = predictor.predict(picture).labels
    assert (found == total.argmax(1)[0].numpy()).mean() > 0.995
    assert (found != alone).mean() > 0.01


def test_nothing_in_nothing_out(predictor):
    assert predictor.predict_batch([]) == []


@pytest.mark.parametrize(
    ("size", "mode", "inference", "scaled"),
    [
        ((480, 640), "none", None, (48, 64)),
        ((640, 480), "2:0.5", Inference(scales=(0.5, 1.0)), (64, 48)),
        ((48, 640), "none", None, (48, 640)),
        ((30, 20), "none", None, (30, 20)),
        ((480, 640), "none size=96", None, (96, 128)),
        ((30, 20), "none size=96", None, (144, 96)),
        ((480, 640), "none size=full", None, (480, 640)),
        ((480, 640), "none", Inference(window=64), (480, 640)),
    ],
)
def test_images_larger_than_in_training_are_scaled_down(predictor, size, mode, inference, scaled):
    network = predictor.network
    trained = Predictor(network)
    trained.config = replace(network.config, trained_side=48)
    assert trained.scaled(size, mode, inference) == scaled
    assert trained.geometry(size, mode, inference).scaled == scaled
    (result,) = trained.predict_batch([picture(*size)], mode, inference)
    assert result.labels.shape == size
    factor = inference.scales[0] if inference else 1.0
    cells = [math.ceil(factor * side / 16) for side in scaled]
    if not (inference and inference.window):
        assert list(result.paused_after.shape) == cells
    assert predictor.scaled(size, "none") == size


def test_images_are_also_seen_whole_as_in_training(predictor):
    trained = Predictor(predictor.network)
    trained.config = replace(predictor.config, trained_side=48, window=32)
    assert trained.whole_input(picture(96, 128)).shape[2:] == (48, 64)
    assert trained.whole_geometry((96, 128)).scaled == (48, 64)
    assert trained.scaled_labels(np.zeros((96, 128), np.uint8)).shape == (48, 64)
