"""Each layout on a small tree in exactly its form, and `paumer data init` on the same trees."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from paumer.cli.main import main
from paumer.data.checking import check_splits
from paumer.data.datasets import available_splits, list_dataset, open_dataset
from paumer.data.images import read_image
from paumer.data.published import VOC
from paumer.data.recognise import init_data

NAMES = ["sky", "road", "car"]


def write(path, values, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(path, **options)


def photo(path, height=8, width=10):
    """An image of its own content."""
    seed = abs(hash(path.as_posix())) % 2**32
    write(path, np.random.default_rng(seed).integers(0, 256, (height, width, 3)))


def mask(path, *values, height=8, width=10):
    write(path, np.resize(values, (height, width)))


def text(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def plan(root, **values):
    (root / "data.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return str(root / "data.yaml")


def masks_tree(root):
    for split, count in (("train", 3), ("val", 2)):
        for n in range(count):
            photo(root / f"images/{split}/{split}{n}.jpg")
            mask(root / f"masks/{split}/{split}{n}.png", 0, 1, 2, 255)


def mmseg_tree(root):
    for split, count in (("train", 3), ("val", 2)):
        for n in range(count):
            photo(root / f"img_dir/{split}/{split}{n}.jpg")
            mask(root / f"ann_dir/{split}/{split}{n}.png", 0, 1)


def cityscapes_tree(root):
    """Masks whose names differ, in a folder for each city."""
    for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "lindau")):
        for n in range(2):
            start = f"{split}/{city}/{city}_{n:06d}"
            photo(root / f"left/{start}_camera.png")
            mask(root / f"truth/{start}_labelIds.png", 0, 1, 2)
            mask(root / f"truth/{start}_instanceIds.png", 9)


def voc_tree(root):
    for name in ("2007_000032", "2007_000039", "2007_000063"):
        photo(root / f"JPEGImages/{name}.jpg")
        palette = Image.fromarray(np.resize([0, 1, 15, 255], (8, 10)).astype(np.uint8), "P")
        palette.putpalette([0, 0, 0, 128, 0, 0] + [9] * 762)
        (root / "SegmentationClass").mkdir(parents=True, exist_ok=True)
        palette.save(root / f"SegmentationClass/{name}.png")
    photo(root / "JPEGImages/2009_unlabelled.jpg")
    text(root / "ImageSets/Segmentation/train.txt", "2007_000032", "2007_000039")
    text(root / "ImageSets/Segmentation/val.txt", "2007_000063")


def coco_tree(root):
    """Two categories whose ids have gaps; polygons, runs, and an image without any object."""
    for split, first in (("train", 1), ("val", 3)):
        names = [f"{n:012d}.jpg" for n in (first, first + 1)]
        for name in names:
            photo(root / f"{split}2017/{name}")
        images = [{"id": n, "file_name": name, "height": 8, "width": 10}
                  for n, name in enumerate(names, first)]  # fmt: skip
        square = [[2, 1, 6, 1, 6, 5, 2, 5]]
        runs = {"size": [8, 10], "counts": [0, 8, 72]}  # The first column.
        annotations = [
            {"id": 1, "image_id": first, "category_id": 18, "segmentation": square, "area": 16,
             "bbox": [2, 1, 4, 4], "iscrowd": 0},
            {"id": 2, "image_id": first, "category_id": 3, "segmentation": runs, "area": 8,
             "bbox": [0, 0, 1, 8], "iscrowd": 1},
        ]  # fmt: skip
        categories = [{"id": 3, "name": "car", "supercategory": "vehicle"},
                      {"id": 18, "name": "dog", "supercategory": "animal"}]  # fmt: skip
        content = {"info": {}, "images": images, "annotations": annotations,
                   "categories": categories}  # fmt: skip
        text(root / f"annotations/instances_{split}2017.json", json.dumps(content))


def yolo_tree(root):
    for split in ("train", "val"):
        photo(root / f"images/{split}/a.jpg")
        photo(root / f"images/{split}/empty.jpg")
        text(root / f"labels/{split}/a.txt",
             "1 0.2 0.125 0.6 0.125 0.6 0.625 0.2 0.625",
             "0 0.0 0.0 0.1 0.0 0.1 1.0 0.0 1.0")  # fmt: skip


OUTLINES = np.full((8, 10), 9)
OUTLINES[1:5, 2:6], OUTLINES[:, 0] = 1, 0


class TestTemplates:
    def test_masks_named_otherwise(self, tmp_path):
        for name in ("a", "b"):
            photo(tmp_path / f"photos/{name}.jpg")
            mask(tmp_path / f"truth/{name}_labelIds.png", 0, 1)
            mask(tmp_path / f"truth/{name}_other.png", 7)
        train = {"images": "photos", "masks": "truth/{stem}_labelIds.png"}
        data = open_dataset(plan(tmp_path, train=train, classes=NAMES))
        assert [s.name for s in data] == ["a", "b"]
        assert data.files(1)[1] == tmp_path / "truth/b_labelIds.png"
        (tmp_path / "truth/a_labelIds.png").unlink()
        listed = list_dataset(str(tmp_path / "data.yaml"))
        assert [(p.kind, Path(p.file).name) for p in listed.problems] == [("missing mask", "a.jpg")]

    def test_parents_and_stems_of_images(self, tmp_path):
        cityscapes_tree(tmp_path)
        train = {"images": "left/train/{parent}/{stem}_camera.png",
                 "masks": "truth/train/{parent}/{stem}_labelIds.png"}  # fmt: skip
        data = open_dataset(plan(tmp_path, train=train, classes=NAMES))
        assert [s.name for s in data][:3] == [
            "aachen/aachen_000000", "aachen/aachen_000001", "bochum/bochum_000000",
        ]  # fmt: skip
        assert data.files(2)[1].name == "bochum_000000_labelIds.png"

    def test_parent_before_the_kind(self, tmp_path):
        for sequence in ("s1", "s2"):
            photo(tmp_path / f"{sequence}/rgb/0.png")
            mask(tmp_path / f"{sequence}/gt/0.png", 0)
        train = {"images": "{parent}/rgb/{stem}.png", "masks": "{parent}/gt/{stem}.png"}
        data = open_dataset(plan(tmp_path, train=train, classes=NAMES))
        assert [s.name for s in data] == ["s1/0", "s2/0"]
        train = {"images": "{parent}/rgb/{stem}.png", "masks": "s1/gt/{stem}.png"}
        with pytest.raises(ValueError, match="several images the same mask"):
            open_dataset(plan(tmp_path, train=train, classes=NAMES))


class TestLists:
    def test_pascal_voc(self, tmp_path):
        voc_tree(tmp_path)
        for spec in (f"voc:{tmp_path}", str(tmp_path)):
            if spec == str(tmp_path):
                init_data(tmp_path)
            assert available_splits(spec) == ("train", "val")
            train = open_dataset(spec)
            assert [s.name for s in train] == ["2007_000032", "2007_000039"]
            assert train.class_set == VOC
            assert train[0].labels[0, :4].tolist() == [0, 1, 15, 255]
            assert [s.name for s in open_dataset(spec, "val")] == ["2007_000063"]
        assert VOC.colours[:2] == ((0, 0, 0), (128, 0, 0))
        assert VOC.colours[15] == (192, 128, 128)

    def test_names_that_are_not_there(self, tmp_path):
        voc_tree(tmp_path)
        text(tmp_path / "ImageSets/Segmentation/train.txt",
             "2007_000032", "2007_000032", "2001_nowhere", "2009_unlabelled")  # fmt: skip
        listed = list_dataset(f"voc:{tmp_path}")
        assert [p.kind for p in listed.problems] == ["duplicate", "missing image", "missing mask"]
        assert len(listed) == 1
        text(tmp_path / "ImageSets/Segmentation/train.txt", "")
        with pytest.raises(ValueError, match=r'list ".*train\.txt" is empty'):
            open_dataset(f"voc:{tmp_path}")

    def test_lists_of_pairs(self, tmp_path):
        masks_tree(tmp_path)
        text(tmp_path / "train.txt", "images/train/train0.jpg masks/train/train0.png",
             "images/train/train2.jpg\tmasks/train/train2.png", "a.jpg b.png")  # fmt: skip
        listed = list_dataset(plan(tmp_path, train={"list": "train.txt"}, classes=NAMES))
        assert [s.name for s in listed] == ["images/train/train0", "images/train/train2"]
        assert [p.kind for p in listed.problems] == ["missing image"]
        text(tmp_path / "train.txt", "train0")
        with pytest.raises(ValueError, match="not an image and a mask"):
            open_dataset(str(tmp_path / "data.yaml"))


class TestCoco:
    @pytest.fixture
    def spec(self, tmp_path):
        coco_tree(tmp_path)

        def give(**more):
            splits = {split: {"images": f"{split}2017",
                              "coco": f"annotations/instances_{split}2017.json"}
                      for split in ("train", "val")}  # fmt: skip
            return plan(tmp_path, **splits, **more)

        return give

    def test_outlines_become_labels(self, spec):
        data = open_dataset(spec(background="rest"))
        assert data.class_set.names == ("car", "dog", "rest")
        np.testing.assert_array_equal(data[0].labels, np.where(OUTLINES == 9, 2, OUTLINES))
        assert (data[1].labels == 2).all()
        ignored = open_dataset(spec())
        np.testing.assert_array_equal(ignored[0].labels, np.where(OUTLINES == 9, 255, OUTLINES))

    def test_classes_by_name(self, spec):
        data = open_dataset(spec(classes=["dog", "car"]))
        assert data[0].labels[1, 2] == 0
        merged = open_dataset(spec(map={"dog": "thing", "car": "thing"}, background="rest"))
        assert merged.class_set.names == ("thing", "rest")
        only = open_dataset(spec(classes=["dog"], ignore=["car"]))
        assert only.class_set.names == ("dog",)
        assert only[0].labels[:, 0].tolist() == [255] * 8
        with pytest.raises(ValueError, match=r"categories \['car'\].*not among the classes"):
            open_dataset(spec(classes=["dog"]))

    def test_faults(self, spec, tmp_path):
        file = tmp_path / "annotations/instances_train2017.json"
        good = json.loads(file.read_text())
        (tmp_path / "train2017/000000000002.jpg").unlink()
        photo(tmp_path / "train2017/000000000001.jpg", height=9)
        report = check_splits(spec(), ["train"])[0]
        assert [p.kind for p in report.problems] == ["missing image", "size"]
        odd = {"id": 5, "image_id": 1, "category_id": "x", "segmentation": [[1, 2, 3]]}
        for change, match in (
            ({"images": 3}, '"images" must be a list of objects'),
            ({"categories": [{"id": 1}]}, "needs an id and a name"),
            ({"annotations": [{"image_id": 1, "bbox": [1, 2, 3, 4]}]}, "boxes alone"),
            ({"annotations": [odd | {"category_id": 3}]}, "annotation 5 cannot be drawn"),
            ({"annotations": [odd]}, "annotation 5 has the category_id 'x'"),
        ):  # fmt: skip
            file.write_text(json.dumps(good | change))
            with pytest.raises(ValueError, match=match):
                list_dataset(spec())
        file.write_text("[1")
        with pytest.raises(ValueError, match=r"cannot read .*instances_train2017\.json"):
            list_dataset(spec())

    def test_ids_without_a_category(self, spec, tmp_path):
        file = tmp_path / "annotations/instances_train2017.json"
        content = json.loads(file.read_text())
        content["annotations"][0]["category_id"] = 44
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"44 \(16 pixels\).*Known are 3, 18$"):
            open_dataset(spec())[0]


class TestYolo:
    def test_a_file_of_ultralytics(self, tmp_path):
        yolo_tree(tmp_path)
        (tmp_path / "data.yaml").write_text(
            "path: .\ntrain: images/train\nval: images/val\ntest:  # optional\n"
            "names:\n  0: person\n  1: car\nnc: 2\ndownload: https://example.org/x.zip\n"
        )
        spec = str(tmp_path / "data.yaml")
        assert available_splits(spec) == ("train", "val")
        data = open_dataset(spec)
        assert data.class_set.names == ("person", "car")
        np.testing.assert_array_equal(data[0].labels, np.where(OUTLINES == 9, 255, OUTLINES))
        with (tmp_path / "data.yaml").open("a") as file:
            file.write("background: rest\n")
        data = open_dataset(spec, "val")
        assert data.class_set.names == ("person", "car", "rest")
        np.testing.assert_array_equal(data[0].labels, np.where(OUTLINES == 9, 2, OUTLINES))
        assert (data[1].labels == 2).all()  # No file: nothing but background.
        report = check_splits(spec, ["train"])[0]
        assert report.problems == ()

    def test_paths_of_roboflow_and_lists(self, tmp_path):
        photo(tmp_path / "train/images/a.jpg")
        text(tmp_path / "train/labels/a.txt", "0 0 0 1 0 1 1")
        text(tmp_path / "train/labels/._a.txt", "left by a file manager")
        more = {"nc": 1, "roboflow": {"workspace": "mine", "version": 1}}
        data = open_dataset(plan(tmp_path, train="../train/images", names=["x"], **more))
        assert (data[0].labels == 0).sum() in range(36, 46)
        text(tmp_path / "list.txt", "./train/images/a.jpg", "./train/images/b.jpg")
        listed = list_dataset(plan(tmp_path, train="list.txt", names=["x"]))
        assert [p.kind for p in listed.problems] == ["missing image"]
        np.testing.assert_array_equal(listed[0].labels, data[0].labels)

    @pytest.mark.parametrize(
        ("line", "match"),
        [
            ("1 0.5 0.5 0.2 0.2", r'polygon 1 of ".*a\.txt" is a box'),
            ("1 0.5 0.5 0.2", "at least 3 corners"),
            ("1.5 0 0 1 0 1 1", "not a class"),
            ("-1 0 0 1 0 1 1", "not a class"),
            ("1 0 0 640 0 1 1", "not fractions"),
            ("1 0 0 nan 0 1 1", "not fractions"),
            ("x 0 0 1 0 1 1", "something else than numbers"),
            ("7 0 0 1 0 1 1", r"7 \(\d+ pixels\).*Known are 0 to 2"),
        ],
    )
    def test_faults(self, tmp_path, line, match):
        yolo_tree(tmp_path)
        text(tmp_path / "labels/train/a.txt", line)
        data = open_dataset(plan(tmp_path, train="images/train", names=NAMES))
        with pytest.raises(ValueError, match=match):
            data[0]
        (tmp_path / "labels/train/lone.txt").write_text("")
        assert [p.kind for p in list_dataset(str(tmp_path / "data.yaml")).problems] == [
            "missing image"
        ]


class TestHub:
    @pytest.fixture
    def saved(self, tmp_path):
        """Two splits that `save_to_disk` wrote."""
        datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
        masks_tree(tmp_path / "files")
        kind = datasets.Features({"image": datasets.Image(), "label": datasets.Image()})
        splits = {}
        for split, name in (("train", "train"), ("val", "validation")):
            paths = sorted((tmp_path / f"files/images/{split}").iterdir())
            labels = sorted((tmp_path / f"files/masks/{split}").iterdir())
            cells = [[{"path": None, "bytes": p.read_bytes()} for p in part]
                     for part in (paths, labels)]  # fmt: skip
            rows = {"image": cells[0], "label": cells[1]}
            splits[name] = datasets.Dataset.from_dict(rows, features=kind)
        datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
        return tmp_path / "saved"

    def test_rows_are_read(self, saved, tmp_path):
        entry = {"hf": "saved", "image": "image", "label": "label"}
        spec = plan(tmp_path, train=entry, val={"hf": "saved"}, classes=NAMES)
        files = open_dataset(plan(tmp_path / "files",
                             **{s: {"images": f"images/{s}", "masks": f"masks/{s}"}
                                for s in ("train", "val")}, classes=NAMES), "val")  # fmt: skip
        data = open_dataset(spec, "val")
        assert len(data) == 2
        assert data.files(0) is None
        for ours, theirs in zip(data, files, strict=True):
            np.testing.assert_array_equal(ours.image, theirs.image)
            np.testing.assert_array_equal(ours.labels, theirs.labels)
        assert [r.problems for r in check_splits(spec)] == [(), ()]
        report = check_splits(plan(tmp_path, train=entry, classes=NAMES[:2]))[0]
        assert [p.kind for p in report.problems] == ["label"] * 3
        with pytest.raises(ValueError, match='no column "mask": it has image, label'):
            open_dataset(plan(tmp_path, train=entry | {"label": "mask"}, classes=NAMES))

    def test_init(self, saved):
        layout, datasets = init_data(saved)
        assert "Hugging Face" in layout.title
        assert [len(dataset) for dataset in datasets] == [3, 2]
        assert open_dataset(str(saved), "val")[0].labels[0, :4].tolist() == [0, 1, 2, 255]

    def test_rows_of_the_only_split_are_divided_by_lists(self, saved):
        (saved / "dataset_dict.json").write_text('{"splits": ["train"]}')
        _, datasets = init_data(saved)
        assert [[data.name_of(n) for n in range(len(data))] for data in datasets] == [
            ["000000", "000001"],
            ["000002"],
        ]
        assert datasets[1].where(0)[0].parts[-2:] == ("2", "image")
        assert [report.problems for report in check_splits(str(saved))] == [(), ()]

    def test_a_table_that_cannot_be_used(self, saved):
        datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
        table = datasets.load_from_disk(str(saved))["train"]
        none = table.map(lambda row: {"label": None}, features=table.features)
        for name, content, match in (
            ("other", {"pictures": table}, "has the splits pictures: call one of them train"),
            ("none", {"train": none}, "no image has a mask of its own"),
        ):
            datasets.DatasetDict(content).save_to_disk(saved.with_name(name))
            with pytest.raises(ValueError, match=match):
                init_data(saved.with_name(name))

    def test_what_is_missing_is_named(self, tmp_path, monkeypatch):
        (tmp_path / "saved").mkdir()
        spec = plan(tmp_path, train={"hf": "saved"}, classes=NAMES)
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ImportError, match=r"paumer\[hf\]"):
            open_dataset(spec)


class TestClassesByName:
    def test_names_merged_and_ignored(self, tmp_path):
        photo(tmp_path / "i/a.png")
        mask(tmp_path / "m/a.png", 0, 1, 2, 3, 255)
        part = {"images": "i", "masks": "m"}
        classes = ["sky", "car", "road", "truck"]
        data = open_dataset(plan(tmp_path, train=part, classes=classes, map={"truck": "car"}))
        assert data.class_set.names == ("sky", "car", "road")
        assert data[0].labels[0, :5].tolist() == [0, 1, 2, 1, 255]
        both = {"map": {"truck": "vehicle", "car": "vehicle"}, "ignore": ["sky"]}
        data = open_dataset(plan(tmp_path, train=part, names=dict(enumerate(classes)), **both))
        assert data.class_set.names == ("vehicle", "road")
        assert data[0].labels[0, :5].tolist() == [255, 0, 1, 0, 255]

    def test_of_colours(self, tmp_path):
        photo(tmp_path / "i/a.png", 1, 3)
        write(tmp_path / "m/a.png", [[(9, 0, 0), (0, 9, 0), (0, 0, 9)]])
        classes = {"sky": [9, 0, 0], "car": [0, 9, 0], "truck": [0, 0, 9]}
        data = open_dataset(plan(
            tmp_path, train={"images": "i", "masks": "m"}, classes=classes, rgb_masks=True,
            map={"truck": "car"}, ignore=["sky"],
        ))  # fmt: skip
        assert data.class_set.names == ("car",)
        assert data.class_set.colours == ((0, 9, 0),)
        assert data[0].labels.tolist() == [[255, 0, 0]]

    def test_ids_with_gaps(self, tmp_path):
        photo(tmp_path / "i/a.png")
        mask(tmp_path / "m/a.png", 0, 7)
        spec = plan(tmp_path, train={"images": "i", "masks": "m"}, names={7: "car", 0: "sky"})
        data = open_dataset(spec)
        assert data.class_set.names == ("sky", "car")
        assert data[0].labels[0, :2].tolist() == [0, 1]


def flat_tree(root):
    """Images and marked masks of 0 and 255 in one folder, without splits."""
    for n in range(6):
        photo(root / f"{n}.png")
        mask(root / f"{n}_mask.png", 0, 255)


def rgb_tree(root):
    for split in ("train", "valid"):
        photo(root / f"{split}_images/{split}.jpg")
        write(root / f"{split}_masks/{split}.png", np.resize([(0, 0, 0), (255, 0, 0)], (8, 10, 3)))


def prefix_tree(root):
    for n in range(5):
        photo(root / f"imgs/img_{n}.png")
        mask(root / f"gt/gt_{n}.png", 0, 38, 75)


def roboflow_coco_tree(root):
    coco_tree(root)
    for split, name in (("train", "train"), ("val", "valid")):
        (root / f"{split}2017").rename(root / name)
        (root / f"annotations/instances_{split}2017.json").rename(
            root / name / "_annotations.coco.json"
        )
    (root / "annotations").rmdir()


def camvid_tree(root):
    for split in ("train", "val"):
        photo(root / f"{split}/{split}.png")
        mask(root / f"{split}annot/{split}.png", 0, 10, 11)


def kitti_tree(root):
    """Masks of ids beside painted ones and those of instances; images without any for testing."""
    for n in range(5):
        photo(root / f"training/image_2/{n}_10.png")
        photo(root / f"testing/image_2/{n}_10.png")
        mask(root / f"training/semantic/{n}_10.png", 7, 26)
        mask(root / f"training/instance/{n}_10.png", 9)
        write(root / f"training/semantic_rgb/{n}_10.png", np.full((8, 10, 3), (1, 2, 3)))


def raw_tree(root):
    """CamVid as it was published: the name of the images' folder says nothing."""
    for n in range(5):
        photo(root / f"701_StillsRaw_full/{n}.png")
        write(root / f"LabeledApproved_full/{n}_L.png", np.full((8, 10, 3), (64, 128, 64)))


def grey_tree(root):
    """Ids in three equal channels; the first mask shows one class."""
    for n in range(5):
        photo(root / f"images/{n}.png")
        write(root / f"masks/{n}.png", np.resize([[0] * 3, [min(n, 1)] * 3], (8, 10, 3)))


REDS = ("00", "09", "12", "1b", "24")


def black_tree(root):
    """Masks by colour, of which the first is black."""
    for n in range(5):
        photo(root / f"images/{n}.png")
        write(root / f"masks/{n}.png", np.full((8, 10, 3), (9 * n, 0, 0)))


class TestInit:
    @pytest.mark.parametrize(
        ("tree", "title", "counts", "names"),
        [
            (masks_tree, "images with masks", (3, 2), ["class 0", "class 1", "class 2"]),
            (cityscapes_tree, "images with masks", (4, 2), ["class 0", "class 1", "class 2"]),
            (flat_tree, "images with masks", (5, 1), ["background", "foreground"]),
            (rgb_tree, "images with masks", (1, 1), ["colour 000000", "colour ff0000"]),
            (prefix_tree, "images with masks", (4, 1), ["class 0", "class 38", "class 75"]),
            (mmseg_tree, "images with masks", (3, 2), ["class 0", "class 1"]),
            (kitti_tree, "images with masks", (4, 1), ["class 7", "class 26"]),
            (raw_tree, "images with masks", (4, 1), ["colour 408040"]),
            (grey_tree, "images with masks", (4, 1), ["class 0", "class 1"]),
            (
                black_tree,
                "images with masks",
                (4, 1),
                [f"colour {9 * n:02x}0000" for n in range(5)],
            ),
            (coco_tree, "COCO annotations", (2, 2), ["car", "dog", "background"]),
            (roboflow_coco_tree, "COCO annotations", (2, 2), ["car", "dog", "background"]),
            (yolo_tree, "YOLO polygons", (2, 2), ["class 0", "class 1", "background"]),
            (voc_tree, "Pascal VOC", (2, 1), list(VOC.names)),
            (camvid_tree, "CamVid", (1, 1), None),
        ],
    )
    def test_trees_are_recognised(self, tmp_path, tree, title, counts, names):
        tree(tmp_path)
        layout, datasets = init_data(tmp_path)
        assert layout.title == title
        assert tuple(len(dataset) for dataset in datasets) == counts
        assert names is None or list(datasets[0].class_set.names) == names
        assert all(report.problems == () for report in check_splits(str(tmp_path)))
        assert read_image(tmp_path / "data-sheet.png").shape[1] > 200

    @pytest.mark.parametrize("tree", [masks_tree, coco_tree, yolo_tree, cityscapes_tree])
    def test_without_a_split_for_validation_lists_make_one(self, tmp_path, tree):
        tree(tmp_path)
        for part in (part for part in tmp_path.rglob("*val*") if part.exists()):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        layout, datasets = init_data(tmp_path)
        assert [dataset.split for dataset in datasets] == ["train", "val"]
        names = [{data.name_of(n) for n in range(len(data))} for data in datasets]
        assert names[0].isdisjoint(names[1])
        assert len(names[1]) == 1
        assert "every fifth image" in layout.assumed[-1]

    @pytest.mark.parametrize("place", ["", "splits", "ImageSets/Segmentation"])
    def test_lists_that_lie_there_are_used(self, tmp_path, place):
        """As many tools write them, here in the form of Pascal VOC with other folders."""
        for name in "abcd":
            photo(tmp_path / f"images/{name}.jpg")
            mask(tmp_path / f"masks/{name}.png", 0, 1)
        lists = {"train": "ab", "val": "c", "test": "d"}
        for split, names in lists.items():
            text(tmp_path / place / f"{split}.txt", *names)
        layout, datasets = init_data(tmp_path)
        assert {d.split: "".join(d.name_of(n) for n in range(len(d))) for d in datasets} == lists
        assert "say which image is of which split" in layout.assumed[-1]
        assert layout.lists == {}
        assert all(report.problems == () for report in check_splits(str(tmp_path)))

    def test_lists_of_pairs(self, tmp_path):
        masks_tree(tmp_path)
        for split, count in (("train", 3), ("val", 2)):
            lines = [f"images/{split}/{split}{n}.jpg masks/{split}/{split}{n}.png"
                     for n in range(count)]  # fmt: skip
            text(tmp_path / f"{split}.txt", *lines)
        layout, datasets = init_data(tmp_path)
        assert layout.title == "lists of images and masks"
        assert [len(dataset) for dataset in datasets] == [3, 2]
        assert open_dataset(str(tmp_path), "val")[0].labels[0, :4].tolist() == [0, 1, 2, 255]

    def test_folders_of_pascal_voc_with_another_list(self, tmp_path):
        """As CVAT writes them: masks by colour, and one list."""
        for name in "abcde":
            photo(tmp_path / f"JPEGImages/{name}.jpg")
            for kind in ("Class", "Object"):
                write(tmp_path / f"Segmentation{kind}/{name}.png", np.full((8, 10, 3), (128, 0, 9)))
        text(tmp_path / "ImageSets/Segmentation/default.txt", *"abcde")
        layout, datasets = init_data(tmp_path)
        assert layout.plan["classes"] == {"colour 800009": [128, 0, 9]}
        assert layout.plan["train"]["masks"] == "SegmentationClass"
        assert [len(dataset) for dataset in datasets] == [4, 1]

    def test_each_folder_has_the_masks_beside_it(self, tmp_path):
        for sequence, count in (("s1", 2), ("s2", 3)):
            for n in range(count):
                photo(tmp_path / f"{sequence}/rgb/{n}.png")
                mask(tmp_path / f"{sequence}/gt/{n}.png", 0, 1)
        layout, _ = init_data(tmp_path)
        assert layout.plan["val"] == {"images": "s2/rgb", "masks": "s2/gt", "list": "val.txt"}
        assert "one folder of images, so these are left out: s1/rgb" in layout.assumed[-2]

    def test_links_are_followed_and_what_is_hidden_is_not(self, tmp_path):
        masks_tree(tmp_path / "there")
        photo(tmp_path / "there/images/train/.ipynb_checkpoints/train0-checkpoint.jpg")
        folder = tmp_path / "here"
        folder.mkdir()
        for part in ("images", "masks"):
            (folder / part).symlink_to(tmp_path / "there" / part)
            (tmp_path / "there" / part / "back").symlink_to(folder)
        _, datasets = init_data(folder)
        assert [len(dataset) for dataset in datasets] == [3, 2]
        assert all(report.problems == () for report in check_splits(str(folder)))

    def test_no_image_with_one_mask(self, tmp_path):
        for suffix in ("jpg", "png"):
            photo(tmp_path / f"images/a.{suffix}")
        mask(tmp_path / "masks/a.png", 0)
        with pytest.raises(ValueError, match="names occur twice"):
            init_data(tmp_path)

    def test_nothing_is_overwritten(self, tmp_path, monkeypatch, capsys):
        flat_tree(tmp_path)
        text(tmp_path / "train.txt", "mine")  # Of no image here.
        with pytest.raises(ValueError, match=r"train\.txt.*not overwritten"):
            init_data(tmp_path)
        assert not (tmp_path / "data.yaml").exists()
        (tmp_path / "train.txt").unlink()
        monkeypatch.setattr(sys, "argv", ["paumer", "data", "init", str(tmp_path)])
        for code in (0, 2):
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == code
        printed = capsys.readouterr()
        assert "assumed: masks of 0 and 255 are background and foreground" in printed.out
        assert "train: 5 images" in printed.out
        assert "data.yaml" in printed.err

    def test_a_folder_without_labels(self, tmp_path):
        photo(tmp_path / "a.png")
        with pytest.raises(ValueError, match="holds 1 images, and beside them no masks"):
            init_data(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
        with pytest.raises(ValueError, match="is not a folder"):
            init_data(tmp_path / "a.png")
        (tmp_path / "a.png").unlink()
        with pytest.raises(ValueError, match="holds no images"):
            init_data(tmp_path)


DOCS = (Path(__file__).parents[2] / "docs/data.md").read_text("utf-8")


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", DOCS, re.S))
def test_the_examples_in_the_docs_are_understood(tmp_path, example):
    """They lack their files, and nothing else."""
    (tmp_path / "data.yaml").write_text(example)
    with pytest.raises(ValueError, match=r'(^no folder|data.yaml": there is no annotation file)'):
        open_dataset(str(tmp_path / "data.yaml"))


def test_the_sample_is_small_and_whole():
    assert available_splits("sample") == ("train", "val", "test")
    reports = check_splits("sample")
    assert [report.images for report in reports] == [4, 2, 2]
    assert all(report.problems == () for report in reports)
    folder = Path(open_dataset("sample").files(0)[0]).parents[2]
    assert sum(file.stat().st_size for file in folder.rglob("*.*")) < 400_000
