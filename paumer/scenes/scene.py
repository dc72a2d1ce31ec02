"""Procedural street scenes: a photograph-like image and its CamVid labels from a seed."""

from math import ceil, cos, pi, sin

import numpy as np
from numpy.typing import NDArray

from paumer.scenes.backdrop import Lens, Weather, draw_ground, draw_sky, photograph
from paumer.scenes.canvas import BUILDING, TREE, VOID, Camera, Canvas, Light, random
from paumer.scenes.plan import lay_out_street
from paumer.scenes.street import Numbers, between, offset, pick

_SPLIT_STARTS = {"train": 0, "val": 1_000_000_000, "test": 2_000_000_000}
_SPLIT_ROOM = 1_000_000_000
_LEAST_SIDE, _MOST_PIXELS = 16, 2**25  # So large a scene takes 1.7 GB of memory.


def scene_seeds(split: str, count: int) -> range:
    """The first `count` seeds of a split; "train", "val" and "test" never share one."""
    if split not in _SPLIT_STARTS:
        raise ValueError(f"no split {split!r}: scenes come as {', '.join(_SPLIT_STARTS)}")
    if not 0 <= count <= _SPLIT_ROOM:
        raise ValueError(f"cannot give {count} seeds: a split has from 0 to {_SPLIT_ROOM}")
    start = _SPLIT_STARTS[split]
    return range(start, start + count)


def check_size(size: tuple[int, int]) -> None:
    """Raise unless a scene can have that width and height."""
    width, height = size
    if min(size) < _LEAST_SIDE or width * height > _MOST_PIXELS:
        raise ValueError(
            f"cannot make a {width}x{height} scene: both sides are {_LEAST_SIDE} or more, "
            f"and at most {_MOST_PIXELS:,} pixels are drawn"
        )


def scene(
    seed: int, size: tuple[int, int] = (384, 288)
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A street as an RGB image (h w 3) and its labels (h w), 0 to 10 as in CAMVID or 255.

    `size` is width and height. The same seed gives the same bytes, and the same street at any size.
    """
    if seed < 0:
        raise ValueError(f"cannot make a scene from seed {seed}: seeds are 0 or more")
    check_size(size)
    numbers = random(seed)
    weather, light = _day(numbers)
    camera = _camera(numbers, *size)
    street = lay_out_street(numbers, light)
    canvas = Canvas(camera, light)
    draw_sky(canvas, weather)
    _draw_distance(canvas, numbers)
    draw_ground(canvas, street.ground, street.white, street.yellow, street.shadows, street.dark)
    for _, draw in sorted(street.things, key=lambda thing: -thing[0]):
        draw(canvas)
    if numbers.random() < 0.3:
        _draw_bonnet(canvas, numbers)
    return photograph(canvas, weather, _lens(numbers))


def _day(numbers: Numbers) -> tuple[Weather, Light]:
    kind = numbers.random()
    turn = between(numbers, 0, 2 * pi)
    climb = between(numbers, 0.2, 1.0)
    sun = (cos(climb) * sin(turn), sin(climb), cos(climb) * cos(turn))
    warm = max(0.0, 0.7 - climb)
    sun_tint = (1.06 + 0.15 * warm, 1.0, 0.93 - 0.35 * warm)
    start = offset(numbers)
    grey = between(numbers, 165, 250)
    pale = (grey, grey * 1.005, grey * 1.015)
    if kind < 0.48:
        blue = between(numbers, 0, 1)
        zenith = (95 + 100 * blue, 145 + 75 * blue, 215 + 25 * blue)
        haze = (205 + 30 * blue, 217 + 23 * blue, 231 + 14 * blue)
        cover = between(numbers, 0.1, 0.65)
        weather = Weather(zenith, cover, (252, 251, 248), (196, 201, 211), start, 0.0)
        air = between(numbers, 0.0008, 0.003)
        strength = between(numbers, 0.55, 1.0)
        return weather, Light(sun, strength, sun_tint, (0.92, 0.98, 1.1), haze, air)
    if kind < 0.76:
        shade = (grey * 0.82, grey * 0.84, grey * 0.88)
        weather = Weather(shade, between(numbers, 0.6, 1.1), pale, shade, start, 0.0)
        strength, air = between(numbers, 0.0, 0.3), between(numbers, 0.002, 0.006)
        return weather, Light(sun, strength, sun_tint, (0.97, 1.0, 1.04), pale, air)
    if kind < 0.87:
        weather = Weather(pale, 0.4, pale, pale, start, 0.0)
        air = between(numbers, 0.008, 0.02)
        return weather, Light(sun, 0.1, sun_tint, (0.98, 1.0, 1.02), pale, air)
    dim = between(numbers, 0.45, 0.8)
    shade = (dim * 175, dim * 182, dim * 196)
    pale = (dim * 235, dim * 238, dim * 243)
    if kind < 0.95:
        weather = Weather(shade, 0.8, pale, shade, start, between(numbers, 0.5, 1.0))
        tint = (0.9 * dim + 0.1, 0.92 * dim + 0.1, 0.96 * dim + 0.1)
        return weather, Light(sun, 0.05, sun_tint, tint, pale, between(numbers, 0.004, 0.01))
    dusk = (dim * 250, dim * 205, dim * 180)
    weather = Weather((dim * 130, dim * 150, dim * 200), 0.5, dusk, shade, start, 0.0)
    tint = (0.75 * dim, 0.75 * dim, 0.85 * dim)
    return weather, Light(sun, 0.15, (1.2, 0.9, 0.7), tint, dusk, 0.003)


def _camera(numbers: Numbers, width: int, height: int) -> Camera:
    # an image of another shape than 4:3 sees more of the scene, never a stretched one
    span = max(width, 4 * height / 3)
    focal = span * between(numbers, 0.78, 1.05)
    vanish = 0.5 * width + span * between(numbers, -0.13, 0.13)
    horizon = 0.5 * height + 0.75 * span * between(numbers, -0.09, 0.03)
    eye = between(numbers, 1.25, 1.75)
    bend = between(numbers, -1, 1) ** 3 * 0.0022
    return Camera(width, height, focal, vanish, horizon, eye, bend)


def _lens(numbers: Numbers) -> Lens:
    warm = between(numbers, -0.07, 0.07)
    return Lens(
        brightness=between(numbers, 84, 170),
        balance=(1 + warm, 1.0, 1 - warm),
        gamma=between(numbers, 0.85, 1.15),
        contrast=between(numbers, -0.1, 0.4),
        saturation=between(numbers, 0.35, 1.15),
        noise=between(numbers, 0.6, 2.6),
        vignette=between(numbers, 0.0, 0.35),
        soft=max(0.0, between(numbers, -0.3, 0.6)),
        offset=offset(numbers),
    )


def _draw_distance(canvas: Canvas, numbers: Numbers) -> None:
    """What closes the view at the horizon: tree tops, roofs, or both."""
    camera, light = canvas.camera, canvas.light
    for label, along, tint in (
        (BUILDING, 260.0, (140.0, 132.0, 126.0)),
        (TREE, 220.0, (78.0, 84.0, 62.0)),
    ):
        tall, points = between(numbers, 1, 13), []
        steps = 48
        heights = numbers.random(steps + 1)
        if numbers.random() < 0.2:
            continue
        for i in range(steps + 1):
            x = camera.width * i / steps
            up = camera.eye + tall * (0.4 + 0.6 * float(heights[i]))
            y = camera.horizon - (up * camera.focal / along)
            points += [(x, y), (x + camera.width / steps, y)] if label == BUILDING else [(x, y)]
        floor = ceil(camera.horizon) + 2
        outline = [(0.0, float(floor)), *points, (float(camera.width), float(floor))]
        canvas.polygon(outline, light.seen(tint, along), label)


def _draw_bonnet(canvas: Canvas, numbers: Numbers) -> None:
    """The front of the camera's own car, which belongs to no class."""
    camera = canvas.camera
    tint = pick(numbers, (36, 38, 42), (120, 124, 128), (84, 30, 32), (52, 60, 78))
    top = camera.height * between(numbers, 0.9, 0.97)
    middle = camera.width * between(numbers, 0.35, 0.65)
    half = camera.width * between(numbers, 0.5, 0.8)
    for lift, shade in ((0.0, 1.25), (0.012, 0.95), (0.035, 0.75)):
        r, g, b = tint
        colour = canvas.light.seen((r * shade, g * shade, b * shade), 0.0, (0, 1, 0))
        y = top + lift * camera.height
        canvas.disc(middle, y + camera.height, half * 1.6, camera.height, colour, VOID)
