"""What lies behind and before a street scene: sky, ground, and the camera's own marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from paumer.scenes.canvas import (
    FINE,
    PAVEMENT,
    ROAD,
    SKY,
    TREE,
    Array,
    Camera,
    Canvas,
    Number,
    Point,
    Tint,
    billows,
    grain,
    random,
    tile,
)


@dataclass(frozen=True)
class Weather:
    """The day: sky colours, clouds, and whether the road is wet."""

    zenith: Tint
    cover: Number
    cloud: Tint
    cloud_shade: Tint
    offset: tuple[int, int]
    wet: Number


@dataclass(frozen=True)
class Ground:
    """The street from above, across in metres from the camera and along from it."""

    road: Point
    pavement: Point
    junction: Point | None
    grass: tuple[bool, bool]
    road_tint: Tint
    pavement_tint: Tint
    yard_tint: Tint
    slab: Number
    roughness: Number
    offset: tuple[int, int]
    patches: tuple[tuple[Number, Number, Number, Number, Number], ...]


Outline = Sequence[Point]


def draw_sky(canvas: Canvas, weather: Weather) -> None:
    """Fills the image down to the horizon with sky and clouds."""
    camera, light = canvas.camera, canvas.light
    rows = max(2, min(camera.height, int(camera.horizon) + 2))
    # clouds are soft: half the resolution shows all there is
    down = np.arange(0.5, rows, 2, dtype=np.float32)[:, None]
    right = np.arange(0.5, camera.width, 2, dtype=np.float32)[None]
    rise = np.maximum(camera.horizon - down, 0) / camera.focal
    run = (right - camera.vanish) / camera.focal
    flat = 90 / (rise + 0.12)
    y = (flat + weather.offset[0]).astype(np.int32) & 511
    x = (flat * run + weather.offset[1]).astype(np.int32) & 511
    field = billows().ravel()
    puff = field.take(y * 512 + x)
    # clouds are darker where the field is thicker towards the sun
    sunward = (x - (14 if light.sun[0] > 0 else -14)) & 511
    bright = np.clip(0.55 + 1.6 * (puff - field.take(((y + 14) & 511) * 512 + sunward)), 0, 1)
    cloud = np.clip((puff - (1 - weather.cover)) * 3.5, 0, 1) * np.clip(rise * 12, 0.15, 1)
    haze, zenith, shade, pale = (
        np.asarray(tint, np.float32)
        for tint in (light.haze_tint, weather.zenith, weather.cloud_shade, weather.cloud)
    )
    blue = haze + (zenith - haze) * (np.clip(rise / 0.55, 0, 1)[..., None] ** 0.7)
    sky = shade + (pale - shade) * bright[..., None]
    sky = blue + (sky - blue) * cloud[..., None]
    if light.sun[2] > 0:
        glow = np.exp(-((run - light.sun[0]) ** 2) * 2.5 - rise**2)
        sky += (45 * light.strength * light.sun[2] * glow)[..., None]
    small = Image.fromarray(np.clip(sky, 0, 255).astype(np.uint8))
    full = small.resize((camera.width, rows), Image.Resampling.BILINEAR)
    full.putalpha(SKY)
    canvas.image.paste(_enlarge(full), (0, 0))


def _enlarge(picture: Image.Image) -> Image.Image:
    size = (FINE * picture.width, FINE * picture.height)
    return picture.resize(size, Image.Resampling.NEAREST)


def _mask(camera: Camera, top: int, outlines: Sequence[Outline], fine: int, blur: Number) -> Array:
    """Coverage of flat outlines (across, along) on the ground, from 0 to 1."""
    mask = Image.new("L", (fine * camera.width, fine * (camera.height - top)))
    pen = ImageDraw.Draw(mask)
    for outline in outlines:
        spots = (camera.project(across, 0, along) for across, along in outline)
        pen.polygon([(fine * x, fine * (y - top)) for x, y in spots], fill=255)
    small = mask.reduce(fine) if fine > 1 else mask
    if blur:
        small = small.filter(ImageFilter.BoxBlur(blur))
    return np.asarray(small, np.float32) * np.float32(1 / 255)


def draw_ground(
    canvas: Canvas,
    ground: Ground,
    white: Sequence[Outline],
    yellow: Sequence[Outline],
    shadows: Sequence[Outline],
    dark: Sequence[Outline],
) -> None:
    """Road, pavements and yards with their paint; sun does not reach `shadows`, nor sky `dark`."""
    camera, light = canvas.camera, canvas.light
    top = max(0, int(camera.horizon) + 1)
    rows = np.arange(top, camera.height, dtype=np.float32)[:, None] + 0.5
    along = np.minimum(camera.eye * camera.focal / (rows - camera.horizon), 400.0)
    across = np.arange(camera.width, dtype=np.float32)[None] + 0.5 - camera.vanish
    across = across * (along / camera.focal) - camera.bend * along * along
    zone = _zones(ground, across, along)
    lit = np.asarray(light.on((0, 1, 0)), np.float32)
    kerb = tuple(min(255.0, 1.15 * c) for c in ground.pavement_tint)
    tints = (ground.road_tint, ground.pavement_tint, ground.yard_tint, (92, 104, 58), kerb)
    colour = (np.asarray(tints, np.float32) * lit).take(zone, 0)
    for mask, tint in ((white, (222.0, 220.0, 214.0)), (yellow, (205.0, 165.0, 60.0))):
        if mask:
            cover = _mask(camera, top, mask, FINE, 0)
            painted = np.nonzero(cover)
            worn = cover[painted] * (0.78 + 0.1 * grain()[painted[0] & 511, painted[1] & 511])
            before = colour[painted]
            target = np.asarray(tint, np.float32) * lit
            colour[painted] = before + (target - before) * worn[:, None]
    bright = _surface(ground, camera, zone, across, along)
    scale = camera.width / 384
    shaded = 0.95 * light.on((-light.sun[0], 0, -light.sun[2]))[1] / float(lit[1])
    if shadows:
        bright *= 1 - (1 - shaded) * _mask(camera, top, shadows, 1, scale)
    if dark:
        bright *= 1 - 0.62 * _mask(camera, top, dark, 1, 1.4 * scale)
    clear = np.exp(-light.haze * along)
    bright *= clear
    colour *= bright[..., None]
    colour += (np.asarray(light.haze_tint, np.float32) * (1 - clear))[:, None]
    painted_ground = np.empty((*zone.shape, 4), np.uint8)
    painted_ground[..., :3] = np.minimum(colour, 255, out=colour)
    labels = np.array([ROAD, PAVEMENT, PAVEMENT, TREE, PAVEMENT], np.uint8)
    painted_ground[..., 3] = labels.take(zone)
    canvas.image.paste(_enlarge(Image.fromarray(painted_ground)), (0, FINE * top))


def _zones(ground: Ground, across: Array, along: Array) -> NDArray[np.intp]:
    """0 road, 1 pavement, 2 paved yard, 3 grass, 4 kerb."""
    (left, right), (outer_left, outer_right) = ground.road, ground.pavement
    yards = [3 if grass else 2 for grass in ground.grass]
    order = np.array([yards[0], 1, 4, 0, 4, 1, yards[1]])
    edges = (outer_left, left - 0.16, left, right, right + 0.16, outer_right)
    band = np.zeros(across.shape, np.int8)
    for edge in edges:
        band += across > edge
    zone = order.take(band)
    if ground.junction is not None:
        crossing = (along > ground.junction[0]) & (along < ground.junction[1])
        zone[crossing[:, 0]] = 0
    return zone


def _surface(
    ground: Ground, camera: Camera, zone: NDArray[np.intp], across: Array, along: Array
) -> Array:
    """Brightness of the ground's own texture: grit, stains, repairs, joints of slabs."""
    start, coarse = ground.offset, billows()
    pixel = along / camera.focal
    stride = along * pixel / camera.eye  # metres of street per image row
    fade = np.clip(0.05 / (0.3 * stride + pixel), 0.12, 1) * ground.roughness
    down, right = (along * 48).astype(np.int32), (across * 48).astype(np.int32)
    fine = ((down + start[0]) & 511) * 512 + ((right + start[1]) & 511)
    broad = (((down >> 2) + start[1]) & 511) * 512 + (((right >> 1) + start[0]) & 511)
    rough = np.array([0.055, 0.045, 0.06, 0.2, 0.04], np.float32).take(zone)
    value = grain().ravel().take(fine) * rough
    value *= fade
    value += (0.5 * ground.roughness) * coarse.ravel().take(broad)
    value += 1 - 0.25 * ground.roughness
    paved = np.nonzero((zone == 1) | (zone == 2))
    near, wide, long = across[paved], pixel[paved[0], 0], stride[paved[0], 0]
    joint = np.clip(0.02 / wide, 0, 0.8) * (near % ground.slab < np.maximum(wide, 0.02))
    far = along[paved[0], 0] % ground.slab < np.maximum(long, 0.02)
    value[paved] -= 0.3 * (joint + np.clip(0.02 / long, 0, 0.8) * far)
    for left, width, start_at, length, factor in ground.patches:
        rows = np.nonzero((along[:, 0] > start_at) & (along[:, 0] < start_at + length))[0]
        if rows.size:
            part = slice(rows[0], rows[-1] + 1)
            inside = (across[part] > left) & (across[part] < left + width) & (zone[part] == 0)
            value[part][inside] *= factor
    return value


@dataclass(frozen=True)
class Lens:
    """The camera's own marks on an image."""

    brightness: Number
    balance: Tint
    gamma: Number
    contrast: Number
    saturation: Number
    noise: Number
    vignette: Number
    soft: Number
    offset: tuple[int, int]


def photograph(
    canvas: Canvas, weather: Weather, lens: Lens
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The image as a camera would have taken it, and its labels."""
    camera = canvas.camera
    labels = np.asarray(canvas.image.getchannel("A"))[1::FINE, 1::FINE].copy()
    picture = canvas.image.convert("RGB").reduce(FINE)
    if weather.wet:
        picture = _wet(picture, labels, camera, weather.wet)
    picture = _expose(picture, lens)
    luma, *chroma = picture.convert("YCbCr").split()
    rough = np.full(256, 0.03, np.float32)
    rough[SKY], rough[TREE], rough[ROAD], rough[PAVEMENT] = 0.004, 0.07, 0.015, 0.015
    mottle = tile(grain(), labels.shape, lens.offset, 384 / camera.width)
    mottle *= rough.take(labels)
    mottle += 1
    y = np.linspace(-1, 1, camera.height, dtype=np.float32)[:, None]
    x = np.linspace(-1, 1, camera.width, dtype=np.float32)[None]
    mottle *= 1 - lens.vignette * (x * x + y * y) / 2
    grey = np.asarray(luma) * mottle
    if lens.soft:
        grey = _blur(grey, lens.soft)
    grey += tile(_static(), labels.shape, lens.offset) * np.float32(lens.noise)
    luma = Image.fromarray(np.clip(grey, 0, 255, out=grey).astype(np.uint8))
    # colour at half the sharpness of brightness, as photographs are stored
    fade = [int(128.5 + (v - 128) * lens.saturation) for v in range(256)]
    soft = [c.reduce(2).point(fade).resize(luma.size, Image.Resampling.NEAREST) for c in chroma]
    return np.array(Image.merge("YCbCr", [luma, *soft]).convert("RGB")), labels


@cache
def _static() -> Array:
    return random(4).standard_normal((512, 512)).astype(np.float32)


def _blur(grey: Array, amount: Number) -> Array:
    """Each pixel mixed with its four neighbours."""
    out = grey * np.float32(1 - amount)
    share = np.float32(amount / 4)
    out[1:] += grey[:-1] * share
    out[:-1] += grey[1:] * share
    out[:, 1:] += grey[:, :-1] * share
    out[:, :-1] += grey[:, 1:] * share
    for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        out[edge] = grey[edge]
    return out


def _expose(picture: Image.Image, lens: Lens) -> Image.Image:
    """The image through the camera's meter, white balance and tone curve."""
    mean = float(np.asarray(picture.reduce(4)).mean())
    gain = (lens.brightness / max(20.0, mean)) ** 0.75  # meters correct half-heartedly
    levels = np.arange(256, dtype=np.float32) / 255 * gain
    tables: list[int] = []
    for balance in lens.balance:
        curve = np.clip(levels * balance, 0, 1) ** lens.gamma
        curve = curve + lens.contrast * curve * (1 - curve) * (2 * curve - 1) * 2
        tables += np.clip(255 * curve + 0.5, 0, 255).astype(np.uint8).tolist()
    return picture.point(tables)


def _wet(image: Image.Image, labels: NDArray[np.uint8], camera: Camera, wet: Number) -> Image.Image:
    """Mirrors what stands above the horizon in a rain-wet road, blurred downwards."""
    picture = np.asarray(image, np.float32).copy()
    middle = max(1, int(camera.horizon))
    below = camera.height - middle
    source = np.clip(middle - 1 - np.arange(below) * 0.9, 0, camera.height - 1).astype(np.int64)
    mirrored = picture[source]
    reach = max(2, camera.height // 24)
    total = np.cumsum(np.pad(mirrored, ((reach, 0), (0, 0), (0, 0)), mode="edge"), 0)
    mirrored = (total[reach:] - total[:-reach]) / reach
    share = np.zeros(256, np.float32)
    share[[ROAD, PAVEMENT]] = 0.75
    strength = wet * share[labels[middle:]]
    strength *= np.linspace(1, 0.35, below, dtype=np.float32)[:, None]
    picture[middle:] += (mirrored - 0.55 * picture[middle:]) * 0.6 * strength[..., None]
    return Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
