import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional as F

from paumer import Inference, PauseConfig, Predictor, build_model, load
from paumer.criteria import borders, entropy
from paumer.data.transforms import normalise
from paumer.predict import write_points
from paumer.study.speed import peak_memory
from paumer.study.tradeoff import Measurement

NAMES = [f"thing {i}" for i in range(6)]


@pytest.fixture(scope="module")
def predictor():
    torch.manual_seed(0)
    return Predictor(build_model("test_vit", "mask", NAMES, image_size=64))


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def direct(predictor, image, pause="none", **options):
    """Labels straight from the network's full-size logits."""
    config = predictor.config
    tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())[None]
    with torch.inference_mode():
        images = normalise(tensor, config.mean, config.std)
        logits = predictor.network(images, PauseConfig.parse(pause), **options).logits[0]
    two = logits.topk(2, dim=0).values
    return logits.argmax(0).numpy(), (two[0] - two[1] > 1e-4).numpy()


@pytest.mark.parametrize("size", [(64, 64), (50, 70), (7, 5), (100, 33)])
@pytest.mark.parametrize("pause", ["none", "2:0.4", "2:0.3,4:0.5"])
def test_labels_are_those_of_the_network_at_the_size_that_came_in(predictor, size, pause):
    image = picture(*size)
    result = predictor.predict(image, pause)
    labels, clear = direct(predictor, image, pause)
    assert result.labels.shape == size
    assert result.labels.dtype == np.uint8
    assert np.array_equal(result.labels[clear], labels[clear])
    assert result.image is image
    assert str(result.pause) == pause


def test_early_exit_reaches_the_network(predictor):
    image = picture(64, 64)
    labels, clear = direct(predictor, image, "2:0.8", early_exit=True)
    result = predictor.predict(image, "2:0.8", early_exit=True)
    assert np.array_equal(result.labels[clear], labels[clear])
    assert not np.array_equal(result.labels, predictor.predict(image, "2:0.8").labels)


def test_the_pause_map_counts_what_paused(predictor):
    result = predictor.predict(picture(64, 64), "2:0.25,4:0.5")
    blocks, counts = np.unique(result.paused_after, return_counts=True)
    assert blocks.tolist() == [0, 2, 4]
    assert counts.tolist() == [6, 4, 6]
    assert result.entropy.shape == result.paused_after.shape == (4, 4)
    assert (result.entropy >= 0).all()
    assert (result.entropy <= np.log(6) + 1e-4).all()


def test_a_window_larger_than_the_picture_is_one_pass(predictor):
    image = picture(40, 60)
    once = predictor.predict(image, "2:0.4")
    windowed = predictor.predict(image, "2:0.4", window=64, stride=32)
    assert np.array_equal(once.labels, windowed.labels)


def test_windows_see_their_part_only(predictor):
    left, right = picture(64, 64, 1), picture(64, 64, 2)
    both = predictor.predict(np.concatenate([left, right], 1), window=64, stride=64)
    assert np.array_equal(both.labels[:, :64], predictor.predict(left).labels)
    assert np.array_equal(both.labels[:, 64:], predictor.predict(right).labels)
    assert both.paused_after.shape == (4, 8)


def test_the_short_side_scales_and_labels_come_back_at_full_size(predictor):
    image = np.kron(picture(4, 6), np.ones((16, 16, 1), np.uint8))
    small = predictor.predict(image, short_side=32)
    assert small.labels.shape == (64, 96)
    assert small.paused_after.shape == (2, 3)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.sampled_from([(32, 32), (48, 32), (33, 50)]), min_size=1, max_size=6),
    batch=st.integers(1, 4),
)
def test_batches_change_nothing_and_keep_the_order(predictor, sizes, batch):
    images = [picture(*size, seed=i) for i, size in enumerate(sizes)]
    how = Inference(pause=PauseConfig.parse("3:0.4"), batch=batch)
    together = predictor.predict_batch(images, how)
    for image, result in zip(images, together, strict=True):
        alone = predictor.predict(image, "3:0.4").labels
        assert (result.labels == alone).mean() > 0.995


def test_pictures_come_as_files_images_and_arrays(predictor, tmp_path):
    image = picture(30, 40)
    Image.fromarray(image).save(tmp_path / "a.png")
    expected = predictor.predict(image).labels
    for given_ in (tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(image)):
        assert np.array_equal(predictor.predict(given_).labels, expected)


def test_saving_writes_mask_overlay_and_pause_map(predictor, tmp_path):
    result = predictor.predict(picture(50, 70), "2:0.5")
    paths = result.save(tmp_path / "new", "a")
    assert [path.name for path in paths] == ["a_mask.png", "a_overlay.png", "a_paused.png"]
    assert np.array_equal(np.asarray(Image.open(paths[0])), result.labels)
    assert abs(sum(result.class_shares().values()) - 1) < 1e-6


def test_the_pause_map_tints_paused_patches_only(predictor):
    result = predictor.predict(picture(64, 64), "2:0.25")
    drawn = result.tinted()
    changed = (drawn != result.image).any(2).reshape(4, 16, 4, 16).mean((1, 3)) > 0.5
    assert result.pause_map().width >= 64
    assert np.array_equal(changed, result.paused_after > 0)


def test_loading_reads_operating_points(predictor, tmp_path):
    predictor.network.save_pretrained(tmp_path / "model")
    points = {"fast": {"pause": "2:0.5"}}
    (tmp_path / "model" / "operating_points.json").write_text(json.dumps(points))
    loaded = load(tmp_path / "model")
    assert str(loaded.resolve("fast")) == "2:0.5"
    image = picture(64, 64)
    fast = loaded.predict(image, "fast").labels
    assert np.array_equal(fast, predictor.predict(image, "2:0.5").labels)
    with pytest.raises(ValueError, match="operating points of this model: fast"):
        loaded.resolve("slow")
    points["fast"] |= {"criterion": "borders", "early_exit": True}
    (tmp_path / "model" / "operating_points.json").write_text(json.dumps(points))
    way = load(tmp_path / "model").way("fast", batch=3)
    assert (way.criterion, way.early_exit, way.batch) == (borders, True, 3)
    assert load(tmp_path / "model").way("fast", criterion=entropy).criterion is entropy
    points["fast"]["criterion"] = "luck"
    (tmp_path / "model" / "operating_points.json").write_text(json.dumps(points))
    with pytest.raises(ValueError, match=r'operating_points.json": no criterion "luck"'):
        load(tmp_path / "model")
    points["fast"] = {"pause": "none", "criterion": "neighbours"}
    (tmp_path / "model" / "operating_points.json").write_text(json.dumps(points))
    assert load(tmp_path / "model").way("fast") == Inference()
    (tmp_path / "model" / "operating_points.json").write_text('{"fast": 3}')
    with pytest.raises(ValueError, match="operating_points"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"stride": 8}, "without a window"),
        ({"window": 8, "stride": 9}, "leaves gaps"),
        ({"batch": 0}, "^batch is 0: give at least 1$"),
        ({"scales": (math.inf,)}, "scales are"),
        ({"scales": (math.nan,)}, "scales are"),
        ({"scales": (1e9,)}, "scaled to 8000000000x8000000000"),
        ({"short_side": 1}, "8x8 pixels would be scaled to 1x1"),
    ],
)
def test_bad_options_are_named(predictor, options, message):
    with pytest.raises(ValueError, match=message):
        predictor.predict(picture(8, 8), **options)


def test_small_windows_do_not_move_pixel_by_pixel(predictor, monkeypatch):
    seen = []
    monkeypatch.setattr("paumer.predict.anchors", lambda *given: seen.append(given) or (0,))
    for window in (7, 40, 512):
        predictor.predict(picture(8, 8), window=window)
    assert [given[2] for given in seen[::2]] == [4, 20, 480]


def test_pictures_that_are_none_are_refused(predictor):
    with pytest.raises(ValueError, match="14"):
        predictor.predict(picture(8, 8), "14:0.2")
    with pytest.raises(FileNotFoundError, match="nothing"):
        predictor.predict("nothing.png")


def test_a_large_picture_with_many_classes_needs_little_memory():
    predictor = Predictor(build_model("test_vit", "linear", 150, image_size=64))
    image = picture(1024, 2048)
    predictor.predict(image[:64, :64])
    needed = peak_memory(lambda: predictor.predict(image, window=512), torch.device("cpu"))
    if needed is None:
        pytest.skip("resident memory is known on Linux only")
    assert needed < 400  # The full-size logits alone would be 1,258 MB.


def test_the_grid_of_odd_windows_lies_where_the_picture_says(predictor):
    result = predictor.predict(picture(64, 400), "2:0.5", window=50, stride=50)
    assert result.paused_after.shape == (4, 25)
    assert result.entropy.shape == (4, 25)


WAYS = ["none", "2:0.3", "2:0.3,4:0.5", "2:0.3,5:0.5", "2:0.6", "4:0.5", "none"]


@pytest.mark.parametrize("batch", [4, 2])
def test_many_ways_at_once_are_bit_equal_to_each_alone(predictor, batch):
    images = [picture(48, 64, seed) for seed in range(3)]
    ways = [Inference(pause=PauseConfig.parse(text), batch=batch) for text in WAYS]
    ways += [Inference(pause=PauseConfig.parse("2:0.3"), early_exit=True, batch=batch)]
    seen = {}
    for number, results in predictor.predict_many(images, ways):
        seen[number] = results
    assert sorted(seen) == list(range(len(ways)))
    for number, way in enumerate(ways):
        for one, other in zip(seen[number], predictor.predict_batch(images, way), strict=True):
            assert np.array_equal(one.labels, other.labels)
            assert np.array_equal(one.paused_after, other.paused_after)
            assert np.array_equal(one.entropy, other.entropy)


def test_what_ways_have_in_common_runs_once(predictor, monkeypatch):
    backbone, calls = predictor.network.backbone, []
    run_block = backbone.run_block
    monkeypatch.setattr(
        backbone,
        "run_block",
        lambda number, *rest: calls.append(number) or run_block(number, *rest),
    )
    ways = [Inference(pause=PauseConfig.parse(text)) for text in ("none", "4:0.2", "4:0.4")]
    list(predictor.predict_many([picture(32, 32)], ways))
    assert len(calls) == 6 + 2 * 2  # Once through all six blocks, twice through the last two.


def test_ways_of_different_sizes_are_refused(predictor):
    with pytest.raises(ValueError, match="may differ in pause"):
        list(predictor.predict_many([picture(32, 32)], [Inference(), Inference(window=16)]))


def test_a_symmetric_picture_has_symmetric_labels_when_mirrored(predictor):
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


@pytest.mark.parametrize("name", ["none", "paper", "", "3:0.4"])
def test_points_cannot_hide_configurations(name, tmp_path):
    with pytest.raises(ValueError, match="cannot be called"):
        write_points(tmp_path, {name: Measurement(pause=PauseConfig())})
