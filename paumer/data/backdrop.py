"""What lies behind and before a street scene: sky, ground, and the camera's own marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from paumer.data.scenery import (
    FINE,
    PAVEMENT,
    ROAD,
    SKY,
    TREE,
    Array,
    Camera,
    Canvas,
    Light,
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
    cover: float
    cloud: Tint
    cloud_shade: Tint
    offset: tuple[int, int]
    wet: float


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
    slab: float
    roughness: float
    offset: tuple[int, int]
    patches: tuple[tuple[float, float, float, float, float], ...]


Outline = Sequence[Point]


def draw_sky(canvas: Canvas, weather: Weather) -> None:
    """Fills the picture down to the horizon with sky and clouds."""
    camera, light = canvas.camera, canvas.light
    rows = max(2, min(camera.height, int(camera.horizon) + 2))
    rise = np.maximum(camera.horizon - np.arange(rows, dtype=np.float32) - 0.5, 0) / camera.focal
    rise = rise[:, None]
    flat = 1.0 / (rise + 0.12)
    run = (np.arange(camera.width, dtype=np.float32) + 0.5 - camera.vanish)[None] / camera.focal
    down = (90 * flat + weather.offset[0]).astype(np.int64) & 511
    sideways = (90 * flat * run + weather.offset[1]).astype(np.int64) & 511
    field = billows()
    puff = field[down, sideways]
    cloud = np.clip((puff - (1 - weather.cover)) * 3.5, 0, 1)
    # clouds are darker where the field is thicker towards the sun
    ahead = field[(down + 14) & 511, (sideways - int(14 * np.sign(light.sun[0]))) & 511]
    bright = np.clip(0.55 + 1.6 * (puff - ahead), 0, 1)[..., None]
    height = np.clip(rise / 0.55, 0, 1)[..., None] ** 0.7
    haze, zenith = np.asarray(light.haze_tint), np.asarray(weather.zenith)
    blue = haze + (zenith - haze) * height
    shade, pale = np.asarray(weather.cloud_shade), np.asarray(weather.cloud)
    cloud = (cloud * np.clip(rise * 12, 0.15, 1))[..., None]
    sky = blue + (shade + (pale - shade) * bright - blue) * cloud
    glow = np.exp(-((run - light.sun[0]) ** 2) * 2.5 - rise**2)[..., None]
    sky = sky + 45 * light.strength * max(0.0, light.sun[2]) * glow
    canvas.image.paste(_enlarge(np.clip(sky, 0, 255).astype(np.uint8)), (0, 0))
    canvas.labels.paste(SKY, (0, 0) + canvas.labels.size)


def _enlarge(picture: NDArray[np.uint8]) -> Image.Image:
    size = (FINE * picture.shape[1], FINE * picture.shape[0])
    return Image.fromarray(picture).resize(size, Image.Resampling.NEAREST)


def _mask(camera: Camera, top: int, outlines: Sequence[Outline], blur: float) -> Array:
    """Coverage of flat outlines (across, along) on the ground, from 0 to 1."""
    size = (FINE * camera.width, FINE * (camera.height - top))
    mask = Image.new("L", size)
    pen = ImageDraw.Draw(mask)
    for outline in outlines:
        spots = (camera.project(across, 0, along) for across, along in outline)
        pen.polygon([(FINE * x, FINE * (y - top)) for x, y in spots], fill=255)
    small = mask.reduce(FINE)
    if blur:
        small = small.filter(ImageFilter.BoxBlur(blur))
    return np.asarray(small, np.float32) / 255


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
    tints = np.asarray(
        (ground.road_tint, ground.pavement_tint, ground.yard_tint, (92.0, 104.0, 58.0),
         tuple(min(255.0, 1.15 * c) for c in ground.pavement_tint)),
        np.float32,
    )  # fmt: skip
    colour = tints[zone]
    for mask, tint in ((white, (222.0, 220.0, 214.0)), (yellow, (205.0, 165.0, 60.0))):
        if mask:
            worn = tile(grain(), zone.shape, ground.offset) * 0.12 + 0.8
            cover = (_mask(camera, top, mask, 0) * worn)[..., None]
            colour += (np.asarray(tint, np.float32) - colour) * cover
    colour *= _surface(ground, camera, zone, across, along)[..., None]
    lit = np.asarray(light.on((0, 1, 0)), np.float32)
    shaded = np.asarray(light.on((-light.sun[0], 0, -light.sun[2])), np.float32) * 0.95
    shade = _mask(camera, top, shadows, 1.0 * camera.width / 384)[..., None]
    under = 1 - 0.62 * _mask(camera, top, dark, 1.4 * camera.width / 384)[..., None]
    colour *= (lit + (shaded - lit) * shade) * under
    clear = np.exp(-light.haze * along)[..., None]
    colour = colour * clear + np.asarray(light.haze_tint, np.float32) * (1 - clear)
    canvas.image.paste(_enlarge(np.clip(colour, 0, 255).astype(np.uint8)), (0, FINE * top))
    labels = np.array([ROAD, PAVEMENT, PAVEMENT, TREE, PAVEMENT], np.uint8)[zone]
    canvas.labels.paste(_enlarge(labels), (0, FINE * top))


def _zones(ground: Ground, across: Array, along: Array) -> NDArray[np.intp]:
    """0 road, 1 pavement, 2 paved yard, 3 grass, 4 kerb."""
    zone = np.zeros(across.shape, np.intp)
    zone[across < ground.road[0]] = 4
    zone[across > ground.road[1]] = 4
    zone[across < ground.road[0] - 0.16] = 1
    zone[across > ground.road[1] + 0.16] = 1
    zone[across < ground.pavement[0]] = 3 if ground.grass[0] else 2
    zone[across > ground.pavement[1]] = 3 if ground.grass[1] else 2
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
    stride = along * pixel / camera.eye  # metres of street per picture row
    fade = np.clip(0.05 / (0.3 * stride + pixel), 0.25, 1)
    down, right = (along * 48).astype(np.int64), (across * 48).astype(np.int64)
    grit = grain()[(down + start[0]) & 511, (right + start[1]) & 511]
    stains = coarse[((down >> 2) + start[1]) & 511, ((right >> 1) + start[0]) & 511]
    rough = np.array([0.10, 0.08, 0.10, 0.22, 0.06], np.float32)[zone] * ground.roughness
    value = 1 + rough * fade * grit + 0.55 * ground.roughness * (stains - 0.5)
    joint = np.clip(0.02 / pixel, 0, 0.8) * (across % ground.slab < np.maximum(pixel, 0.02))
    gap = np.clip(0.02 / stride, 0, 0.8)
    joint = joint + gap * (along % ground.slab < np.maximum(stride, 0.02))
    value -= 0.35 * joint * ((zone == 1) | (zone == 2))
    lane = np.cos((across - ground.road[0]) * (2 * np.pi / 1.6))
    value -= 0.035 * ground.roughness * lane * (zone == 0)
    for left, width, near, length, factor in ground.patches:
        inside = (along > near) & (along < near + length) & (zone == 0)
        value = np.where(inside & (across > left) & (across < left + width), value * factor, value)
    return value.astype(np.float32)


@cache
def _static() -> Array:
    return random(4).standard_normal((512, 512, 3)).astype(np.float32)


@dataclass(frozen=True)
class Lens:
    """The camera's own marks on a picture."""

    gain: Tint
    gamma: float
    contrast: float
    saturation: float
    noise: float
    vignette: float
    soft: bool
    offset: tuple[int, int]


def photograph(
    canvas: Canvas, weather: Weather, lens: Lens
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The picture as a camera would have taken it, and its labels."""
    camera = canvas.camera
    size = (camera.width, camera.height)
    labels = np.asarray(canvas.labels)[1::FINE, 1::FINE].copy()
    if lens.soft:
        small = canvas.image.resize(size, Image.Resampling.BILINEAR)
    else:
        small = canvas.image.reduce(FINE)
    picture = np.asarray(small, np.float32)
    if weather.wet:
        picture = _wet(picture, labels, camera, weather.wet)
    rough = np.full(256, 0.045, np.float32)
    rough[SKY], rough[TREE], rough[ROAD] = 0.004, 0.07, 0.02
    step = 384 / camera.width
    mottle = tile(grain(), labels.shape, lens.offset, step) * rough[labels]
    y = np.linspace(-1, 1, camera.height, dtype=np.float32)[:, None]
    x = np.linspace(-1, 1, camera.width, dtype=np.float32)[None]
    dim = 1 - lens.vignette * (x * x + y * y) / 2
    picture = picture * ((1 + mottle) * dim)[..., None]
    grey = picture.mean(-1, keepdims=True)
    picture = grey + (picture - grey) * lens.saturation
    picture += tile(_static(), labels.shape, lens.offset) * lens.noise
    levels = np.arange(256, dtype=np.float32) / 255
    finished = np.clip(picture, 0, 255).astype(np.uint8)
    for band, gain in enumerate(lens.gain):
        curve = np.clip(levels * gain, 0, 1) ** lens.gamma
        curve = curve + lens.contrast * curve * (1 - curve) * (2 * curve - 1) * 2
        table = np.clip(255 * curve + 0.5, 0, 255).astype(np.uint8)
        finished[..., band] = table[finished[..., band]]
    return _soften_colour(finished), labels


def _wet(picture: Array, labels: NDArray[np.uint8], camera: Camera, wet: float) -> Array:
    """Mirrors what stands above the horizon in a rain-wet road, blurred downwards."""
    middle = int(camera.horizon)
    below = camera.height - middle
    source = np.clip(middle - 1 - np.arange(below) * 0.9, 0, camera.height - 1).astype(np.int64)
    mirrored = picture[source]
    reach = max(2, camera.height // 24)
    total = np.cumsum(np.pad(mirrored, ((reach, 0), (0, 0), (0, 0)), mode="edge"), 0)
    mirrored = (total[reach:] - total[:-reach]) / reach
    share = np.array([0.75 if i in (ROAD, PAVEMENT) else 0.0 for i in range(256)], np.float32)
    strength = wet * share[labels[middle:]]
    strength *= np.linspace(1, 0.35, below, dtype=np.float32)[:, None]
    picture = picture.copy()
    picture[middle:] += (mirrored - 0.55 * picture[middle:]) * 0.6 * strength[..., None]
    return picture


def _soften_colour(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Colour at half the sharpness of brightness, as photographs are stored."""
    luma, *chroma = Image.fromarray(picture).convert("YCbCr").split()
    blurred = [c.reduce(2).resize(luma.size, Image.Resampling.BILINEAR) for c in chroma]
    return np.asarray(Image.merge("YCbCr", [luma, *blurred]).convert("RGB")).copy()
