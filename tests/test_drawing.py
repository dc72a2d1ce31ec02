"""Labels over images, legends, sheets, and files that are complete or not there."""

import numpy as np
import pytest
from PIL import Image

from paumer import drawing
from paumer.classes import CAMVID, paint
from paumer.data.images import read_image, read_labels


def entries(shares):
    return list(zip(CAMVID.names, shares, CAMVID.colours, strict=True))


def noise(height=24, width=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


class TestWriting:
    @pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".webp"])
    def test_what_is_written_can_be_read(self, tmp_path, suffix):
        file = tmp_path / "new" / f"a{suffix}"
        drawing.write_image(file, np.full((8, 9, 3), 77, np.uint8))
        assert np.abs(read_image(file).astype(int) - 77).max() <= 2
        assert [f.name for f in file.parent.iterdir()] == [file.name]

    def test_jpeg_takes_images_with_alpha(self, tmp_path):
        drawing.write_image(tmp_path / "a.jpg", Image.new("RGBA", (8, 8), (200, 100, 50, 0)))
        assert np.abs(read_image(tmp_path / "a.jpg").astype(int) - (200, 100, 50)).max() <= 3

    def test_a_failure_leaves_the_old_file(self, tmp_path, monkeypatch):
        file = tmp_path / "a.png"
        drawing.write_image(file, noise())
        before = file.read_bytes()

        def fail(*_):
            raise OSError("disk full")

        monkeypatch.setattr("os.replace", fail)
        with pytest.raises(OSError, match="disk full"):
            drawing.write_image(file, noise(seed=1))
        assert file.read_bytes() == before
        assert list(tmp_path.iterdir()) == [file]

    def test_other_suffixes_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r'a\.xyz.*"\.xyz".*\.png'):
            drawing.write_image(tmp_path / "a.xyz", noise())
        with pytest.raises(ValueError, match="from -1 to 0"):
            drawing.mask_image(np.array([[-1, 0]]), CAMVID)

    def test_a_mask_holds_ids_and_shows_colours(self, tmp_path):
        labels = np.random.default_rng(0).choice([*range(11), 255], (20, 30))
        drawing.write_image(tmp_path / "a.png", drawing.mask_image(labels, CAMVID))
        np.testing.assert_array_equal(read_labels(tmp_path / "a.png"), labels)
        shown = read_image(tmp_path / "a.png")
        np.testing.assert_array_equal(shown, paint(labels, CAMVID))


class TestLayout:
    def test_overlay_mixes(self):
        a, b = noise(seed=1), noise(seed=2)
        np.testing.assert_array_equal(drawing.overlay(a, b, 0.0), a)
        np.testing.assert_array_equal(drawing.overlay(a, b, 1.0), b)
        exact = 0.25 * b + 0.75 * a
        assert np.abs(drawing.overlay(a, b, 0.25) - exact).max() <= 0.501
        with pytest.raises(ValueError, match="32x24 over an image of 8x8"):
            drawing.overlay(noise(8, 8), b)
        with pytest.raises(ValueError, match="alpha 2"):
            drawing.overlay(a, b, 2.0)

    @pytest.mark.parametrize("width", [10, 500, 5000])
    def test_legend_shows_every_colour(self, width):
        black = np.zeros((10, width, 3), np.uint8)
        sheet = drawing.with_legend(black, entries([1 / 11] * 11))
        for colour in CAMVID.colours:
            assert (np.asarray(sheet) == colour).all(2).sum() > 100

    def test_with_legend_keeps_the_image(self):
        image, shares = noise(60, 400), [1.0] + [0.0] * 10
        sheet = np.asarray(drawing.with_legend(image, entries(shares)))
        assert sheet.shape[1] == 440
        np.testing.assert_array_equal(sheet[20:80, 20:420], image)
        narrow = drawing.with_legend(noise(10, 10), [("a rather long class name", 1.0, (1, 2, 3))])
        assert narrow.width > 150

    def test_contact_sheet_places_images_and_labels(self):
        green, pink = np.full((30, 40, 3), (0, 200, 0)), np.full((30, 40, 3), (255, 0, 200))
        pairs = [(green.astype(np.uint8), pink.astype(np.uint8))] * 5
        sheet = np.asarray(drawing.contact_sheet(pairs, columns=2, captions=["x" * 500] * 5))
        assert (sheet == (0, 200, 0)).all(2).sum() == 5 * 240 * 180
        assert (sheet == (255, 0, 200)).all(2).sum() == 5 * 240 * 180
        alone = drawing.contact_sheet([(noise(), None)])
        assert alone.width == 240 + 40
        with pytest.raises(ValueError, match="0 images"):
            drawing.contact_sheet([])

    def test_a_sheet_says_which_colour_is_which(self):
        labels = np.repeat([[0, 3, 255, 255]], 4, axis=0)
        entries = drawing.legend([labels, labels], CAMVID)
        sky, road = CAMVID.colours[0], CAMVID.colours[3]
        assert entries == [("sky", 0.25, sky), ("road", 0.25, road), ("(ignored)", 0.5, (0, 0, 0))]
        pair = (noise(), noise())
        plain, told = (drawing.contact_sheet([pair], 1, ["a"], e) for e in ((), entries))
        assert told.width == plain.width
        assert (np.asarray(told)[plain.height :] == road).all(2).sum() > 100


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
class TestNoPixels:
    def test_nothing_is_written(self, tmp_path, size):
        match = f"an image of {size[1]}x{size[0]}.*has no pixels"
        for suffix in ("png", "jpg", "webp"):
            with pytest.raises(ValueError, match=match):
                drawing.write_image(tmp_path / f"a.{suffix}", noise(*size))
        with pytest.raises(ValueError, match=match):
            drawing.write_image(tmp_path / "a.png", Image.new("RGB", size[::-1]))
        assert list(tmp_path.iterdir()) == []

    def test_nothing_is_drawn(self, size):
        match = f"an image of {size[1]}x{size[0]}.*has no pixels"
        with pytest.raises(ValueError, match=match):
            drawing.with_legend(noise(*size), [("a", 1.0, (1, 2, 3))])
        for pair in ((noise(*size), None), (noise(), noise(*size))):
            with pytest.raises(ValueError, match=match):
                drawing.contact_sheet([pair])
        with pytest.raises(ValueError, match=match):
            drawing.mask_image(np.zeros(size, np.int64), CAMVID)


def test_the_legend_grows_with_the_image_and_a_tiny_image_grows_for_it():
    names = [("road", 1.0, (1, 2, 3))]
    sheets = {
        width: drawing.with_legend(np.zeros((width * 3 // 4, width, 3), np.uint8), names)
        for width in (96, 480, 3840)
    }
    swatches = {
        width: (np.asarray(sheet) == (1, 2, 3)).all(2).any(0).sum()
        for width, sheet in sheets.items()
    }
    assert swatches[480] in (13, 14, 15)
    assert swatches[3840] == pytest.approx(8 * swatches[480], rel=0.1)
    black = (np.asarray(sheets[96]) == 0).all(2).any(0).sum()
    assert black == 2 * 96
    assert (np.asarray(sheets[480]) == 0).all(2).any(0).sum() == 480


def test_a_class_without_a_colour_has_a_hollow_swatch():
    sheet = np.asarray(drawing.with_legend(np.zeros((360, 480, 3), np.uint8), [("all", 1.0, None)]))
    left, middle = sheet[-33, 20], sheet[-33, 28]
    assert left.max() < 60
    assert middle.min() > 240


def test_the_colours_of_streets_are_bright_and_apart():
    colours = np.array(CAMVID.colours, float)
    assert colours.max(1).min() > 150
    distances = np.linalg.norm(colours[:, None] - colours, axis=-1)
    assert distances[~np.eye(len(colours), dtype=bool)].min() > 80
