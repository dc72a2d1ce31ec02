import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paumer.classes import ClassSet
from paumer.cli.main import main
from paumer.data.checking import check_dataset, check_splits, sample_sheet
from paumer.data.datasets import list_dataset, open_dataset
from paumer.data.folders import FolderDataset
from paumer.data.samples import Dataset, Sample

SHARED_CAMVID = Path(__file__).parents[2] / "../shared/data/camvid"
PLAN = """
train: {images: images/train, masks: masks/train}
classes: [sky, road, tree, car, wall]
"""


def write(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(array, np.uint8)).save(path, **options)


def make_set(root, count=200, seed=0, plan=PLAN):
    """Images of several kinds and sizes with whole, varied masks; the exact pixels by class."""
    rng, pixels = np.random.default_rng(seed), np.zeros(256, np.int64)
    for i in range(count):
        height, width = (24, 32) if i % 3 else (30, 20)
        labels = (
            rng.choice([0, 1, 2, 3, 4, 255], (height // 2, width // 2)).repeat(2, 0).repeat(2, 1)
        )
        pixels += np.bincount(labels.ravel(), minlength=256)
        name = f"{'far/' if i % 4 == 0 else ''}{i:03d}"
        image = rng.integers(0, 256, (height, width, 3), np.uint8)
        write(root / f"images/train/{name}{('.jpg', '.png', '.webp')[i % 3]}", image)
        write(root / f"masks/train/{name}.png", labels)
    (root / "data.yaml").write_text(plan)
    return pixels


def damage(file, kind, rng):
    """Spoils one file; gives the problem a check must name: (file, kind)."""
    if kind == "cut":
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * rng.uniform(0.2, 0.6))])
        return str(file), "unreadable"
    if kind == "text":
        file.write_text("this is no image")
        return str(file), "unreadable"
    if kind == "empty":
        file.write_bytes(b"")
        return str(file), "unreadable"
    ids = np.array(Image.open(file))
    if kind == "size":
        write(file, ids[:-1])
        return str(file), "size"
    ids[3, 4:7] = 5 + int(rng.integers(0, 200))
    write(file, ids)
    return str(file), "label"


class TestDamage:
    @pytest.mark.parametrize("seed", range(3))
    def test_exactly_the_injected_faults_are_found(self, tmp_path, seed):
        make_set(tmp_path, seed=seed)
        rng = np.random.default_rng(seed)
        images = sorted(p for p in (tmp_path / "images").rglob("*") if p.is_file())
        masks = sorted(p for p in (tmp_path / "masks").rglob("*") if p.is_file())
        assert len(images) + len(masks) == 400
        spoilt, expected = rng.permutation(200)[:12], set()
        for i, number in enumerate(spoilt.tolist()):
            name = Path(f"{'far/' if number % 4 == 0 else ''}{number:03d}")
            image = next(p for p in images if p.with_suffix("") == tmp_path / "images/train" / name)
            mask = tmp_path / "masks/train" / name.with_suffix(".png")
            if i < 3:
                expected.add(damage(image, ("cut", "text", "empty")[i], rng))
            elif i < 10:
                kinds = ("cut", "text", "empty", "size", "size", "id", "id")
                expected.add(damage(mask, kinds[i - 3], rng))
            elif i == 10:
                image.unlink()
                expected.add((str(mask), "missing image"))
            else:
                mask.unlink()
                expected.add((str(image), "missing mask"))
        report = check_dataset(str(tmp_path / "data.yaml"))
        found = [(problem.file, problem.kind) for problem in report.problems]
        assert len(found) == len(expected) == 12  # 3% of 400
        assert set(found) == expected
        for problem in report.problems:
            assert problem.file in problem.message

    def test_a_whole_set_has_none_and_exact_numbers(self, tmp_path):
        pixels = make_set(tmp_path)
        before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
        steps = []
        report = check_dataset(
            str(tmp_path / "data.yaml"), progress=lambda *step: steps.append(step)
        )
        assert report.problems == ()
        assert report.images == 200
        assert report.class_pixels == tuple(pixels[:5].tolist())
        assert report.ignored_pixels == pixels[255]
        assert report.sizes == (((32, 24), 133), ((20, 30), 67))
        assert steps == [(i, 200) for i in range(1, 201)]
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before

    def test_two_faults_of_one_pair_are_both_found(self, tmp_path):
        make_set(tmp_path, 2)
        (tmp_path / "images/train/001.png").write_bytes(b"")
        damage(tmp_path / "masks/train/001.png", "id", np.random.default_rng(0))
        report = check_dataset(str(tmp_path / "data.yaml"))
        assert [p.kind for p in report.problems] == ["unreadable", "label"]

    def test_wrong_ids_are_counted_and_not_taken_for_ignored(self, tmp_path):
        make_set(tmp_path, 1)
        ids = np.zeros((30, 20), np.uint8)
        ids[0, :7], ids[1, :2] = 9, 255
        write(tmp_path / "masks/train/far/000.png", ids)
        report = check_dataset(str(tmp_path / "data.yaml"))
        assert "9 (7 pixels)" in report.problems[0].message
        assert report.ignored_pixels == 2
        assert report.class_pixels == (591, 0, 0, 0, 0)

    def test_a_mask_without_labels(self, tmp_path):
        make_set(tmp_path, 3)
        write(tmp_path / "masks/train/001.png", np.full((24, 32), 255))
        report = check_dataset(str(tmp_path / "data.yaml"))
        assert [(p.kind, Path(p.file).name) for p in report.problems] == [("unlabelled", "001.png")]

    def test_joined_sets_are_checked_part_by_part(self, tmp_path):
        specs = []
        for part in "ab":
            make_set(tmp_path / part, 2, seed=ord(part))
            specs.append(str(tmp_path / part / "data.yaml"))
        image, mask = (tmp_path / f"b/{kind}/train/001.png" for kind in ("images", "masks"))
        image.write_bytes(b"")
        damage(mask, "id", np.random.default_rng(0))
        joined = check_dataset("+".join(specs))
        assert [(p.file, p.kind) for p in joined.problems] == [
            (str(image), "unreadable"), (str(mask), "label"),
        ]  # fmt: skip
        parts = [check_dataset(spec) for spec in specs]
        assert joined.images == 4
        assert joined.contents == parts[0].contents + parts[1].contents
        assert sum(joined.class_pixels) == sum(sum(part.class_pixels) for part in parts)

    @pytest.mark.skipif(not SHARED_CAMVID.is_dir(), reason="../shared/data/camvid is not there")
    def test_camvid_has_none(self):
        report = check_dataset(f"camvid:{SHARED_CAMVID}", "val")
        assert report.problems == ()
        assert report.sizes == (((480, 360), 101),)
        assert sum(report.class_pixels) + report.ignored_pixels == 101 * 480 * 360


class TestLeaks:
    def test_an_image_in_two_splits(self, tmp_path):
        make_set(tmp_path, 6, plan=PLAN + "val: {images: images/val, masks: masks/val}\n")
        for name in ("far/000.jpg", "001.png"):
            source = tmp_path / "images/train" / name
            target = tmp_path / "images/val" / Path(name).name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            mask = (tmp_path / "masks/train" / name).with_suffix(".png")
            (tmp_path / "masks/val").mkdir(exist_ok=True)
            shutil.copy(mask, tmp_path / "masks/val" / mask.name)
        # Another file format and name, but the same pixels.
        same = Image.open(tmp_path / "images/train/001.png")
        same.save(tmp_path / "images/val/other.bmp")
        shutil.copy(tmp_path / "masks/val/001.png", tmp_path / "masks/val/other.png")
        write(tmp_path / "images/val/fresh.png", np.zeros((24, 32, 3)))
        write(tmp_path / "masks/val/fresh.png", np.zeros((24, 32)))
        seen = []
        train, val = check_splits(str(tmp_path / "data.yaml"), progress=lambda *s: seen.append(s))
        assert train.problems == ()
        assert [(p.kind, Path(p.file).name) for p in val.problems] == [
            ("leak", "000.jpg"), ("leak", "001.png"), ("leak", "other.bmp"),
        ]  # fmt: skip
        assert "train/001.png" in val.problems[2].message
        assert seen[0] == ("train", 1, 6)
        assert seen[-1] == ("val", 4, 4)


class Made(Dataset):
    """A data set that lies in no file, one of whose images cannot be had."""

    name, split = "made", "val"
    class_set = ClassSet(("a", "b"), ((1, 1, 1), (2, 2, 2)))

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 1:
            raise RuntimeError("out of paint")
        return Sample(f"made-{index}", np.full((4, 5, 3), index, np.uint8),
                      np.full((4, 5), 255 if index == 2 else 1, np.uint8))  # fmt: skip


class TestReport:
    def test_data_sets_without_files(self):
        report = check_dataset(Made())
        assert [(p.file, p.kind) for p in report.problems] == [
            ("made val 1", "unreadable"), ("made-2", "unlabelled"),
        ]  # fmt: skip
        assert "out of paint" in report.problems[0].message
        assert report.class_pixels == (0, 20)
        assert report.sizes == (((5, 4), 2),)

    def test_json_and_text(self):
        report = check_dataset(Made())
        values = json.loads(json.dumps(report.to_json()))
        assert values["class_pixels"] == [0, 20]
        assert values["sizes"] == [{"width": 5, "height": 4, "images": 2}]
        assert values["problems"][1]["kind"] == "unlabelled"
        assert "contents" not in values
        text = report.to_text()
        assert text.startswith("made val: 3 images, 2 problems")
        assert "b              20  100.00%" in text
        assert '1 file cannot be read:\n- cannot read "made val 1"' in text

    def test_problems_are_grouped(self, tmp_path):
        make_set(tmp_path, 8)
        for mask in sorted((tmp_path / "masks/train").glob("*.png"))[:5]:
            damage(mask, "id", np.random.default_rng(0))
        (tmp_path / "images/train/001.png").write_bytes(b"")
        text = check_dataset(str(tmp_path / "data.yaml")).to_text()
        title = "5 images have labels that stand for no class (known are 0 to 4, 255), the first 3:"
        assert title in text
        assert text.count("holds label ids") == 3
        assert "\n1 file cannot be read:\n- cannot read" in text

    def test_bad_data_gets_its_files_too(self, tmp_path, monkeypatch):
        make_set(tmp_path, 3)
        for image in (tmp_path / "images").rglob("*.*"):
            image.write_bytes(b"")
        out = tmp_path / "report"
        arguments = ["paumer", "check-data", str(tmp_path / "data.yaml"), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        assert {path.name for path in out.iterdir()} == {"report.json", "class_shares.png"}
        assert len(json.loads((out / "report.json").read_text())[0]["problems"]) == 3

    def test_an_interruption_ends_the_work(self, tmp_path, monkeypatch):
        make_set(tmp_path, 60)
        read = []

        def slow(self, index):
            read.append(index)
            time.sleep(0.05)
            return np.zeros((24, 32, 3), np.uint8)

        monkeypatch.setattr(FolderDataset, "read_image", slow)

        def stop(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            check_dataset(str(tmp_path / "data.yaml"), progress=stop)
        assert len(read) < 60


class TestSheet:
    def test_shows_images_and_skips_bad_ones(self, tmp_path):
        make_set(tmp_path, 8)
        (tmp_path / "images/train/001.png").write_bytes(b"")
        sheet = sample_sheet(open_dataset(str(tmp_path / "data.yaml")), count=8, columns=2)
        assert sheet.width == 2 * (2 * 240 + 4) + 16 + 40
        for image in (tmp_path / "images").rglob("*.*"):
            image.write_bytes(b"")
        assert sample_sheet(list_dataset(str(tmp_path / "data.yaml"))) is None
