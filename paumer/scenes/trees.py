"""The trees of a street scene: a few crowns, grown once, in any size and colour."""

from dataclasses import dataclass
from functools import cache
from math import cos, pi, sin

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from paumer.scenes.canvas import FINE, TREE, Canvas, Number, Tint, billows, grain, random, tile

LEAFY_CROWNS, BARE_CROWNS = 8, 5
Crown = tuple[Image.Image, Image.Image, Image.Image]


@cache
def _crown(index: int, mirrored: bool, shrink: int) -> Crown:
    """One of the crowns at 1/shrink of its size: opacity, where it is bright, what is labelled."""
    if shrink > 1:
        alpha, bright, label = (layer.reduce(shrink) for layer in _crown(index, mirrored, 1))
    elif mirrored:
        flip = Image.Transpose.FLIP_LEFT_RIGHT
        alpha, bright, label = (layer.transpose(flip) for layer in _crown(index, False, 1))
    else:
        alpha, bright, label = _leafy(index) if index < LEAFY_CROWNS else _bare(index)
    if index < LEAFY_CROWNS:
        alpha = label = label.point([0] * 110 + [255] * 146)
        bright = ImageChops.multiply(bright, alpha)
    else:
        label = ImageChops.lighter(label, alpha).point([0] + [255] * 255)
    return alpha, bright, label


def _leafy(index: int) -> Crown:
    numbers, size = random(3, index), 192
    line = np.linspace(-1, 1, size, dtype=np.float32)
    y, x = line[:, None], line[None]
    density = np.full((size, size), -9, np.float32)
    shade = np.zeros((size, size), np.float32)
    narrow = 0.6 + 0.4 * float(numbers.random())
    for _ in range(26):
        angle, reach = 2 * pi * float(numbers.random()), 0.68 * float(numbers.random()) ** 0.55
        cx, cy = narrow * reach * cos(angle), reach * sin(angle)
        radius = 0.16 + 0.26 * float(numbers.random())
        inside = 1 - ((x - cx) ** 2 + (y - cy) ** 2) / radius**2
        bright = 0.5 - 0.42 * (y - cy) / radius - 0.3 * (x - cx) / radius - 0.25 * cy
        front = inside > density
        density, shade = np.where(front, inside, density), np.where(front, bright, shade)
    start = (int(numbers.integers(512)), int(numbers.integers(512)))
    leaves = tile(grain(), (size, size), start)
    clumps = tile(billows(), (size, size), start, 2.0) - 0.5
    opacity = np.clip((density + 0.25 * leaves + 1.9 * clumps + 0.2) * 2.2, 0, 1)
    shade = np.clip(0.42 + 0.3 * (shade - 0.5) + 0.16 * leaves + 0.8 * clumps, 0, 1)
    alpha = Image.fromarray((255 * opacity).astype(np.uint8))
    return alpha, Image.fromarray((255 * shade * opacity).astype(np.uint8)), alpha


def _bare(index: int) -> Crown:
    numbers, size = random(3, index), 576
    alpha = Image.new("L", (size, size))
    pen = ImageDraw.Draw(alpha)
    branches = [(size / 2, float(size), -pi / 2, size * 0.2, 15.0)]
    while branches:
        x, y, angle, length, width = branches.pop()
        for _ in range(3):
            nx, ny = x + length / 3 * cos(angle), y + length / 3 * sin(angle)
            pen.line((x, y, nx, ny), fill=255, width=max(1, int(width)))
            x, y, angle = nx, ny, angle + 0.3 * (float(numbers.random()) - 0.5)
        if length > 16:
            for turn in (-0.5, 0.1, 0.55)[: 3 if numbers.random() < 0.55 else 2]:
                bend = angle + turn * (0.6 + 0.7 * float(numbers.random()))
                longer = length * (0.62 + 0.24 * float(numbers.random()))
                branches.append((x, y, bend, longer, max(1.6, width * 0.6)))
    alpha = alpha.resize((192, 192), Image.Resampling.BOX)
    alpha = alpha.point([min(255, int(1.3 * v)) for v in range(256)])
    thick = alpha.filter(ImageFilter.BoxBlur(3)).point([255 if v > 34 else 0 for v in range(256)])
    return alpha, alpha.point([v // 3 for v in range(256)]), thick


@dataclass(frozen=True)
class Tree:
    """A tree as it grows: where, how big, which crown, and the colours of its leaves."""

    across: Number
    along: Number
    height: Number
    spread: Number
    stem: Number
    crown: int
    dark: Tint
    pale: Tint


def draw_tree(canvas: Canvas, tree: Tree) -> None:
    """A tree: stem and crown, brighter on the side of the sun."""
    camera, light, along = canvas.camera, canvas.light, tree.along
    thick = 0.025 * tree.height
    stem = tree.stem + 0.25 * (tree.height - tree.stem)
    outline = [
        (tree.across + s * thick * (1 - 0.4 * (u > 0)), u, along)
        for s, u in ((-1, 0), (1, 0), (1, stem), (-1, stem))
    ]
    canvas.solid(outline, (78.0, 68.0, 58.0), TREE)
    left, top = camera.project(tree.across - tree.spread / 2, tree.height, along)
    right, bottom = camera.project(tree.across + tree.spread / 2, tree.stem, along)
    left, top, right, bottom = FINE * left, FINE * top, FINE * right, FINE * bottom
    x0, y0 = max(0, int(left)), max(0, int(top))
    x1, y1 = min(canvas.image.width, int(right) + 1), min(canvas.image.height, int(bottom) + 1)
    if x0 >= x1 or y0 >= y1:
        return
    shrink = 1 if right - left > 110 else 2 if right - left > 50 else 4
    layers = _crown(tree.crown, light.sun[0] > 0, shrink)
    size = layers[0].width
    across, down = size / (right - left), size / (bottom - top)
    part = (
        max(0.0, (x0 - left) * across),
        max(0.0, (y0 - top) * down),
        min(float(size), (x1 - left) * across),
        min(float(size), (y1 - top) * down),
    )
    if part[2] - part[0] < 0.5 or part[3] - part[1] < 0.5:
        return
    smooth = right - left > 3 * size  # else the texels are finer than the image's pixels
    way = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    alpha, bright, label = (layer.resize((x1 - x0, y1 - y0), way, box=part) for layer in layers)
    if smooth and tree.crown < LEAFY_CROWNS:
        alpha = alpha.point([0] * 128 + [255] * 128)
        bright = ImageChops.multiply(bright, alpha)
    upward = (0.3 * light.sun[0], 0.8, -0.5)
    canvas.image.paste((*light.seen(tree.dark, along), TREE), (x0, y0), alpha)
    canvas.image.paste((*light.seen(tree.pale, along, upward), TREE), (x0, y0), bright)
    if tree.crown >= LEAFY_CROWNS:
        canvas.relabel((x0, y0), label.point([0] + [255] * 255), TREE)
