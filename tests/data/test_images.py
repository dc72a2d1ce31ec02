"""Reading images and label masks: exact, upright, and never a crash."""

import os
import struct
import threading
import warnings
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile

from paumer.classes import CAMVID
from paumer.data.images import read_image, read_labels
from paumer.drawing import mask_image, write_image


def noise(height=24, width=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def png_header(width, height, depth=8, colour=2):
    """A PNG that claims a size and holds no pixels."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(b"\0" * 64))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b"")


def grey_png(values, depth):
    """A grey PNG of 2 or 4 bits, which Pillow does not write."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    bits = np.unpackbits(values[..., None].astype(np.uint8), axis=2)[..., 8 - depth :]
    rows = np.packbits(bits.reshape(values.shape[0], -1), axis=1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], depth, 0, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


class TestReadImage:
    @pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp", ".tif", ".ppm"])
    def test_lossless_files_come_back_exactly(self, tmp_path, suffix):
        image = noise()
        file = tmp_path / f"a{suffix}"
        Image.fromarray(image).save(file, **({"lossless": True} if suffix == ".webp" else {}))
        read = read_image(file)
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, image)

    def test_jpeg_comes_back_nearly(self, tmp_path):
        flat = np.full((16, 16, 3), (200, 100, 50), np.uint8)
        Image.fromarray(flat).save(tmp_path / "a.jpg", quality=95)
        assert np.abs(read_image(str(tmp_path / "a.jpg")).astype(int) - flat).max() <= 3

    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientation_is_applied(self, kind, orientation):
        # The upright image is red left of blue above green.
        upright = np.zeros((32, 48, 3), np.uint8)
        upright[:16, :24], upright[:16, 24:], upright[16:] = (255, 0, 0), (0, 0, 255), (0, 255, 0)
        undo = {
            1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1],
            4: lambda a: a[::-1], 5: lambda a: a.swapaxes(0, 1),
            6: lambda a: np.rot90(a), 7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
            8: lambda a: np.rot90(a, -1),
        }  # fmt: skip
        stored = Image.fromarray(np.ascontiguousarray(undo[orientation](upright)))
        exif = Image.Exif()
        exif[0x0112] = orientation
        options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
        options |= {"lossless": True} if kind == "WEBP" else {}
        file = BytesIO()
        stored.save(file, kind, exif=exif, **options)
        read = read_image(file.getvalue())
        assert read.shape == upright.shape
        assert np.abs(read.astype(int) - upright).max() <= 4

    def test_grey_palette_alpha_and_one_bit(self, tmp_path):
        grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
        Image.fromarray(grey).save(tmp_path / "grey.png")
        np.testing.assert_array_equal(read_image(tmp_path / "grey.png")[..., 1], grey)

        palette = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8))
        palette.putpalette([9, 8, 7, 6, 5, 4, 3, 2, 1])
        palette.save(tmp_path / "palette.png", transparency=b"\x00\x80\xff")
        expected = [[(9, 8, 7), (6, 5, 4)], [(3, 2, 1), (6, 5, 4)]]
        np.testing.assert_array_equal(read_image(tmp_path / "palette.png"), expected)

        colour = noise()
        alpha = np.zeros((24, 32, 1), np.uint8)
        Image.fromarray(np.concatenate([colour, alpha], 2)).save(tmp_path / "alpha.png")
        np.testing.assert_array_equal(read_image(tmp_path / "alpha.png"), colour)

        bits = Image.fromarray(grey > 99)
        bits.save(tmp_path / "bits.png")
        np.testing.assert_array_equal(read_image(tmp_path / "bits.png")[..., 0] > 0, grey > 99)

    def test_sixteen_bits_scale_to_eight(self, tmp_path):
        values = np.array([[0, 128, 129, 257], [32896, 65406, 65407, 65535]], np.uint16)
        for suffix in (".png", ".tif"):
            Image.fromarray(values).save(tmp_path / f"deep{suffix}")
            read = read_image(tmp_path / f"deep{suffix}")
            np.testing.assert_array_equal(read[..., 2], [[0, 0, 1, 1], [128, 254, 255, 255]])

    def test_cmyk_is_not_inverted(self, tmp_path):
        Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
        red, green, blue = read_image(tmp_path / "a.jpg")[8, 8]
        assert red > 250
        assert max(green, blue) < 5

    def test_first_frame_of_a_moving_image(self, tmp_path):
        frames = [Image.new("RGB", (8, 8), c) for c in ("red", "lime")]
        for suffix in (".gif", ".webp", ".png"):
            options = {"lossless": True} if suffix == ".webp" else {}
            file = tmp_path / f"a{suffix}"
            frames[0].save(file, save_all=True, append_images=frames[1:], **options)
            assert tuple(read_image(file)[4, 4]) == (255, 0, 0)

    @pytest.mark.parametrize("size", [(0, 5), (5, 0)])
    def test_a_header_without_pixels_is_refused(self, size):
        for data in (png_header(*size), b"P6 %d %d 255\n" % size, b"P5 %d %d 65535\n" % size):
            for read in (read_image, read_labels):
                with pytest.raises(ValueError, match=r"given bytes.*header is damaged"):
                    read(data)

    def test_what_a_damaged_header_holds_is_not_repeated_in_full(self):
        tags = {256: (3, 8), 257: (3, 8), 259: (7, 3000)}  # Of the last, the compression, many.
        entries = [
            struct.pack("<HHII", tag, kind, 1 if kind == 3 else value, 50 if kind == 7 else value)
            for tag, (kind, value) in tags.items()
        ]
        head = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + b"".join(entries)
        with pytest.raises(ValueError, match="header is damaged") as caught:
            read_image(head.ljust(50, b"\0") + b"\5" * 3000)
        assert len(str(caught.value)) < 400

    def test_values_of_unknown_range_are_refused(self, tmp_path):
        Image.fromarray(np.array([[0, 100_000]], np.int32)).save(tmp_path / "i.tif")
        Image.fromarray(np.array([[0, 0.5]], np.float32)).save(tmp_path / "f.tif")
        with pytest.raises(ValueError, match=r"i\.tif.*100000.*8 or 16 bits"):
            read_image(tmp_path / "i.tif")
        with pytest.raises(ValueError, match=r"f\.tif.*fractions"):
            read_image(tmp_path / "f.tif")

    def test_missing_empty_and_foreign_files(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"nowhere\.png"):
            read_image(tmp_path / "nowhere.png")
        (tmp_path / "empty.png").touch()
        with pytest.raises(ValueError, match=r"empty\.png.*empty"):
            read_image(tmp_path / "empty.png")
        (tmp_path / "text.jpg").write_text("no image at all")
        with pytest.raises(ValueError, match=r"text\.jpg.*not an image of a known kind"):
            read_image(tmp_path / "text.jpg")
        with pytest.raises(ValueError, match="cannot read"):
            read_image(tmp_path)

    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
    def test_cut_or_scribbled_files_never_crash(self, kind):
        whole = BytesIO()
        Image.fromarray(noise(64, 64)).save(whole, kind)
        data, rng = whole.getvalue(), np.random.default_rng(1)
        with pytest.raises(ValueError, match="given bytes"):
            read_image(data[: len(data) // 2])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(60):
                bad = np.frombuffer(data, np.uint8).copy()
                bad[rng.integers(0, min(len(bad), 400), 6)] = rng.integers(0, 256, 6)
                try:
                    assert read_image(bad.tobytes()).ndim == 3
                except ValueError as error:
                    assert "given bytes" in str(error)  # noqa: PT017

    def test_too_many_pixels_are_refused_by_the_header(self):
        for width, height in ((8192, 8192 * 2 + 1), (60_000, 60_000)):
            with pytest.raises(ValueError, match=f"given bytes.*{width}x{height}.*134,217,728"):
                read_image(png_header(width, height))

    def test_a_bomb_is_refused_before_it_is_decoded(self):
        file = BytesIO()
        Image.new("1", (12_000, 10_000)).save(file, "PNG")
        with pytest.raises(ValueError, match=r"given bytes.*12000x10000.*decompression bomb"):
            read_image(file.getvalue())
        with pytest.raises(ValueError, match="damaged header"):
            read_image(png_header(5000, 5000))

    def test_a_large_even_image_is_no_bomb(self):
        file = BytesIO()
        Image.new("RGB", (3000, 2000), (200, 210, 220)).save(file, "PNG")
        assert read_image(file.getvalue()).shape == (2000, 3000, 3)

    def test_a_large_image_within_the_limit_gives_no_warning(self):
        file = BytesIO()
        Image.new("1", (12_000, 10_000)).save(file, "PNG")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert read_labels(file.getvalue()).shape == (10_000, 12_000)

    def test_pillow_keeps_its_settings(self, tmp_path):
        before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)
        Image.fromarray(noise()).save(tmp_path / "a.png")
        threads = [threading.Thread(target=read_image, args=(tmp_path / "a.png",)) for _ in
                   range(8)]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(ValueError, match="pixels"):
            read_image(png_header(60_000, 60_000))
        after = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)
        assert after == before


class TestReadLabels:
    def test_palette_and_grey_give_their_indices(self, tmp_path):
        ids = np.array([[0, 1, 2], [11, 254, 255]], np.uint8)
        Image.fromarray(ids).save(tmp_path / "grey.png")
        write_image(tmp_path / "palette.png", mask_image(ids, CAMVID))
        small = Image.fromarray(ids % 3)
        small.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        small.save(tmp_path / "small.png", bits=2)
        for name, expected in (("grey", ids), ("palette", ids), ("small", ids % 3)):
            read = read_labels(tmp_path / f"{name}.png")
            assert read.dtype == np.uint8
            np.testing.assert_array_equal(read, expected)

    @pytest.mark.parametrize("depth", [2, 4])
    def test_few_bits_are_not_stretched(self, depth):
        ids = np.arange(2**depth).reshape(2, -1)
        np.testing.assert_array_equal(read_labels(grey_png(ids, depth)), ids)

    def test_one_bit(self, tmp_path):
        ids = np.array([[True, False, True]])
        Image.fromarray(ids).save(tmp_path / "a.png")
        np.testing.assert_array_equal(read_labels(tmp_path / "a.png"), [[1, 0, 1]])

    def test_wide_ids_are_kept(self, tmp_path):
        ids = np.array([[0, 300], [26_001, 65_535]], np.uint16)
        Image.fromarray(ids).save(tmp_path / "a.png")
        Image.fromarray(ids.astype(np.int32) * 1000).save(tmp_path / "a.tif")
        assert read_labels(tmp_path / "a.png").dtype == np.int32
        np.testing.assert_array_equal(read_labels(tmp_path / "a.png"), ids)
        np.testing.assert_array_equal(read_labels(tmp_path / "a.tif"), ids * np.int64(1000))

    def test_rgb_masks_only_when_asked_for(self, tmp_path):
        colours = noise()
        Image.fromarray(colours).save(tmp_path / "a.png")
        np.testing.assert_array_equal(read_labels(tmp_path / "a.png", rgb=True), colours)
        with pytest.raises(ValueError, match=r"a\.png.*RGB.*rgb_masks"):
            read_labels(tmp_path / "a.png")

    def test_ids_in_three_equal_channels(self, tmp_path):
        ids = noise()[..., 0]
        for name, channels in (("rgb", [ids] * 3), ("rgba", [*[ids] * 3, ids // 2])):
            Image.fromarray(np.stack(channels, 2)).save(tmp_path / f"{name}.png")
            np.testing.assert_array_equal(read_labels(tmp_path / f"{name}.png"), ids)

    def test_jpeg_is_refused(self, tmp_path):
        Image.fromarray(noise()[..., 0]).save(tmp_path / "a.jpg")
        with pytest.raises(ValueError, match=r"a\.jpg.*JPEG.*PNG"):
            read_labels(tmp_path / "a.jpg")


def tiff(tags, order="<", tail=b""):
    """A TIFF file of one directory: tags as (tag, type, count, value)."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entries = b"".join(struct.pack(order + "HHII", *tag) for tag in sorted(tags))
    head = mark + struct.pack(order + "IH", 8, len(tags))
    return head + entries + struct.pack(order + "I", 0) + tail


def plain_tags(width, height, strips=1):
    """Tags of a grey image whose strips lie at the end of the file."""
    return [
        (256, 4, 1, width), (257, 4, 1, height), (258, 4, 1, 8), (259, 4, 1, 1), (262, 4, 1, 1),
        (273, 4, strips, 200), (277, 4, 1, 1), (278, 4, 1, height),
        (279, 4, strips, width * height),
    ]  # fmt: skip


def test_a_plain_tiff_passes_its_check():
    content = tiff(plain_tags(4, 4)).ljust(200, b"\0") + bytes(range(16))
    assert read_image(content)[..., 0].ravel().tolist() == list(range(16))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([(322, 4, 1, 32768), (323, 4, 1, 65520), (324, 4, 1, 200)], "tiles are 32768x65520"),
        ([(324, 4, 2000, 8)], "2,000 tiles"),
        ([(700, 1, 2**31, 8)], "its tags need"),
        ([(50_000 + tag, 1, 9_000, 8) for tag in range(40)], "its tags need"),
    ],
)
def test_a_lying_tiff_is_refused_before_memory_is_taken(more, words, order):
    content = tiff([*plain_tags(4, 4), *more], order).ljust(10_000, b"\0")
    with pytest.raises(ValueError, match=words):
        read_image(content)


def test_a_jpeg_of_thousands_of_scans_is_refused():
    out = BytesIO()
    Image.fromarray(noise()).save(out, "JPEG", progressive=True)
    head, mark, scan = out.getvalue()[:-2].rpartition(b"\xff\xda")
    assert read_image(head + mark + scan + b"\xff\xd9").shape == (24, 32, 3)
    with pytest.raises(ValueError, match="more than 100 scans"):
        read_image(head + (mark + scan) * 3000 + b"\xff\xd9")


def test_a_tiff_of_more_strips_than_rows_is_refused():
    content = tiff(plain_tags(64, 64, strips=1000)).ljust(20_000, b"\0")
    with pytest.raises(ValueError, match="1,000 strips, more than its image can have"):
        read_image(content)


@pytest.mark.parametrize(
    ("width", "height", "words"),
    [
        (70_000, 20, "70000x20 has a side above 65,536"),
        (1, 9_000_000, "1x9000000 counts as 144,000,000 pixels"),
    ],
)
def test_thin_images_are_refused_by_their_header(width, height, words):
    with pytest.raises(ValueError, match=words):
        read_image(png_header(width, height))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.parametrize("read", [read_image, read_labels])
def test_what_is_not_a_file_is_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "a.png")
    for path in (tmp_path / "a.png", tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match=r"it is not a file|Is a directory"):
            read(path)
