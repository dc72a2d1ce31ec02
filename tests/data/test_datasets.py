import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paumer.classes import ADE20K, CAMVID, CITYSCAPES
from paumer.data.datasets import available_splits, list_dataset, open_dataset
from paumer.data.folders import Code, FolderDataset
from paumer.data.samples import Dataset

SHARED_CAMVID = Path(__file__).parents[2] / "../shared/data/camvid"


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array, np.uint8)).save(path)


def image(height=6, width=8):
    return np.zeros((height, width, 3), np.uint8)


def ids(*values, height=6, width=8):
    return np.resize(np.array(values, np.uint8), (height, width))


class TestScenes:
    def test_defaults_and_sizes(self):
        assert [len(open_dataset("scenes", split)) for split in ("train", "val", "test")] == [
            2000, 200, 200,
        ]  # fmt: skip
        scenes = open_dataset("scenes:3@64x48", "val")
        assert len(scenes) == len(list(scenes)) == 3
        assert scenes[2].image.shape == (48, 64, 3)
        assert scenes[2].labels.shape == (48, 64)
        assert scenes.class_set == CAMVID
        assert scenes.files(0) is None
        assert set(np.unique(scenes[0].labels)) <= {*range(11), 255}
        with pytest.raises(IndexError):
            scenes[3]
        assert open_dataset("scenes@64x48")[0].image.shape == (48, 64, 3)

    def test_splits_share_nothing_and_are_repeatable(self):
        train, val = open_dataset("scenes:2@64x48"), open_dataset("scenes:2@64x48", "val")
        assert {s.name for s in train}.isdisjoint(s.name for s in val)
        np.testing.assert_array_equal(train[1].image, open_dataset("scenes:9@64x48")[1].image)

    @pytest.mark.parametrize(
        "spec",
        ["scenes:", "scenes:0", "scenes:x", "scenes:5@64", "scenes:-1", "scenes:" + "9" * 4000],
    )
    def test_other_words_are_refused(self, spec):
        with pytest.raises(ValueError, match="COUNT@WIDTHxHEIGHT"):
            open_dataset(spec)

    @pytest.mark.parametrize("size", ["99999x99999", "8193x4096", "16x999999999", "8x64"])
    def test_scenes_are_no_larger_than_memory(self, size):
        with pytest.raises(ValueError, match=r"cannot make (a .*x.* scene|scenes)"):
            open_dataset(f"scenes:1@{size}")
        assert open_dataset("scenes:1@8192x4096").size == (8192, 4096)


class TestCamvid:
    @pytest.fixture
    def root(self, tmp_path):
        for split in ("train", "val", "test"):
            for name, suffix in (("a", ".png"), ("b", ".jpg")):
                write(tmp_path / split / f"{name}{suffix}", image())
                write(tmp_path / f"{split}annot" / f"{name}.png", ids(0, 5, 10, 11))
        return tmp_path

    def test_reads_pairs(self, root):
        camvid = open_dataset(f"camvid:{root}", "test")
        assert isinstance(camvid, Dataset)
        assert [s.name for s in camvid] == ["a", "b"]
        np.testing.assert_array_equal(camvid[0].labels, ids(0, 5, 10, 255))
        assert camvid[0].labels.dtype == np.uint8
        assert camvid.files(1) == (root / "test/b.jpg", root / "testannot/b.png")
        assert (camvid.name, camvid.split) == ("camvid", "test")
        np.testing.assert_array_equal(
            pickle.loads(pickle.dumps(camvid))[1].labels, camvid[1].labels
        )

    def test_other_ids_are_an_error(self, root):
        write(root / "trainannot/a.png", ids(0, 12, 77))
        camvid = open_dataset(f"camvid:{root}")
        match = r"trainannot/a\.png.*12 \(16 pixels\), 77 \(16 pixels\).*Known are 0 to 11$"
        with pytest.raises(ValueError, match=match):
            camvid[0]
        assert camvid[1].name == "b"

    def test_sizes_must_agree(self, root):
        write(root / "trainannot/b.png", ids(0, height=5))
        with pytest.raises(ValueError, match=r"trainannot/b\.png.*8x5.*train/b\.jpg.*8x6"):
            open_dataset(f"camvid:{root}")[1]

    def test_a_broken_image_is_named(self, root):
        (root / "train/a.png").write_bytes((root / "train/a.png").read_bytes()[:40])
        with pytest.raises(ValueError, match=r"train/a\.png"):
            open_dataset(f"camvid:{root}")[0]

    def test_images_and_masks_without_the_other(self, root):
        (root / "trainannot/a.png").unlink()
        write(root / "trainannot/z.png", ids(0))
        with pytest.raises(ValueError, match=r"train/a\.png.*no mask.*1 more.*check-data"):
            open_dataset(f"camvid:{root}")
        listed = list_dataset(f"camvid:{root}")
        assert [p.kind for p in listed.problems] == ["missing mask", "missing image"]
        assert [s.name for s in listed] == ["b"]

    def test_missing_folders_are_named_with_what_is_there(self, root, tmp_path):
        (root / "trainannot").rename(root / "train_annot")
        with pytest.raises(ValueError, match=r'trainannot.*has the folders.*mean "train_annot"'):
            open_dataset(f"camvid:{root}")
        with pytest.raises(ValueError, match=r"nowhere.* is missing"):
            open_dataset(f"camvid:{tmp_path}/nowhere")
        with pytest.raises(ValueError, match="camvid:DIR"):
            open_dataset("camvid")

    def test_splits(self, root):
        assert available_splits(f"camvid:{root}") == ("train", "val", "test")
        with pytest.raises(ValueError, match=r'split "valid".*did you mean "val"'):
            open_dataset(f"camvid:{root}", "valid")

    @pytest.mark.skipif(not SHARED_CAMVID.is_dir(), reason="../shared/data/camvid is not there")
    def test_the_real_one(self):
        counts = [len(open_dataset(f"camvid:{SHARED_CAMVID}", s)) for s in ("train", "val", "test")]
        assert counts == [367, 101, 233]
        sample = open_dataset(f"camvid:{SHARED_CAMVID}", "val")[0]
        assert sample.image.shape == (360, 480, 3)
        assert set(np.unique(sample.labels)) <= {*range(11), 255}


class TestCityscapes:
    @pytest.fixture
    def root(self, tmp_path):
        for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "lindau")):
            for frame in ("000000_000019", "000001_000019"):
                start = f"{split}/{city}/{city}_{frame}"
                write(tmp_path / f"leftImg8bit/{start}_leftImg8bit.png", image(5, 7))
                mask = ids(*range(34), 255, height=5, width=7)
                write(tmp_path / f"gtFine/{start}_gtFine_labelIds.png", mask)
                write(tmp_path / f"gtFine/{start}_gtFine_instanceIds.png", mask)
                write(tmp_path / f"gtFine/{start}_gtFine_color.png", image(5, 7))
                (tmp_path / f"gtFine/{start}_gtFine_polygons.json").write_text("{}")
        return tmp_path

    def test_label_ids_become_train_ids(self, root):
        train = open_dataset(f"cityscapes:{root}")
        assert train.class_set == CITYSCAPES
        names = [s.name for s in train]
        assert names[0] == "aachen/aachen_000000_000019"
        assert len(names) == 4
        expected = dict.fromkeys(range(35), 255)
        order = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
        expected |= {label_id: train_id for train_id, label_id in enumerate(order)}
        assert train[0].labels.ravel().tolist() == [expected[i] for i in range(35)]

    def test_ids_that_do_not_exist(self, root):
        name = "gtFine/val/lindau/lindau_000000_000019_gtFine_labelIds.png"
        write(root / name, ids(34, height=5, width=7))
        with pytest.raises(ValueError, match=r"lindau_000000.*34 \(35 pixels\).*0 to 33, 255"):
            open_dataset(f"cityscapes:{root}", "val")[0]

    def test_faults_of_the_tree(self, root):
        with pytest.raises(ValueError, match=r'"test".*no public labels: use "val"'):
            open_dataset(f"cityscapes:{root}", "test")
        assert available_splits(f"cityscapes:{root}") == ("train", "val")
        (root / "gtFine").rename(root / "gtfine")
        with pytest.raises(ValueError, match=r'gtFine/train.*did you mean "gtfine"'):
            open_dataset(f"cityscapes:{root}")

    def test_no_image_at_all(self, tmp_path):
        for part in ("leftImg8bit", "gtFine"):
            (tmp_path / part / "train").mkdir(parents=True)
        with pytest.raises(ValueError, match=r"no image in .*leftImg8bit/train.*_leftImg8bit\.png"):
            open_dataset(f"cityscapes:{tmp_path}")


class TestAde20k:
    @pytest.fixture
    def root(self, tmp_path):
        for folder, short in (("training", "train"), ("validation", "val")):
            for number in (1, 2):
                name = f"ADE_{short}_{number:08d}"
                base = tmp_path / "ADEChallengeData2016"
                write(base / f"images/{folder}/{name}.jpg", image())
                write(base / f"annotations/{folder}/{name}.png", ids(0, 1, 2, 150))
        return tmp_path

    def test_labels_start_at_one(self, root):
        for folder in (root, root / "ADEChallengeData2016"):
            val = open_dataset(f"ade20k:{folder}", "val")
            assert val.class_set == ADE20K
            assert [s.name for s in val] == ["ADE_val_00000001", "ADE_val_00000002"]
            np.testing.assert_array_equal(val[0].labels, ids(255, 0, 1, 149))

    def test_faults(self, root):
        with pytest.raises(ValueError, match=r'ADE20K has no public labels: use "val"'):
            open_dataset(f"ade20k:{root}", "test")
        name = "ADEChallengeData2016/annotations/training/ADE_train_00000001.png"
        write(root / name, ids(0, 151))
        with pytest.raises(ValueError, match=r"ADE_train_00000001\.png.*151 .*0 to 150"):
            open_dataset(f"ade20k:{root}")[0]


class TestNames:
    def test_unknown_names(self, tmp_path):
        with pytest.raises(ValueError, match=r'"citiscapes:x" \(did you mean "cityscapes"'):
            open_dataset("citiscapes:x")
        with pytest.raises(ValueError, match=r"nowhere\.yaml.*camvid:DIR"):
            open_dataset("nowhere.yaml")
        with pytest.raises(ValueError, match=r"holds no data\.yaml"):
            open_dataset(str(tmp_path))


class TestCode:
    def test_wide_ids(self):
        code = Code({0: 0, 300: 1, 26_001: 2, -1: 255})
        mask = np.array([[0, 300, 26_001, -1, 7, 7, 99_999]], np.int32)
        labels, wrong = code.read(mask)
        assert labels.tolist() == [[0, 1, 2, 255, 255, 255, 255]]
        assert wrong == {7: 2, 99_999: 1}
        labels, wrong = code.read(np.array([[0, 44]], np.uint8))  # 300 is no 44
        assert wrong == {44: 1}

    def test_bytes_and_wide_ids_agree(self):
        code = Code({i: (i * 7) % 200 for i in range(0, 256, 3)})
        mask = np.arange(256, dtype=np.uint8).reshape(16, 16)
        labels, wrong = code.read(mask)
        wide_labels, wide_wrong = code.read(mask.astype(np.int32))
        np.testing.assert_array_equal(labels, wide_labels)
        assert wrong == wide_wrong == {i: 1 for i in range(256) if i % 3}

    def test_colours(self):
        code = Code({(0, 0, 1): 0, (255, 255, 255): 1, (1, 0, 0): 255}, rgb=True)
        mask = np.array([[(0, 0, 1), (255, 255, 255), (1, 0, 0), (9, 8, 7), (9, 8, 7)]], np.uint8)
        labels, wrong = code.read(mask)
        assert labels.tolist() == [[0, 1, 255, 255, 255]]
        assert wrong == {(9, 8, 7): 2}
        assert "(9, 8, 7) (2 pixels)" in code.message(Path("m.png"), wrong)


def test_torch_loads_it(tmp_path):
    torch_data = pytest.importorskip("torch.utils.data")
    for name in "abc":
        write(tmp_path / "train" / f"{name}.png", image())
        write(tmp_path / "trainannot" / f"{name}.png", ids(3))
    camvid = open_dataset(f"camvid:{tmp_path}")
    assert isinstance(camvid, FolderDataset)
    loader = torch_data.DataLoader(camvid, batch_size=None, num_workers=0)
    assert [s.name for s in loader] == ["a", "b", "c"]


class TestJoined:
    def test_one_after_the_other(self):
        both = open_dataset("scenes:1@64x48+scenes:2@32x24", "val")
        assert isinstance(both, Dataset)
        assert len(both) == 3
        samples = list(both)
        assert [sample.image.shape[1] for sample in samples] == [64, 32, 32]
        assert both.name == "scenes@64x48+scenes@32x24"
        assert both.class_set == CAMVID
        assert both.files(2) is None
        assert available_splits("scenes:2+scenes:3") == ("train", "val", "test")
        assert both[-1].name == samples[2].name
        for index in (3, -4):
            with pytest.raises(IndexError):
                both[index]

    def test_nothing_is_listed_before_it_is_read(self):
        both = open_dataset("scenes:900000000@32x24+scenes:900000000@64x48")
        assert len(both) == 1_800_000_000
        assert both[900_000_000].image.shape == (48, 64, 3)

    def test_files_are_found_and_classes_must_agree(self, tmp_path):
        folder = tmp_path / "with+plus"
        write(folder / "images/a.png", image())
        write(folder / "masks/a.png", ids(0, 1))
        (folder / "data.yaml").write_text(
            "val: {images: images, masks: masks}\nclasses: [sky, road]\n"
        )
        spec = str(folder / "data.yaml")
        assert len(open_dataset(spec, "val")) == 1  # The + belongs to the folder's name.
        own = shutil.copytree(folder, tmp_path / "own") / "data.yaml"
        with pytest.raises(ValueError, match=r"cannot join scenes and .*: their classes differ"):
            open_dataset(f"scenes:2+{own}", "val")

    @pytest.mark.parametrize("spec", ["scenes:2+", "+scenes:2", "scenes:2++scenes:2"])
    def test_nothing_cannot_be_joined(self, spec):
        with pytest.raises(ValueError, match="joins nothing"):
            open_dataset(spec)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("spec", ["scenes:4@64x48", "sample", "scenes:2@64x48+scenes:1@64x48"])
def test_torch_loads_batches(spec, workers):
    dataset = open_dataset(spec, "val")
    assert isinstance(dataset, torch.utils.data.Dataset)
    batch = next(iter(torch.utils.data.DataLoader(dataset, 2, num_workers=workers)))
    assert (batch.name[0], len(batch.name)) == (dataset[0].name, 2)
    assert (batch.image.dtype, batch.labels.dtype) == (torch.uint8, torch.uint8)
    for number in range(2):
        assert np.array_equal(batch.image[number], dataset[number].image)
        assert np.array_equal(batch.labels[number], dataset[number].labels)
