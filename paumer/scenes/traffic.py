"""What moves in a street scene: cars, people on foot, cyclists."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import cos, hypot, pi, sin

from paumer.scenes.canvas import BICYCLIST, CAR, PEDESTRIAN, Canvas, Number, Point, Tint


@dataclass(frozen=True)
class Body:
    """The shape of a kind of car, in metres; heights and lengths below are ratios of the whole.

    The profile is its side view from the rear bumper over the roof to the front one: (along, up,
    what the strip across the car from here to the next point is).
    """

    length: Number
    width: Number
    height: Number
    roof: Number  # width of the roof over that of the car
    belt: Number  # where the windows begin
    wheel: Number
    axles: Point
    profile: tuple[tuple[Number, Number, str], ...]


BODIES = {
    "hatchback": Body(3.9, 1.70, 1.46, 0.72, 0.66, 0.31, (-0.31, 0.32), (
        (-0.49, 0.20, "rear"), (-0.50, 0.40, "tail"), (-0.48, 0.64, "glass"), (-0.38, 0.93, "roof"),
        (-0.15, 1.00, "roof"), (0.10, 0.96, "glass"), (0.27, 0.66, "bonnet"), (0.46, 0.54, "nose"),
        (0.50, 0.38, "front"), (0.49, 0.18, "end"),
    )),
    "saloon": Body(4.5, 1.76, 1.42, 0.70, 0.66, 0.32, (-0.29, 0.32), (
        (-0.49, 0.20, "rear"), (-0.50, 0.40, "tail"), (-0.49, 0.62, "boot"), (-0.34, 0.67, "glass"),
        (-0.20, 0.97, "roof"), (0.04, 1.00, "glass"), (0.21, 0.66, "bonnet"), (0.46, 0.53, "nose"),
        (0.50, 0.38, "front"), (0.49, 0.18, "end"),
    )),
    "estate": Body(4.5, 1.84, 1.66, 0.76, 0.66, 0.36, (-0.29, 0.31), (
        (-0.49, 0.22, "rear"), (-0.50, 0.42, "tail"), (-0.49, 0.62, "glass"), (-0.44, 0.95, "roof"),
        (-0.20, 1.00, "roof"), (0.10, 0.97, "glass"), (0.25, 0.65, "bonnet"), (0.46, 0.57, "nose"),
        (0.50, 0.40, "front"), (0.49, 0.20, "end"),
    )),
    "van": Body(5.2, 1.98, 2.15, 0.90, 0.56, 0.35, (-0.30, 0.32), (
        (-0.50, 0.16, "rear"), (-0.50, 0.32, "tail"), (-0.50, 0.56, "glass"), (-0.49, 0.88, "head"),
        (-0.47, 0.99, "roof"), (0.24, 1.00, "roof"), (0.30, 0.95, "glass"), (0.42, 0.56, "bonnet"),
        (0.49, 0.44, "nose"), (0.50, 0.28, "front"), (0.49, 0.14, "end"),
    )),
    "bus": Body(10.5, 2.5, 3.2, 0.98, 0.56, 0.50, (-0.26, 0.30), (
        (-0.50, 0.12, "rear"), (-0.50, 0.24, "tail"), (-0.50, 0.52, "glass"), (-0.50, 0.86, "head"),
        (-0.49, 1.00, "roof"), (0.47, 1.00, "roof"), (0.49, 0.84, "glass"), (0.50, 0.36, "nose"),
        (0.50, 0.24, "front"), (0.50, 0.12, "end"),
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Car:
    """A car by its middle, the way it heads (0 is away from the camera) and its looks."""

    body: Body
    across: Number
    along: Number
    heading: Number
    paint: Tint
    glass: Tint
    lights_on: bool


Spot = Callable[[Number, Number, Number], Tint]


def _spots(car: Car) -> Spot:
    """Points of a body from ratios (forward, side, up); side is -1 on the left wall, 1 right."""
    body, ahead, aside = car.body, sin(car.heading), cos(car.heading)
    lean = (1 - body.roof) / (1 - body.belt)
    taper = 1.0 if body.length > 8 else 0.94

    def spot(forward: Number, side: Number, up: Number) -> Tint:
        out = side * 0.5 * body.width
        if up > body.belt:
            out *= 1 - (up - body.belt) * lean
        if not -0.45 < forward < 0.45:
            out *= taper
        front = forward * body.length
        x, z = car.across + front * ahead + out * aside, car.along + front * aside - out * ahead
        return x, up * body.height, z

    return spot


def draw_car(canvas: Canvas, car: Car) -> None:
    """A car, faces turned away left out and the rest painted from far to near."""
    body, camera = car.body, canvas.camera
    x, _ = camera.project(car.across, 0, car.along)
    span = 1.2 * body.length * camera.focal / car.along
    if not -span < x < camera.width + span:
        return
    if 1.5 * camera.focal / car.along < 7 * camera.width / 384:
        _draw_far_car(canvas, car)
        return
    spot = _spots(car)
    for end in (-1, 1):  # dark gap between the tyres, and the tyres
        gap = [spot(0.44 * end, s, u) for s, u in ((-1, 0.09), (1, 0.09), (1, 0.3), (-1, 0.3))]
        canvas.solid(gap, (24, 24, 26), CAR)
        for side in (-1, 1):
            corners = ((side, 0), (0.72 * side, 0), (0.72 * side, 0.3), (side, 0.3))
            tyre = [spot(body.axles[end > 0], s, u) for s, u in corners]
            canvas.solid(tyre, (26, 26, 28), CAR)
    faces: list[tuple[Number, str, list[Tint], Point]] = []
    for (f0, u0, kind), (f1, u1, _) in pairwise(body.profile):
        quad = [spot(f0, -1, u0), spot(f0, 1, u0), spot(f1, 1, u1), spot(f1, -1, u1)]
        faces.append((sum(p[2] for p in quad) / 4, kind, quad, (f1 - f0, u1 - u0)))
    for side, kind in ((-1, "left"), (1, "right")):
        wall = [spot(f, side, u) for f, u, _ in body.profile]
        faces.append((spot(0, side, 0.5)[2], kind, wall, (0, 0)))
    for _, kind, points, slope in sorted(faces, key=lambda face: -face[0]):
        flat = [camera.project(*p) for p in points]
        ring = zip(flat, flat[1:] + flat[:1], strict=True)
        clockwise = sum(a[0] * b[1] - b[0] * a[1] for a, b in ring) > 0
        if kind in ("left", "right"):
            if clockwise == (kind == "right"):
                _draw_side(canvas, car, points, spot, 1 if kind == "right" else -1)
        elif not clockwise:
            _draw_strip(canvas, car, kind, points, slope)


def _draw_far_car(canvas: Canvas, car: Car) -> None:
    """A car a few pixels high: tyres, body and windows."""
    body = car.body
    wide = body.width * (0.5 + 0.6 * abs(sin(car.heading)))
    dark: Tint = (26, 26, 28)
    for low, high, share, tint in (
        (0.0, 0.3, 0.9, dark),
        (0.16, 0.66, 1.0, car.paint),
        (0.66, 1.0, body.roof, car.glass),
    ):
        outline = [
            (car.across + s * wide * k, up * body.height, car.along)
            for s, up, k in ((-1, low, 1), (1, low, 1), (1, high, share), (-1, high, share))
        ]
        canvas.solid(outline, tint, CAR)


def _draw_strip(canvas: Canvas, car: Car, kind: str, quad: list[Tint], slope: Point) -> None:
    """One strip of the body across its width, with the window, lamps and plate it carries."""
    size = hypot(*slope) or 1.0
    level, steep = slope[0] / size, -slope[1] / size
    normal = (steep * sin(car.heading), level, steep * cos(car.heading))
    (r, g, b), low = car.paint, 0.7 if kind in ("rear", "front") else 1.0
    canvas.solid(quad, (low * r, low * g, low * b), CAR, normal)

    def part(left: Number, right: Number, bottom: Number, top: Number, tint: Tint) -> None:
        corners = []
        for a, b in ((left, bottom), (right, bottom), (right, top), (left, top)):
            foot = [p + (q - p) * a for p, q in zip(quad[0], quad[1], strict=True)]
            head = [p + (q - p) * a for p, q in zip(quad[3], quad[2], strict=True)]
            x, y, z = (p + (q - p) * b for p, q in zip(foot, head, strict=True))
            corners.append((x, y, z))
        canvas.solid(corners, tint, CAR, normal)

    if kind == "glass":
        r, g, b = car.glass
        part(0.07, 0.93, 0.04, 0.92, car.glass)
        part(0.1, 0.9, 0.6, 0.88, (1.2 * r + 8, 1.2 * g + 9, 1.2 * b + 12))
    if car.along > 0.15 * canvas.camera.focal:
        return  # the rest is smaller than a pixel
    glow = 1.0 if car.lights_on else 0.62
    if kind == "tail":
        for left in (0.02, 0.86):
            part(left, left + 0.12, 0.3, 0.98, (215 * glow, 36 * glow, 30 * glow))
        part(0.4, 0.6, 0.2, 0.48, (200, 184, 96))
    elif kind == "rear":
        part(0.0, 1.0, 0.0, 0.25, (35, 35, 38))
    elif kind == "nose":
        for left in (0.03, 0.77):
            part(left, left + 0.2, 0.15, 0.85, (250 * glow, 248 * glow, 236 * glow))
        part(0.28, 0.72, 0.1, 0.8, (40, 40, 44))
    elif kind == "front":
        part(0.36, 0.64, 0.35, 0.75, (222, 220, 208))
        part(0.1, 0.9, 0.0, 0.22, (35, 35, 38))


def _panes(body: Body) -> list[tuple[Number, Number, Number, Number]]:
    """The side windows: from and to along their lower edge, and along their upper one."""
    if body is BODIES["bus"]:
        starts = [-0.46 + 0.19 * i for i in range(5)]
        return [(start, start + 0.17, start, start + 0.17) for start in starts]
    if body is BODIES["van"]:
        return [(0.16, 0.37, 0.16, 0.28)]
    roof = [f for f, up, _ in body.profile if up > 0.9]
    back, front = roof[0] + 0.05, roof[-1] - 0.02
    middle = 0.5 * (back + front) + 0.02
    return [
        (back - 0.04, middle - 0.012, back + 0.01, middle - 0.012),
        (middle + 0.012, front + 0.13, middle + 0.012, front),
    ]


def _draw_side(canvas: Canvas, car: Car, wall: list[Tint], spot: Spot, side: int) -> None:
    """The side of a car: two-tone flank, windows and wheels."""
    body = car.body
    normal = (side * cos(car.heading), 0.25, -side * sin(car.heading))
    r, g, b = car.paint
    canvas.solid(wall, car.paint, CAR, normal)
    sill = [spot(f, side, u) for f, u in ((-0.49, 0.2), (0.49, 0.18), (0.5, 0.4), (-0.5, 0.4))]
    canvas.solid(sill, (0.72 * r, 0.72 * g, 0.72 * b), CAR, normal)
    low, high = (0.67, 0.92) if body.belt > 0.6 else (0.57, 0.86)
    for b0, b1, t0, t1 in _panes(body):
        pane = [spot(f, side, u) for f, u in ((b0, low), (b1, low), (t1, high), (t0, high))]
        canvas.solid(pane, car.glass, CAR, normal)
    if canvas.camera.focal / car.along < 4:
        return
    for axle in body.axles:
        for radius, grey in ((1.12 * body.wheel, 25), (0.6 * body.wheel, 130)):
            turns = [i * pi / 6 for i in range(12)]
            rim = [
                spot(
                    axle + radius * cos(turn) / body.length,
                    side * 1.01,
                    (body.wheel + radius * sin(turn)) / body.height,
                )
                for turn in turns
            ]
            canvas.solid(rim, (grey, grey, grey + 2), CAR, normal)


def _place(
    x: Number, z: Number, heading: Number, forward: Number, side: Number, up: Number
) -> Tint:
    s, c = sin(heading), cos(heading)
    return x + forward * s + side * c, up, z + forward * c - side * s


@dataclass(frozen=True)
class Person:
    """Someone on foot or on a bicycle, and what they wear."""

    across: Number
    along: Number
    heading: Number
    height: Number
    stride: Number
    top: Tint
    bottom: Tint
    skin: Tint
    hair: Tint
    long_coat: bool
    bag: bool


def draw_pedestrian(canvas: Canvas, person: Person) -> None:
    """Someone walking or standing: legs, coat, arms, head."""
    k = person.height / 1.75

    def spot(forward: Number, side: Number, up: Number) -> Tint:
        x, y, z = _place(person.across, person.along, person.heading, k * forward, k * side, k * up)
        return x, y, person.along + 0.2 * (z - person.along)

    step = 0.34 * person.stride
    shoe = (38.0, 34.0, 32.0)
    for side, swing in ((-1, step), (1, -step)):
        hip, foot = spot(0, 0.09 * side, 0.9), spot(swing, 0.1 * side, 0.06)
        knee = spot(0.5 * swing + 0.06, 0.1 * side, 0.48)
        canvas.limb(hip, knee, 0.17 * k, person.bottom, PEDESTRIAN)
        canvas.limb(knee, foot, 0.13 * k, person.bottom, PEDESTRIAN)
        canvas.limb(foot, spot(swing + 0.14, 0.1 * side, 0.04), 0.09 * k, shoe, PEDESTRIAN)
    r, g, b = person.top
    dark = (0.8 * r, 0.8 * g, 0.8 * b)
    canvas.limb(spot(-0.2 * step, 0.25, 1.0), spot(0, 0.2, 1.38), 0.1 * k, dark, PEDESTRIAN)
    for shift in (-0.09, 0.09):
        low = 0.55 if person.long_coat else 0.92
        canvas.limb(spot(0, shift, 1.36), spot(0, shift, low), 0.24 * k, person.top, PEDESTRIAN)
    for side in (-1, 1):
        hand = spot(-0.7 * side * step, 0.25 * side, 0.9)
        elbow = spot(-0.3 * side * step - 0.03, 0.25 * side, 1.13)
        canvas.limb(spot(0, 0.21 * side, 1.38), elbow, 0.1 * k, dark, PEDESTRIAN)
        canvas.limb(elbow, hand, 0.085 * k, dark, PEDESTRIAN)
    if person.bag:
        canvas.limb(
            spot(-0.16, 0.05, 1.3), spot(-0.16, 0.05, 1.05), 0.24 * k, person.hair, PEDESTRIAN
        )
    _draw_head(canvas, person, spot(0.02, 0, 1.62), k, PEDESTRIAN)


def _draw_head(canvas: Canvas, person: Person, at: Tint, k: Number, label: int) -> None:
    x, y = canvas.camera.project(*at)
    size = 0.105 * k * canvas.camera.focal / at[2]
    light = canvas.light
    canvas.limb((at[0], at[1] - 0.2 * k, at[2]), at, 0.1 * k, person.skin, label)
    canvas.disc(x, y, max(0.5, size), max(0.6, 1.2 * size), light.seen(person.skin, at[2]), label)
    hair = light.seen(person.hair, at[2])
    if cos(person.heading) > 0.2:  # seen from behind
        canvas.disc(x, y - 0.25 * size, size, size, hair, label)
    else:
        canvas.disc(x, y - 0.7 * size, size, 0.6 * size, hair, label)


def draw_bicycle(
    canvas: Canvas, across: Number, along: Number, heading: Number, frame: Tint, label: int
) -> None:
    """A bicycle: two wheels, the frame between them, handlebars."""

    def spot(forward: Number, side: Number, up: Number) -> Tint:
        return _place(across, along, heading, forward, side, up)

    tyre, thin = (30.0, 30.0, 32.0), max(0.04, 0.6 * along / canvas.camera.focal)
    for axle in (-0.52, 0.52):
        rim = [
            spot(axle + 0.34 * cos(i * pi / 6), 0, 0.34 + 0.34 * sin(i * pi / 6)) for i in range(12)
        ]
        # the labels take the whole wheel, the image shows the street between the spokes
        canvas.relabel_outline([canvas.camera.project(*p) for p in rim], label)
        for a, b in zip(rim, rim[1:] + rim[:1], strict=True):
            canvas.limb(a, b, thin, tyre, label)
    seat, crank = (-0.2, 0.92), (-0.05, 0.3)
    for (f0, u0), (f1, u1) in (
        (seat, crank),
        (crank, (0.38, 0.8)),
        (seat, (0.36, 0.86)),
        (crank, (-0.52, 0.34)),
        ((-0.52, 0.34), (-0.17, 0.8)),
        ((0.36, 0.98), (0.52, 0.34)),
    ):
        canvas.limb(spot(f0, 0, u0), spot(f1, 0, u1), 1.1 * thin, frame, label)
    canvas.limb(spot(0.42, -0.25, 1.0), spot(0.42, 0.25, 1.0), thin, tyre, label)


def draw_cyclist(canvas: Canvas, person: Person, frame: Tint) -> None:
    """Someone riding a bicycle: pedalling legs, arms on the bars."""

    def spot(forward: Number, side: Number, up: Number) -> Tint:
        return _place(person.across, person.along, person.heading, forward, side, up)

    k = person.height / 1.75
    draw_bicycle(canvas, person.across, person.along, person.heading, frame, BICYCLIST)
    swing = 0.17 * person.stride
    for side, up in ((-1, 0.3 + swing), (1, 0.3 - swing)):
        hip, foot = spot(-0.2, 0.1 * side, 0.96), spot(0.0, 0.11 * side, up)
        knee = spot(0.2, 0.14 * side, 0.55 + 0.5 * (up - 0.1))
        canvas.limb(hip, knee, 0.17 * k, person.bottom, BICYCLIST)
        canvas.limb(knee, foot, 0.12 * k, person.bottom, BICYCLIST)
    r, g, b = person.top
    for shift in (-0.08, 0.08):
        canvas.limb(
            spot(-0.2, shift, 0.98), spot(0.12, shift, 1.42), 0.25 * k, person.top, BICYCLIST
        )
    for side in (-1, 1):
        shoulder, grip = spot(0.12, 0.19 * side, 1.4), spot(0.4, 0.24 * side, 1.03)
        canvas.limb(shoulder, grip, 0.09 * k, (0.8 * r, 0.8 * g, 0.8 * b), BICYCLIST)
    _draw_head(canvas, person, spot(0.2, 0, 1.64), k, BICYCLIST)
