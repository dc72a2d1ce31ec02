import subprocess
import sys

import numpy as np
import pytest

from paumer.classes import CAMVID
from paumer.scenes.scene import scene, scene_seeds

# Shares of the labelled pixels of CamVid's 367 training photographs.
CAMVID_SHARES = {
    "sky": 0.1754,
    "building": 0.2421,
    "pole": 0.0102,
    "road": 0.3296,
    "pavement": 0.0467,
    "tree": 0.1012,
    "sign": 0.0122,
    "fence": 0.0117,
    "car": 0.0611,
    "pedestrian": 0.0067,
    "bicyclist": 0.0030,
}
SMALL = (160, 120)


MAKE = """
import sys
import numpy as np
from paumer.scenes.scene import scene, scene_seeds
images, labels = zip(*(scene(seed, (160, 120)) for seed in reversed(scene_seeds("train", 80))))
np.savez(sys.argv[1], images=images[::-1], labels=labels[::-1])
"""


@pytest.fixture(scope="module")
def made_elsewhere(tmp_path_factory):
    """The first 80 training scenes, made by another process in another order."""
    file = tmp_path_factory.mktemp("scenes") / "scenes.npz"
    subprocess.run([sys.executable, "-c", MAKE, str(file)], check=True)
    with np.load(file) as stored:
        return stored["images"], stored["labels"]


@pytest.fixture(scope="module")
def counts(made_elsewhere):
    """Pixels of each label in each scene."""
    return np.stack([np.bincount(labels.ravel(), minlength=256) for labels in made_elsewhere[1]])


@pytest.mark.slow
def test_another_process_makes_the_same_bytes(made_elsewhere):
    for seed in (0, 3, 40, 79):
        image, labels = scene(seed, SMALL)
        assert image.tobytes() == made_elsewhere[0][seed].tobytes()
        assert labels.tobytes() == made_elsewhere[1][seed].tobytes()


def test_different_seeds_make_different_scenes(made_elsewhere):
    for part in made_elsewhere:
        assert len({scene.tobytes() for scene in part}) == 80


@pytest.mark.parametrize("size", [(64, 48), (97, 61), (256, 96), (96, 256), (1024, 768)])
def test_any_size_gives_an_image_and_labels_of_that_size(size):
    image, labels = scene(7, size)
    assert image.shape == (size[1], size[0], 3)
    assert labels.shape == (size[1], size[0])
    assert image.dtype == labels.dtype == np.uint8
    assert image.std() > 10


def test_a_seed_shows_the_same_street_at_every_size():
    agreement = []
    for seed in range(3):
        small, large = scene(seed, (128, 96))[1], scene(seed, (512, 384))[1][2::4, 2::4]
        agreement.append((small == large).mean())
    assert min(agreement) > 0.9


def test_labels_are_the_eleven_classes_or_void(counts):
    assert counts[:, 11:255].sum() == 0
    assert (counts.sum(1) == SMALL[0] * SMALL[1]).all()


def test_void_is_there_but_little(counts):
    assert 0.003 < counts[:, 255].sum() / counts.sum() < 0.06


def test_class_shares_are_those_of_camvid(counts):
    assert tuple(CAMVID_SHARES) == CAMVID.names
    shares = counts[:, :11].sum(0) / counts[:, :11].sum()
    for name, share in zip(CAMVID.names, shares, strict=True):
        ratio = share / CAMVID_SHARES[name]
        assert 0.5 < ratio < 2, f"{name}: {ratio:.2f} times CamVid's share"


def test_every_class_is_in_many_images(counts):
    presence = (counts[:, :11] > 0).mean(0)
    rare = {name: p for name, p in zip(CAMVID.names, presence, strict=True) if p < 0.3}
    assert not rare


def test_the_world_is_the_right_way_up(made_elsewhere):
    middles = {
        name: np.nonzero(made_elsewhere[1] == CAMVID.names.index(name))[1].mean()
        for name in ("sky", "car", "road")
    }
    assert middles["sky"] < 40 < middles["car"] < 75 < middles["road"]


def test_light_and_weather_vary(made_elsewhere):
    brightness = made_elsewhere[0].mean((1, 2, 3))
    assert brightness.std() > 12
    assert brightness.min() > 50
    assert brightness.max() < 200


def test_splits_never_share_a_seed():
    seeds = {split: scene_seeds(split, 1_000_000_000) for split in ("train", "val", "test")}
    assert all(len(part) == 1_000_000_000 for part in seeds.values())
    train, val, test = seeds.values()
    assert train[-1] < val[0] <= val[-1] < test[0]
    assert list(scene_seeds("val", 3)) == [1_000_000_000, 1_000_000_001, 1_000_000_002]


def test_what_cannot_be_made_is_said():
    with pytest.raises(ValueError, match="no split 'dev': scenes come as train, val, test"):
        scene_seeds("dev", 3)
    with pytest.raises(ValueError, match="cannot give 1000000001 seeds"):
        scene_seeds("train", 1_000_000_001)
    with pytest.raises(ValueError, match="seed -1"):
        scene(-1)
    with pytest.raises(ValueError, match="8x300"):
        scene(0, (8, 300))
    with pytest.raises(ValueError, match=r"99999x99999 scene: .* at most 33,554,432 pixels"):
        scene(0, (99_999, 99_999))
