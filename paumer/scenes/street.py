"""A street being laid out: its ground, the paint on it, and the list of what stands there."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from paumer.scenes.backdrop import Ground, Outline
from paumer.scenes.canvas import Canvas, Light, Number, Point, Tint

Numbers = np.random.Generator


def between(numbers: Numbers, low: Number, high: Number) -> Number:
    """A random number from `low` to `high`."""
    return low + (high - low) * float(numbers.random())


def vary(numbers: Numbers, tint: Tint, amount: Number) -> Tint:
    """A colour near `tint`: up to `amount` brighter or darker, a third of that in hue."""
    all_over = between(numbers, 1 - amount, 1 + amount)
    r, g, b = (c * all_over * between(numbers, 1 - amount / 3, 1 + amount / 3) for c in tint)
    return r, g, b


def pick(numbers: Numbers, *choices: Tint) -> Tint:
    """One of the colours, slightly varied."""
    return vary(numbers, choices[int(numbers.random() * len(choices))], 0.12)


def offset(numbers: Numbers) -> tuple[int, int]:
    """A random place in a tiling texture."""
    return int(512 * numbers.random()), int(512 * numbers.random())


@dataclass
class Street:
    """What there is to draw: a ground, paint and shadows on it, and things by their distance."""

    ground: Ground
    light: Light
    white: list[Outline] = field(default_factory=list)
    yellow: list[Outline] = field(default_factory=list)
    shadows: list[Outline] = field(default_factory=list)
    dark: list[Outline] = field(default_factory=list)
    things: list[tuple[Number, Callable[[Canvas], None]]] = field(default_factory=list)
    taken: list[tuple[Number, Number, Number, Number]] = field(default_factory=list)

    def edge(self, side: int) -> Number:
        """Across of the kerb on the left (-1) or right (1)."""
        return self.ground.road[side > 0]

    def border(self, side: int) -> Number:
        """Across of the far edge of the pavement."""
        return self.ground.pavement[side > 0]

    def free(self, along: Number) -> bool:
        """Whether this part of the street is not inside the junction."""
        junction = self.ground.junction
        return junction is None or not junction[0] - 1 < along < junction[1] + 1

    def claim(self, across: Number, along: Number, wide: Number, long: Number) -> bool:
        """Takes a piece of the road around a point, unless some of it is taken already."""
        for x, z, w, d in self.taken:
            if abs(x - across) < (w + wide) / 2 and abs(z - along) < (d + long) / 2:
                return False
        self.taken.append((across, along, wide, long))
        return True

    def cast(self, foot: list[Point], height: Number) -> None:
        """Adds the shadow of something `height` metres tall that stands on the line `foot`."""
        far = self._shift(foot, height)
        if far is not None:
            self.shadows.append([*foot, *reversed(far)])

    def cast_crown(self, middle: Point, radius: Number, height: Number) -> None:
        """Adds the dappled shadow of a tree crown `height` metres up."""
        x, z = middle
        for dx, dz, size in ((0, 0, 0.55), (-0.7, 0.2, 0.4), (0.6, -0.4, 0.45), (0.3, 0.7, 0.35)):
            cx, cz, r = x + dx * radius, z + dz * radius, size * radius
            ring = [(-1.0, -0.2), (-0.4, -1.0), (0.7, -0.8), (1.0, 0.3), (0.3, 1.0), (-0.7, 0.7)]
            blob = self._shift([(cx + r * a, cz + r * b) for a, b in ring], height)
            if blob is not None:
                self.shadows.append(blob)

    def _shift(self, outline: list[Point], height: Number) -> list[Point] | None:
        """Where the sun throws an outline; nowhere on a dull day."""
        if self.light.strength < 0.25:
            return None
        right, up, forward = self.light.sun
        dx, dz = -right / up * height, -forward / up * height
        return [(x + dx, max(0.6, z + dz)) for x, z in outline]


def plan_ground(numbers: Numbers, grass: tuple[bool, bool]) -> Ground:
    """A road with the camera in one of its lanes, pavements beside it, perhaps a junction."""
    wide = between(numbers, 6.0, 12.5)
    lane = 0.25 * wide * (1 if numbers.random() < 0.5 else -1) * between(numbers, 0.75, 1.1)
    left, right = -wide / 2 - lane, wide / 2 - lane
    junction = None
    if numbers.random() < 0.4:
        start = between(numbers, 14, 60)
        junction = (start, start + between(numbers, 6, 10))
    grey = between(numbers, 58, 135)
    road_tint = vary(numbers, (grey, grey, grey * 1.02), 0.1)
    if numbers.random() < 0.35:  # asphalt pavements
        pavement_tint = vary(numbers, road_tint, 0.2)
    else:
        pavement_tint = pick(
            numbers, (150, 146, 140), (126, 124, 122), (160, 140, 124), (100, 98, 98)
        )
    patches = tuple(
        (
            between(numbers, left, right),
            between(numbers, 0.8, 3.5),
            between(numbers, 3, 25),
            between(numbers, 1, 9),
            between(numbers, 0.78, 1.18),
        )
        for _ in range(int(4 * numbers.random()))
    )
    return Ground(
        road=(left, right),
        pavement=(left - between(numbers, 1.5, 3.8), right + between(numbers, 1.5, 3.8)),
        junction=junction,
        grass=grass,
        road_tint=road_tint,
        pavement_tint=pavement_tint,
        yard_tint=pick(numbers, (140, 136, 130), (112, 108, 104), (150, 130, 112)),
        slab=between(numbers, 0.5, 0.95),
        roughness=between(numbers, 0.5, 1.3),
        offset=offset(numbers),
        patches=patches,
    )


def _strip(left: Number, right: Number, near: Number, far: Number) -> list[Point]:
    """A painted strip along the street, in short pieces so that it follows the bend."""
    pieces = 8 if far - near > 8 else 1
    cuts = [near + (far - near) * (i / pieces) ** 2 for i in range(pieces + 1)]
    return [(left, z) for z in cuts] + [(right, z) for z in reversed(cuts)]


def paint_road(numbers: Numbers, street: Street) -> None:
    """Lane lines, lines along the kerbs, and at a junction a stop line and perhaps a zebra."""
    left, right = street.ground.road
    junction = street.ground.junction
    middle = (left + right) / 2
    on, off = between(numbers, 1.5, 4), between(numbers, 2, 6)
    lanes = [middle] if numbers.random() < 0.85 else []
    if right - left > 10 and numbers.random() < 0.6:
        lanes += [(left + middle) / 2, (right + middle) / 2]
    for lane in lanes:
        along = between(numbers, 0.6, 4)
        while along < 90:
            if street.free(along):
                street.white.append(_strip(lane - 0.06, lane + 0.06, along, along + on))
            along += on + off
    _paint_edges(street, numbers.random())
    if junction is not None:
        street.white.append(_strip(left, right, junction[0] - 1.2, junction[0] - 0.85))
        if numbers.random() < 0.5:
            for i in range(int((right - left) / 1.2)):
                x = left + 0.3 + 1.2 * i
                street.white.append(_strip(x, x + 0.6, junction[0] - 5, junction[0] - 2))


def _paint_edges(street: Street, style: Number) -> None:
    """Double yellow lines along the kerbs, single white ones, or none."""
    if style > 0.6:
        return
    double = style < 0.3
    paint = street.yellow if double else street.white
    junction = street.ground.junction
    parts = [(0.6, 100.0)] if junction is None else [(0.6, junction[0]), (junction[1], 100.0)]
    for near, far in parts:
        for inward, kerb in ((1, street.edge(-1)), (-1, street.edge(1))):
            for inset in (0.3, 0.5) if double else (0.35,):
                x = kerb + inward * inset
                paint.append(_strip(x - 0.05, x + 0.05, near, far))
