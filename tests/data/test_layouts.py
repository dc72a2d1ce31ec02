import numpy as np
import pytest
import yaml
from PIL import Image

from paumer.classes import distinct_colours
from paumer.data.datasets import available_splits, list_dataset, open_dataset

LONG = "x" * 10**4
RGB = {"rgb_masks": True, "classes": {"a": [1, 1, 1]}}


@pytest.fixture
def own(tmp_path):
    """A function that writes a data.yaml, with changes, beside two images with masks."""
    for name in ("a", "deep/b"):
        touch(tmp_path / f"images/train/{name}.jpg", 3)
        touch(tmp_path / f"masks/train/{name}.png")

    def give(text=None, **changes):
        plan = {
            "train": {"images": "images/train", "masks": "masks/train"},
            "classes": ["sky", "road"],
        }
        plan = {key: value for key, value in (plan | changes).items() if value is not None}
        (tmp_path / "data.yaml").write_text(text or yaml.safe_dump(plan))
        return str(tmp_path / "data.yaml")

    return give


def touch(path, channels=1, values=(0, 1)):
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.resize(np.array(values), (4, 6)).astype(np.uint8)
    Image.fromarray(ids if channels == 1 else np.stack([ids] * 3, 2)).save(path)


class TestPairs:
    def test_folders_are_mirrored_whatever_the_suffix(self, own, tmp_path):
        data = open_dataset(own())
        assert [s.name for s in data] == ["a", "deep/b"]
        assert data.class_set.names == ("sky", "road")
        assert data.class_set.colours == distinct_colours(2)
        assert data.files(1) == (
            tmp_path / "images/train/deep/b.jpg", tmp_path / "masks/train/deep/b.png",
        )  # fmt: skip
        assert data.name == tmp_path.name
        assert len(open_dataset(str(tmp_path))) == 2  # the folder of a data.yaml will do

    def test_the_root_is_relative_to_the_file(self, own, tmp_path):
        own()
        plan = {"path": "..", "train": {"images": "images/train", "masks": "masks/train"},
                "classes": ["sky", "road"]}  # fmt: skip
        (tmp_path / "plans").mkdir()
        (tmp_path / "plans/mine.yaml").write_text(yaml.safe_dump(plan))
        assert len(open_dataset(str(tmp_path / "plans/mine.yaml"))) == 2

    def test_globs(self, own, tmp_path):
        train = {"images": "images/train/**/*.jpg", "masks": "masks/train/**/*.png"}
        assert [s.name for s in open_dataset(own(train=train))] == ["a", "deep/b"]
        train["images"] = str(tmp_path / "images/**/[ab].jp?")
        train["masks"] = "masks/**/[ab].png"
        assert [s.name for s in open_dataset(own(train=train))] == ["train/a", "train/deep/b"]
        train = {"images": "images/train/*.jpg", "masks": "masks/train/**/*.png"}
        assert [p.kind for p in list_dataset(own(train=train)).problems] == ["missing image"]
        train["images"] = "images/train/*.gif"
        with pytest.raises(ValueError, match=r'matches "\*\.gif" \(train\.images'):
            open_dataset(own(train=train))

    @pytest.mark.parametrize("ending", ["_mask", "_labels", "_gt"])
    def test_masks_may_be_marked(self, own, tmp_path, ending):
        mask = tmp_path / "masks/train/a.png"
        mask.rename(mask.with_name(f"a{ending}.png"))
        data = open_dataset(own())
        assert [s.name for s in data] == ["a", "deep/b"]
        assert data.files(0)[1].name == f"a{ending}.png"

    def test_an_unclear_mark_is_an_error_that_names_both(self, own, tmp_path):
        mask = tmp_path / "masks/train/a.png"
        touch(mask.with_name("a_gt.png"))
        assert len(list_dataset(own()).problems) == 1  # the exact name wins, a_gt has no image
        mask.rename(mask.with_name("a_mask.png"))
        with pytest.raises(ValueError, match=r"a_mask\.png.*a_gt\.png.*same name"):
            open_dataset(own())

    def test_a_marked_mask_belongs_to_one_image(self, own, tmp_path):
        touch(tmp_path / "images/train/a_mask.png", 3)
        mask = tmp_path / "masks/train/a.png"
        mask.rename(mask.with_name("a_mask.png"))
        listed = list_dataset(own())
        assert [(p.kind, p.file) for p in listed.problems] == [
            ("missing mask", str(tmp_path / "images/train/a.jpg"))
        ]
        assert [s.name for s in listed] == ["a_mask", "deep/b"]

    def test_one_folder_for_both(self, own, tmp_path):
        for name in "xy":
            touch(tmp_path / f"all/{name}.png", 3)
            touch(tmp_path / f"all/{name}_mask.png")
        train = {"images": "all/*.png", "masks": "all/*_mask.png"}
        assert [s.name for s in open_dataset(own(train=train))] == ["x", "y"]
        with pytest.raises(ValueError, match="same files"):
            open_dataset(own(train={"images": "all", "masks": "all"}))

    def test_duplicates_are_named(self, own, tmp_path):
        touch(tmp_path / "images/train/a.png", 3)
        with pytest.raises(ValueError, match=r"train/a\.jpg.*train/a\.png.*same name"):
            open_dataset(own())

    def test_other_files_are_skipped(self, own, tmp_path):
        (tmp_path / "images/train/notes.txt").write_text("sunny")
        (tmp_path / "images/train/._a.jpg").write_text("left by a file manager")
        assert len(open_dataset(own())) == 2

    def test_missing_folders(self, own):
        train = {"images": "image/train", "masks": "masks/train"}
        with pytest.raises(ValueError, match=r'image/train.*train\.images.*did you mean "images"'):
            open_dataset(own(train=train))
        with pytest.raises(ValueError, match=r'"\S*/elsewhere" is missing'):
            open_dataset(own(path="elsewhere"))
        with pytest.raises(ValueError, match=r'"\S*/elsewhere" is missing'):
            open_dataset(own(path="elsewhere", train={"images": "*.jpg", "masks": "*.png"}))


class TestValues:
    def test_map_and_ignore(self, own, tmp_path):
        touch(tmp_path / "masks/train/a.png", values=(7, 8, 9, 0))
        data = open_dataset(own(map={7: 0, 8: "road"}, ignore=[0, 9]))
        assert np.unique(data[0].labels).tolist() == [0, 1, 255]
        assert data[0].labels[0, :4].tolist() == [0, 1, 255, 255]
        with pytest.raises(ValueError, match=r"a\.png.*9 \(6 pixels\)"):
            open_dataset(own(map={7: 0, 8: 1}, ignore=[0]))[0]

    def test_255_is_ignored_unless_said_otherwise(self, own, tmp_path):
        touch(tmp_path / "masks/train/a.png", values=(0, 255))
        assert open_dataset(own())[0].labels[0, :2].tolist() == [0, 255]
        with pytest.raises(ValueError, match=r"255 \(12 pixels\)"):
            open_dataset(own(ignore=[]))[0]
        assert open_dataset(own(map={0: 0, 255: 1}))[0].labels[0, :2].tolist() == [0, 1]

    def test_colour_masks(self, own, tmp_path):
        red, blue, black = (200, 0, 0), (0, 0, 200), (0, 0, 0)
        for name in ("a", "deep/b"):
            pixels = np.array([[red, blue, black]], np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"masks/train/{name}.png")
            Image.fromarray(pixels).save(tmp_path / f"images/train/{name}.jpg")
        classes = {"sky": [0, 0, 200], "road": [200, 0, 0]}
        spec = own(text=f"{yaml.safe_dump({'classes': classes}, sort_keys=False)}"
                        "train: {images: images/train, masks: masks/train}\n"
                        "rgb_masks: true\nignore: [[0, 0, 0]]\n")  # fmt: skip
        data = open_dataset(spec)
        assert data.class_set.names == ("sky", "road")
        assert data.class_set.colours == (blue, red)
        assert data[0].labels.tolist() == [[1, 0, 255]]
        spec = own(classes=classes, rgb_masks=True)
        with pytest.raises(ValueError, match=r"a\.png.*colours.*\(0, 0, 0\) \(1 pixels\)"):
            open_dataset(spec)[0]


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"class": ["x"]}, r'"class" is unknown \(did you mean "classes"'),
            ({"classes": None}, "classes is None.*list of names"),
            ({"classes": []}, "0 classes.*1 to 255"),
            ({"classes": ["sky", False]}, "class 1 is called False.*quotes"),
            ({"classes": ["sky", "sky"]}, 'two classes are called "sky"'),
            ({"classes": ["a", {"name": "b"}]}, "class 1 is called {'name': 'b'}"),
            ({"classes": {"sky": [0, 0, 1], 1: "road"}}, "class 1 is called 1"),
            ({"classes": {"sky": [0, 0, 300]}}, r'class "sky" is \[0, 0, 300\].*0 to 255'),
            ({"map": [1, 2]}, r"map is \[1, 2\].*\{7: 0, 8: 1\}"),
            ({"map": {}, "ignore": []}, r"map is \{\}.*\{7: 0, 8: 1\}"),
            ({"map": {7: 2}}, "7: 2.*0 to 1 or its name"),
            ({"map": {7: "rood"}}, "7: 'rood'"),
            ({"map": {"x": 0}}, "'x': 0"),
            ({"ignore": 255}, r"ignore is 255.*as in \[255\]"),
            ({"ignore": [1]}, r"ids \[1\] are ignored and also"),
            ({"rgb_masks": "yes"}, "rgb_masks is 'yes'.*true or false"),
            ({"rgb_masks": True}, r"every class needs a colour, as in \{sky: \[128"),
            (RGB | {"classes": {"a": [0, 0, 0], "b": [0, 0, 0]}}, '"a" and "b"'),
            (RGB | {"map": {1: 0}}, "map is for masks"),
            (RGB | {"ignore": 0}, r"as in \[\[0, 0, 0\]\]"),
            (RGB | {"ignore": [[1, 1, 1]]}, "also stand for"),
            ({"train": ["images"]}, r"train is \['images'\].*must name its folders"),
            ({"train": "images/train"}, r'labels/train" \(train\.labels'),
            ({"train": {"images": "images/train"}}, "train is .*one of masks, labels and coco"),
            ({"train": {"images": "images", "mask": "x"}}, r'mask" is unknown \(did you mean'),
            ({"train": {"images": "x", "masks": "x", "coco": "x"}}, "train is .*one of masks"),
            ({"train": {"masks": "x"}}, "train has masks, and images are missing"),
            ({"train": {"hf": "x", "images": "x"}}, r"train\.images does not go with train\.hf"),
            ({"train": {"images": "a/{x}", "masks": "x"}}, r"has \{x\}.*knows \{stem\}"),
            ({"classes": None, "names": 3}, "names is 3.*list of names"),
            ({"names": ["a"]}, "classes and names are both given"),
            ({"classes": None, "names": {"a": 0}}, 'colour of class "a" is 0'),
            ({"nc": 3}, "nc is 3, and there are 2 names"),
            ({"background": "road"}, "background is for labels that are outlines"),
            ({"ignore": ["rood"]}, """ignore names 'rood'.*did you mean "road\""""),
            ({"ignore": ["sky", "road"]}, "0 classes.*1 to 255"),
            ({"map": {"sky": 2.5}}, "map of the class 'sky' is 2.5"),
            ({"map": {"sky": "road", "road": "way"}}, "into another class"),
            ({"train": None, "val": {}}, 'no "train" split: it has val'),
            ({"path": 3}, "path is 3"),
            ({"path": "~nobody-of-that-name"}, "home directory"),
            ({"map": {2**63: 0}}, r"map says 9223372036854775808: 0"),
            ({"map": {-(2**64): 0}}, r"map says -18446744073709551616: 0"),
            ({"ignore": [2**64]}, r"ignore is \[18446744073709551616\]"),
            ({"classes": LONG}, "classes is 'xxx.*xxx'.*list of names"),
            ({"classes": [LONG]}, "class 0 is called 'xxx"),
            ({"classes": [[[LONG] * 9] * 9]}, r"class 0 is called \[\['xxx"),
            ({"classes": {"a": [LONG] * 3}}, r"the colour of class \"a\" is \['xxx"),
            ({LONG: 1}, '"xxx.*xxx" is unknown'),
            ({"train": {"images": LONG, "masks": "x"}}, "train.images is 'xxx"),
            ({"path": LONG}, "path is 'xxx"),
            ({"map": {LONG: LONG}}, "map says 'xxx.*xxx': 'xxx"),
            ({"map": {1: 0, 2: 0}, "ignore": list(range(9999))}, r"ids \[1, 2\] are ignored"),
        ],
    )  # fmt: skip
    def test_each_says_what_was_given(self, own, changes, match):
        with pytest.raises(ValueError, match=match) as error:
            open_dataset(own(**changes))
        assert "data.yaml" in str(error.value)
        assert len(str(error.value)) < 1000

    def test_text_that_is_no_description(self, own):
        with pytest.raises(ValueError, match=r"data\.yaml.*not valid YAML.*line 2"):
            open_dataset(own(text="classes: [a,\n: :"))
        with pytest.raises(ValueError, match=r'not valid YAML.*line 2, "map" is written twice'):
            open_dataset(own(text="map: {1: 0}\nmap: {2: 0}"))
        with pytest.raises(ValueError, match="holds no description"):
            open_dataset(own(text="just a sentence"))

    def test_hostile_text_is_refused_soon(self, own):
        lists = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
        for text, match in (
            ("classes: " + "[" * 50_000, "more than 50 levels"),
            (f"classes:\n- &a0 [x]\n{lists}", "more than 100000 entries"),
            (f"classes: [a]\ntrain: [&a {LONG}{', *a' * 9999}]", r"train is \['xxx"),
            ("#" * (2**24 + 1), "at most 16777216 bytes"),
        ):
            with pytest.raises(ValueError, match=rf"data\.yaml.*{match}"):
                open_dataset(own(text=text))

    def test_splits(self, own):
        part = {"images": "images/train", "masks": "masks/train"}
        spec = own(val=part)
        assert available_splits(spec) == ("train", "val")
        assert len(open_dataset(spec, "val")) == 2
        with pytest.raises(ValueError, match='no "test" split: it has train, val'):
            open_dataset(spec, "test")
