"""What is built along a street scene: houses, fences and hedges."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paumer.scenes.canvas import (
    BUILDING,
    FENCE,
    SHEET_MEAN,
    TREE,
    Array,
    Camera,
    Canvas,
    Light,
    Number,
    Point,
    Tint,
    grain,
    rub,
    tile,
)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Facade:
    """The looks of a house front: `kinds[storey, bay]` says what each window is like."""

    wall: Tint
    trim: Tint
    glass: Tint
    shop: Tint
    kinds: NDArray[np.int64]
    ground: NDArray[np.int64]
    window: Point  # share of the bay's width and of the storey's height
    roughness: int
    offset: tuple[int, int]


@dataclass(frozen=True)
class House:
    """A house on the left (-1) or right (1): its front stands at `line`, from `near` to `far`."""

    side: int
    line: Number
    near: Number
    far: Number
    height: Number
    roof: Number
    roof_tint: Tint
    front: Facade
    flank: Facade | None
    shaded: Number  # height up to which the houses opposite keep the sun off


def _lit(facade: Facade, light: Light, along: Number, normal: Tint) -> Facade:
    """The facade in the colours it shows, brightened for the texture that dims it again."""
    gain = 255 / SHEET_MEAN
    tints = (
        light.seen((gain * tint[0], gain * tint[1], gain * tint[2]), along, normal)
        for tint in (facade.wall, facade.trim, facade.glass, facade.shop)
    )
    wall, trim, glass, shop = tints
    return replace(facade, wall=wall, trim=trim, glass=glass, shop=shop)


def _fall(start: Number, end: Number, count: int) -> Array:
    steps = np.arange(count, dtype=np.float32) * ((end - start) / max(1, count))
    return (start + steps)[:, None, None]


def _windows(facade: Facade, height: int, width: int) -> Bytes:
    """The five kinds of bay above street level: four looks of a window, and bare wall."""
    cells = np.empty((5, height, width, 3), np.uint8)
    cells[:] = facade.wall
    windows = cells[:4]
    top = int(height * 0.2)
    bottom = max(top + 2, int(height * (0.2 + facade.window[1])))
    left = int(width * (0.5 - facade.window[0] / 2))
    right = max(left + 2, width - left)
    rim = max(1, width // 24)
    windows[:, bottom : bottom + max(1, height // 14), max(0, left - rim) : right + rim] = (
        facade.trim
    )
    shadow = [0.8 * c for c in facade.wall]
    windows[:, top - max(1, height // 16) : top, left:right] = shadow
    if width > 5:
        windows[:, top:bottom, left:right] = facade.trim
        top, bottom, left, right = top + rim, bottom - rim, left + rim, right - rim
    pane = windows[:, top:bottom, left:right]
    if pane.size:
        fall = _fall(1.3, 0.7, pane.shape[1])
        looks = np.array([0.75, 1.0, 1.6, 1.1], np.float32)[:, None, None, None]
        pane[:] = np.minimum(np.asarray(facade.glass, np.float32) * fall * looks, 255)
        half = pane.shape[1] // 2
        pane[3, :half] = [
            0.35 * g + 0.5 * t for g, t in zip(facade.glass, facade.trim, strict=True)
        ]
        if pane.shape[2] > 7:
            pane[:, :, pane.shape[2] // 2 : pane.shape[2] // 2 + rim] = facade.trim
            pane[:, half : half + rim] = facade.trim
    return cells


def _ground_floor(facade: Facade, windows: Bytes) -> Bytes:
    """The bays at street level: 0 shop front, 1 door, 2 window, 3 dark opening, 4 bare wall."""
    cells = windows.copy()
    cells[2] = windows[1]
    _, height, width, _ = cells.shape
    front = cells[0]
    edge, band = max(1, width // 12), max(1, int(height * 0.2))
    front[:] = facade.wall
    front[band // 3 : band + band // 3] = facade.shop
    # strokes in the band read as lettering from afar
    pale = 225 if sum(facade.shop) < 400 else 50
    front[band // 2 : band, width // 4 : width - width // 4 : 3] = [
        0.5 * c + 0.5 * pale for c in facade.shop
    ]
    glass = front[band + band // 3 : int(height * 0.88), edge : width - edge]
    fall = _fall(0.7, 1.2, glass.shape[0])
    glass[:] = np.minimum(np.asarray(facade.glass, np.float32) * fall, 255)
    front[int(height * 0.88) :] = [0.6 * c for c in facade.shop]
    left, right = int(width * 0.32), max(int(width * 0.32) + 2, int(width * 0.68))
    top = int(height * 0.28)
    dark = [0.6 * c for c in facade.glass]
    for kind, tint in ((1, facade.shop), (3, dark)):
        cells[kind] = facade.wall
        cells[kind, top - max(1, height // 20) :, max(0, left - 1) : right + 1] = facade.trim
        cells[kind, top:, left:right] = tint
    return cells


def _front(facade: Facade, height: int, width: int, shaded: Number, dim: Number) -> Image.Image:
    """A front about `height` x `width` pixels; its lowest share `shaded` is dimmed to `dim`."""
    storeys, bays = facade.kinds.shape
    rows, columns = max(5, height // (storeys + 1)), max(3, width // bays)
    windows = _windows(facade, rows, columns)
    lower = windows if facade.ground.min() == 4 else _ground_floor(facade, windows)
    cells = np.empty((storeys + 1, rows, bays, columns, 3), np.uint8)
    cells[:-1] = windows.take(facade.kinds, 0).transpose(0, 2, 1, 3, 4)
    cells[-1] = lower.take(facade.ground, 0).transpose(1, 0, 2, 3)
    front = cells.reshape((storeys + 1) * rows, bays * columns, 3)
    cornice = max(1, rows // 8)
    front[:cornice] = [0.9 * c for c in facade.trim]
    front[cornice : cornice + max(1, cornice // 2)] = [0.6 * c for c in facade.wall]
    if shaded > 0:
        below = front[int(front.shape[0] * (1 - min(1.0, shaded))) :]
        below[:] = below * np.float32(dim)
    return rub(Image.fromarray(front), facade.roughness, facade.offset)


def _sight(camera: Camera, across: Number, near: Number) -> Number:
    """How far along a wall beside the street comes into the image."""
    room = camera.vanish if across < 0 else camera.width - camera.vanish
    return max(near, min(camera.focal * abs(across) / max(room, 1.0), 40.0), 1.0)


def draw_house(canvas: Canvas, house: House) -> None:
    """A house: roof and gable, the wall towards the camera, and its front to the street."""
    camera, light, side = canvas.camera, canvas.light, house.side
    near = _sight(camera, house.line, house.near)
    scale = 1.4 * camera.focal / (near**0.6 * max(near, house.far) ** 0.4)
    rows = int(min(480, max(8, scale * house.height)))
    deep = house.line + side * 9.0
    if house.roof:
        _draw_roof(canvas, house)
    if house.flank is not None and house.near > 1:
        columns = int(min(200, max(4, camera.focal / house.near * 9.0)))
        flank = _front(_lit(house.flank, light, house.near, (0, 0, -1)), rows, columns, 0, 1)
        canvas.wall((house.line, house.near), (deep, house.near), 0, house.height, flank, BUILDING)
    if near >= house.far:
        return
    width = 1.3 * camera.focal * abs(house.line) / near**1.4 * (house.far - house.near)
    columns = int(min(480, max(4, width / house.far**0.6)))
    normal, away = (-float(side), 0.0, 0.0), (near * house.far) ** 0.5
    if width / house.far**0.6 < 6 * camera.width / 384:
        (r, g, b), (x, y, z) = house.front.wall, house.front.glass
        outline = [
            (house.line, up, along)
            for up, along in (
                (0, near),
                (house.height, near),
                (house.height, house.far),
                (0, house.far),
            )
        ]
        mixed = (0.75 * r + 0.25 * x, 0.75 * g + 0.25 * y, 0.75 * b + 0.25 * z)
        canvas.solid(outline, mixed, BUILDING, normal)
        return
    facade = _lit(house.front, light, away, normal)
    dim = light.on((float(side), 0, 0))[1] / light.on(normal)[1]
    front = _front(facade, rows, columns, house.shaded / house.height if dim < 1 else 0, dim)
    canvas.wall((house.line, house.near), (house.line, house.far), 0, house.height, front, BUILDING)


def _draw_roof(canvas: Canvas, house: House) -> None:
    side, near, eaves = house.side, max(house.near, 0.5), house.line - house.side * 0.3
    ridge, top = house.line + side * 4.5, house.height + house.roof
    low = house.height - 0.1
    slope = [
        (eaves, low, near),
        (eaves, low, house.far),
        (ridge, top, house.far),
        (ridge, top, near),
    ]
    canvas.solid(slope, house.roof_tint, BUILDING, (-0.5 * side, 0.85, 0))
    r, g, b = house.roof_tint
    for share in (0.3, 0.6):  # courses of tiles
        x, y = eaves + (ridge - eaves) * share, low + (top - low) * share
        strip = [(x, y, near), (x, y, house.far), (x, y + 0.12, house.far), (x, y + 0.12, near)]
        canvas.solid(strip, (0.82 * r, 0.82 * g, 0.82 * b), BUILDING, (-0.5 * side, 0.85, 0))
    if house.near > 1:
        gable = [
            (house.line, house.height, near),
            (ridge, top, near),
            (house.line + side * 9.0, house.height, near),
        ]
        canvas.solid(gable, house.front.wall, BUILDING)
    stack = [
        (ridge + s * 0.5, top + u, near + 0.6) for s, u in ((-1, -0.6), (1, -0.6), (1, 1), (-1, 1))
    ]
    canvas.solid(stack, house.front.wall, BUILDING)


def _wall_pixels(camera: Camera, across: Number, span: Point, height: Number) -> tuple[int, int]:
    """Rows and columns that do a wall along the street justice in the image."""
    near = max(2.0, _sight(camera, across, span[0]))
    scale = 1.5 * camera.focal / near
    columns = scale * abs(across) / near * (span[1] - span[0])
    return int(min(140, max(4, scale * height))), int(min(420, max(4, columns)))


@dataclass(frozen=True)
class Barrier:
    """Something along the street: a "hedge", or a fence of "planks", "railings" or "bricks"."""

    style: str
    across: Number
    span: Point
    height: Number
    dark: Tint
    pale: Tint
    offset: tuple[int, int]


def draw_barrier(canvas: Canvas, barrier: Barrier) -> None:
    """A hedge or a fence; railings let the street behind show."""
    if barrier.style == "hedge":
        _draw_hedge(canvas, barrier)
        return
    rows, columns = _wall_pixels(canvas.camera, barrier.across, barrier.span, barrier.height)
    metres = np.linspace(*barrier.span, columns, dtype=np.float32)
    normal = (-1.0 if barrier.across > 0 else 1.0, 0.0, 0.0)
    tint = np.asarray(canvas.light.seen(barrier.pale, barrier.span[0], normal), np.float32)
    texture = np.empty((rows, columns, 4), np.uint8)
    texture[..., :3], texture[..., 3] = tint, 255
    if barrier.style == "planks":
        bright = 0.75 + 0.25 * (metres % 0.15 > 0.025)
        bright *= 0.8 + 0.3 * ((metres // 0.15 * 0.618) % 1)
        texture[..., :3] = np.minimum(bright[:, None] * tint, 255)
    elif barrier.style == "railings":
        _cut_railings(texture[..., 3], metres)
    else:
        cap = max(1, rows // 10)
        texture[:cap, :, :3] = 0.8 * tint
        rough = tile(grain(), (rows, columns), barrier.offset) * 0.09 + 0.95
        texture[cap:, :, :3] = np.minimum(rough[cap:, :, None] * tint, 255)
    near, far = ((barrier.across, along) for along in barrier.span)
    image = Image.fromarray(texture)
    canvas.wall(near, far, 0, barrier.height, image, FENCE, see_through=True)


def _cut_railings(opacity: Bytes, metres: Array) -> None:
    """Leaves bars, two rails and a post every two metres of a wall of opacity."""
    step = float(metres[-1] - metres[0]) / len(metres)
    # bars too thin to see one by one become a veil
    opacity[:] = 255 * (metres % 0.15 < 0.04) if step < 0.05 else 90
    rail = max(1, len(opacity) // 16)
    opacity[:rail] = opacity[-2 * rail : -rail] = 255
    opacity[:, metres % 2.0 < max(step, 0.08)] = 255


def _draw_hedge(canvas: Canvas, hedge: Barrier) -> None:
    """A clipped row of bushes with a ragged top."""
    rows, columns = _wall_pixels(canvas.camera, hedge.across, hedge.span, hedge.height)
    start = (hedge.offset[0], hedge.offset[1] + int(hedge.span[0] * 20))
    leaves = tile(grain(), (rows, columns), start, max(0.5, 10 * hedge.height / rows))
    ramp = np.linspace(1, 0, rows, dtype=np.float32)[:, None]
    normal = (-0.8 if hedge.across > 0 else 0.8, 0.6, 0.0)
    low, high = (
        np.asarray(canvas.light.seen(tint, hedge.span[0], normal), np.float32)
        for tint in (hedge.dark, hedge.pale)
    )
    bright = np.clip(0.25 + 0.5 * ramp + 0.22 * leaves, 0, 1)[..., None]
    texture = np.empty((rows, columns, 4), np.uint8)
    texture[..., :3] = low + (high - low) * bright
    texture[..., 3] = np.clip((1.05 - ramp) * 6 + 0.5 * leaves, 0, 1) * 255
    near, far = (hedge.across, hedge.span[0]), (hedge.across, hedge.span[1])
    canvas.wall(near, far, 0, hedge.height, Image.fromarray(texture), TREE)
