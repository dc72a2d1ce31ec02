"""What a street scene is painted with: camera, light, canvas and noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, hypot

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

SKY, BUILDING, POLE, ROAD, PAVEMENT, TREE, SIGN, FENCE, CAR, PEDESTRIAN, BICYCLIST = range(11)
VOID = 255
FINE = 2  # canvas pixels per image pixel, so that reducing the canvas smooths every edge

Array = NDArray[np.float32]
Number = float | int  # whole metres and levels are written without a point
Point = tuple[Number, Number]
Tint = tuple[Number, Number, Number]
Bytes3 = tuple[int, int, int]


def random(seed: int, stream: int = 0) -> np.random.Generator:
    """The same stream of random numbers for the same seed, on every run and machine."""
    return np.random.Generator(np.random.PCG64([seed, stream]))


@dataclass(frozen=True)
class Camera:
    """Where the street is seen from. Across, up and along are in metres, pixels are the image's.

    The street bends away by `bend * along**2`, so that across is measured from its middle.
    """

    width: int
    height: int
    focal: Number
    vanish: Number
    horizon: Number
    eye: Number
    bend: Number

    def project(self, across: Number, up: Number, along: Number) -> Point:
        """The place of a point in the image."""
        along = max(along, 0.4)
        scale = self.focal / along
        x = self.vanish + scale * (across + self.bend * along * along)
        return x, self.horizon + scale * (self.eye - up)


@dataclass(frozen=True)
class Light:
    """Sun and sky: where the sun stands, what colour it gives, and how thick the air is."""

    sun: Tint  # unit vector towards it: right, up, forward
    strength: Number
    sun_tint: Tint
    sky_tint: Tint
    haze_tint: Tint
    haze: Number

    def on(self, normal: Tint) -> Tint:
        """The light that falls on a surface facing `normal`, per colour; about 1 in the open."""
        sx, sy, sz = self.sun
        facing = sx * normal[0] + sy * normal[1] + sz * normal[2]
        sun = 0.85 * self.strength * facing if facing > 0 else 0.0
        sky = (1.0 - 0.42 * self.strength) * (0.85 + 0.15 * normal[1])
        (r, g, b), (sr, sg, sb) = self.sky_tint, self.sun_tint
        return sky * r + sun * sr, sky * g + sun * sg, sky * b + sun * sb

    def seen(self, colour: Tint, along: Number, normal: Tint = (0, 0, -1)) -> Bytes3:
        """How a surface of this colour looks from `along` metres away."""
        clear = exp(-self.haze * along) if along > 0 else 1.0
        veil = 1 - clear
        (r, g, b), (hr, hg, hb) = self.on(normal), self.haze_tint
        red = int(clear * colour[0] * r + veil * hr)
        green = int(clear * colour[1] * g + veil * hg)
        blue = int(clear * colour[2] * b + veil * hb)
        return red if red < 255 else 255, green if green < 255 else 255, blue if blue < 255 else 255


class Canvas:
    """An image and its labels in one image of four bands, so that every stroke paints both.

    The fourth band holds the label; it must never be blended, so masks over it are all or nothing.
    """

    def __init__(self, camera: Camera, light: Light) -> None:
        self.camera, self.light = camera, light
        self.image = Image.new("RGBA", (FINE * camera.width, FINE * camera.height))
        self.pen = ImageDraw.Draw(self.image)

    def polygon(self, points: Sequence[Point], colour: Bytes3, label: int) -> None:
        """Fills an outline given in image pixels."""
        self.pen.polygon([(FINE * x, FINE * y) for x, y in points], fill=(*colour, label))

    def solid(
        self, points: Sequence[Tint], colour: Tint, label: int, normal: Tint = (0, 0, -1)
    ) -> None:
        """Fills an outline given in metres (across, up, along), lit and hazed."""
        project = self.camera.project
        tinted = self.light.seen(colour, points[0][2], normal)
        self.polygon([project(x, y, z) for x, y, z in points], tinted, label)

    def limb(self, start: Tint, end: Tint, width: Number, colour: Tint, label: int) -> None:
        """A round-ended stroke between two points in metres, `width` metres thick."""
        (x0, y0), (x1, y1) = self.camera.project(*start), self.camera.project(*end)
        half = max(0.35, 0.5 * width * self.camera.focal / max(start[2], 0.4))
        length = hypot(x1 - x0, y1 - y0) or 1.0
        dx, dy = (x1 - x0) / length * half, (y1 - y0) / length * half
        ends = [(x0 - dy, y0 + dx), (x1 - dy, y1 + dx), (x1 + dy, y1 - dx), (x0 + dy, y0 - dx)]
        tinted = self.light.seen(colour, start[2])
        self.polygon(ends, tinted, label)
        if half > 0.8:
            for x, y in ((x0, y0), (x1, y1)):
                self.disc(x, y, half, half, tinted, label)

    def disc(
        self,
        x: Number,
        y: Number,
        half_width: Number,
        half_height: Number,
        colour: Bytes3,
        label: int,
    ) -> None:
        """An upright ellipse given in image pixels."""
        left, top = FINE * (x - half_width), FINE * (y - half_height)
        box = (left, top, left + 2 * FINE * half_width, top + 2 * FINE * half_height)
        self.pen.ellipse(box, fill=(*colour, label))

    def relabel(self, corner: tuple[int, int], mask: Image.Image, label: int) -> None:
        """Labels the canvas pixels under `mask` without painting them."""
        left, top = corner
        part = self.image.crop((left, top, left + mask.width, top + mask.height))
        labels = part.getchannel("A")
        labels.paste(label, mask=mask)
        part.putalpha(labels)
        self.image.paste(part, corner)

    def relabel_outline(self, points: Sequence[Point], label: int) -> None:
        """Labels an outline given in image pixels without painting it."""
        left, top = (FINE * int(min(p[i] for p in points)) for i in (0, 1))
        right, bottom = (FINE * int(max(p[i] for p in points) + 1) for i in (0, 1))
        if right <= 0 or bottom <= 0 or left >= self.image.width or top >= self.image.height:
            return
        left, top = max(0, left), max(0, top)
        mask = Image.new(
            "L", (min(right, self.image.width) - left, min(bottom, self.image.height) - top)
        )
        outline = [(FINE * x - left, FINE * y - top) for x, y in points]
        ImageDraw.Draw(mask).polygon(outline, fill=255)
        self.relabel((left, top), mask, label)

    def wall(
        self,
        near: Point,
        far: Point,
        bottom: Number,
        top: Number,
        texture: Image.Image,
        label: int,
        *,
        see_through: bool = False,
    ) -> None:
        """A flat upright texture from `near` to `far` (across, along), in true perspective.

        A texture with a fourth channel lets what is behind show; the label then covers the
        opaque part, or the whole outline if `see_through`.
        """
        camera = self.camera
        focal, eye = FINE * camera.focal, camera.eye
        (xa, za), (xb, zb) = near, far
        xa, xb = xa + camera.bend * za * za, xb + camera.bend * zb * zb
        dx, dz = xb - xa, zb - za
        corners = []
        for z, x in ((za, xa), (zb, xb)):
            if z < 0.5:
                if abs(dz) < 1e-6:
                    return
                x, z = x + dx * (0.5 - z) / dz, 0.5
            corners += [(x * focal / z, (eye - up) * focal / z) for up in (bottom, top)]
        corners[2], corners[3] = corners[3], corners[2]
        middle, level = FINE * camera.vanish, FINE * camera.horizon
        outline = [(x + middle, y + level) for x, y in corners]
        left = max(0, int(min(x for x, _ in outline)))
        right = min(self.image.width, int(max(x for x, _ in outline)) + 1)
        upper = max(0, int(min(y for _, y in outline)))
        lower = min(self.image.height, int(max(y for _, y in outline)) + 1)
        origin = (left - middle) * dz - focal * dx
        if left >= right or upper >= lower or abs(origin) < 1e-6:
            return
        # texture column and row are both fractions over the same line in x: see Camera.project
        width, height = texture.size
        cross = xa * dz - za * dx
        down = height / (top - bottom)
        terms = (
            -width * za,
            0.0,
            width * (focal * xa - (left - middle) * za),
            down * (top - eye) * dz,
            down * cross,
            down * ((top - eye) * origin + (upper - level) * cross),
            dz,
        )
        drawn = texture.transform(
            (right - left, lower - upper),
            Image.Transform.PERSPECTIVE,
            (*(t / origin for t in terms), 0.0),
            resample=Image.Resampling.NEAREST,
        )
        self._paste(drawn, (left, upper), outline, label, see_through)

    def _paste(
        self,
        drawn: Image.Image,
        corner: tuple[int, int],
        outline: Sequence[Point],
        label: int,
        see_through: bool,
    ) -> None:
        """Paints and labels what lies inside an outline given in canvas pixels."""
        left, upper = corner
        mask = Image.new("L", drawn.size)
        ImageDraw.Draw(mask).polygon([(x - left, y - upper) for x, y in outline], fill=255)
        shown = mask
        if drawn.mode == "RGBA":
            opaque = drawn.getchannel("A")
            if not see_through:
                opaque = opaque.point([0] * 128 + [255] * 128)
            shown = Image.composite(opaque, Image.new("L", drawn.size), mask)
        drawn.putalpha(label)
        self.image.paste(drawn, corner, shown)
        if see_through:
            self.relabel(corner, mask, label)


@cache
def grain() -> Array:
    """Fine surface texture that tiles: mean 0, deviation about 1."""
    noise = random(1).standard_normal((512, 512)).astype(np.float32)
    soft = noise + np.roll(noise, 1, 0) + np.roll(noise, 1, 1) + np.roll(noise, (1, 1), (0, 1))
    mixed = noise + 0.7 * soft + 3.0 * (billows() - 0.5)
    return np.asarray((mixed - mixed.mean()) / mixed.std(), np.float32)


@cache
def billows() -> Array:
    """Cloud-like noise at every scale that tiles: from 0 to 1, mean about one half."""
    numbers, total = random(2), np.zeros((512, 512), np.float32)
    for octave in range(2, 9):
        cells = 2**octave
        coarse = numbers.random((cells, cells), np.float32)
        # three periods, so that the middle one meets itself at its edges
        tiled = Image.fromarray(np.tile(coarse, (3, 3)))
        box = (cells, cells, 2 * cells, 2 * cells)
        fine = tiled.resize((512, 512), Image.Resampling.BICUBIC, box=box)
        total += np.asarray(fine) * 0.55**octave
    ranks = (total - total.mean()) / (5.0 * total.std()) + 0.5
    return np.asarray(np.clip(ranks, 0, 1), np.float32)


def tile(texture: Array, shape: tuple[int, int], start: tuple[int, int], step: Number = 1) -> Array:
    """A patch of a tiling texture, `step` texels apart."""
    rows = (start[0] + np.arange(shape[0]) * step).astype(np.int64) % texture.shape[0]
    columns = (start[1] + np.arange(shape[1]) * step).astype(np.int64) % texture.shape[1]
    patch: Array = texture.take(rows, 0).take(columns, 1)
    return patch


@cache
def sheet(level: int) -> Image.Image:
    """A grey sheet of surface texture to multiply images with: 0 smooth, 1 medium, 2 rough."""
    fine, broad = grain(), billows() - 0.5
    soft = 0.5 * (fine + np.roll(fine, 1, 1))
    value = 1 + (0.02, 0.045, 0.075)[level] * soft + 0.45 * broad
    grey = np.clip(SHEET_MEAN * value, 0, 255).astype(np.uint8)
    return Image.fromarray(np.tile(grey, (2, 2))).convert("RGB")


SHEET_MEAN = 215


def rub(image: Image.Image, level: int, offset: tuple[int, int]) -> Image.Image:
    """The image with surface texture, on average as bright as before."""
    (width, height), (x, y) = image.size, offset
    if width > 512 or height > 512:
        x, y = 0, 0
    return ImageChops.multiply(image, sheet(level).crop((x, y, x + width, y + height)))
