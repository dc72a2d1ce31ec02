"""What moves or stands in a street scene: cars, people, cyclists, posts, signs, odd objects."""

from dataclasses import dataclass
from math import cos, pi, sin

from paumer.data.scenery import (
    BICYCLIST,
    CAR,
    PEDESTRIAN,
    POLE,
    SIGN,
    VOID,
    Canvas,
    Point,
    Tint,
)

# Side views, from the rear bumper over the roof to the front one: (along, up, what the strip
# from here to the next point is). Length 1 and height 1; bodies scale them.
_PROFILES: dict[str, tuple[tuple[float, float, str], ...]] = {
    "hatchback": (
        (-0.49, 0.20, "rear"), (-0.50, 0.40, "tail"), (-0.48, 0.64, "glass"), (-0.38, 0.93, "roof"),
        (-0.15, 1.00, "roof"), (0.10, 0.96, "glass"), (0.27, 0.66, "bonnet"), (0.46, 0.54, "nose"),
        (0.50, 0.38, "front"), (0.49, 0.18, "end"),
    ),
    "saloon": (
        (-0.49, 0.20, "rear"), (-0.50, 0.40, "tail"), (-0.49, 0.62, "boot"), (-0.34, 0.67, "glass"),
        (-0.20, 0.97, "roof"), (0.04, 1.00, "glass"), (0.21, 0.66, "bonnet"), (0.46, 0.53, "nose"),
        (0.50, 0.38, "front"), (0.49, 0.18, "end"),
    ),
    "estate": (
        (-0.49, 0.22, "rear"), (-0.50, 0.42, "tail"), (-0.49, 0.62, "glass"), (-0.44, 0.95, "roof"),
        (-0.20, 1.00, "roof"), (0.10, 0.97, "glass"), (0.25, 0.65, "bonnet"), (0.46, 0.57, "nose"),
        (0.50, 0.40, "front"), (0.49, 0.20, "end"),
    ),
    "van": (
        (-0.50, 0.16, "rear"), (-0.50, 0.32, "tail"), (-0.50, 0.56, "glass"), (-0.49, 0.88, "tail"),
        (-0.47, 0.99, "roof"), (0.24, 1.00, "roof"), (0.30, 0.95, "glass"), (0.42, 0.56, "bonnet"),
        (0.49, 0.44, "nose"), (0.50, 0.28, "front"), (0.49, 0.14, "end"),
    ),
    "bus": (
        (-0.50, 0.12, "rear"), (-0.50, 0.24, "tail"), (-0.50, 0.52, "glass"), (-0.50, 0.86, "tail"),
        (-0.49, 1.00, "roof"), (0.47, 1.00, "roof"), (0.49, 0.84, "glass"), (0.50, 0.36, "nose"),
        (0.50, 0.24, "front"), (0.50, 0.12, "end"),
    ),
}  # fmt: skip
_BODIES = {  # length, width, height, roof width share, wheel radius, axles
    "hatchback": (3.9, 1.70, 1.46, 0.72, 0.31, (-0.31, 0.32)),
    "saloon": (4.5, 1.76, 1.42, 0.70, 0.32, (-0.29, 0.32)),
    "estate": (4.5, 1.84, 1.66, 0.76, 0.36, (-0.29, 0.31)),
    "van": (5.2, 1.98, 2.15, 0.90, 0.35, (-0.30, 0.32)),
    "bus": (10.5, 2.5, 3.2, 0.98, 0.50, (-0.26, 0.30)),
}
BODIES = tuple(_BODIES)


@dataclass(frozen=True)
class Car:
    """A car by its middle, the way it heads (0 is away from the camera) and its looks."""

    body: str
    across: float
    along: float
    heading: float
    paint: Tint
    glass: Tint
    lights_on: bool


def car_size(body: str) -> Point:
    """Length and width of a car in metres."""
    return _BODIES[body][0], _BODIES[body][1]


def _place(x: float, z: float, heading: float, forward: float, side: float, up: float) -> Tint:
    s, c = sin(heading), cos(heading)
    return x + forward * s + side * c, up, z + forward * c - side * s


def draw_car(canvas: Canvas, car: Car) -> None:
    """A car, faces turned away left out and the rest painted from far to near."""
    length, width, height, roof, wheel, axles = _BODIES[car.body]
    profile = _PROFILES[car.body]
    belt = 0.66 if car.body in ("hatchback", "saloon", "estate") else 0.56

    def half(up: float, forward: float) -> float:
        lean = max(0.0, up - belt) / (1 - belt)
        taper = 0.94 if abs(forward) > 0.45 and car.body != "bus" else 1.0
        return 0.5 * width * taper * (1 - lean * (1 - roof))

    def spot(forward: float, side: float, up: float) -> Tint:
        """A point of the body; side is -1 on the left wall and 1 on the right one."""
        return _place(car.across, car.along, car.heading, forward * length,
                      side * half(up, forward), up * height)  # fmt: skip

    def show(points: list[Tint], colour: Tint, normal: Tint) -> None:
        canvas.solid(points, colour, CAR, normal)

    for end in (-1, 1):  # dark gap between the tyres
        ground = [spot(0.44 * end, s, u) for s, u in ((-1, 0.09), (1, 0.09), (1, 0.3), (-1, 0.3))]
        show(ground, (24, 24, 26), (0, 0, -1))
        for s in (-1, 1):
            tyre = [spot(axles[end > 0], t, u) for t, u in
                    ((s, 0.0), (0.72 * s, 0.0), (0.72 * s, 0.3), (s, 0.3))]  # fmt: skip
            show(tyre, (26, 26, 28), (0, 0, -1))
    faces = []
    for (f0, u0, kind), (f1, u1, _) in zip(profile, profile[1:], strict=False):
        quad = [spot(f0, -1, u0), spot(f0, 1, u0), spot(f1, 1, u1), spot(f1, -1, u1)]
        faces.append((sum(p[2] for p in quad) / 4, kind, quad, (f1 - f0, u1 - u0)))
    for side in (-1, 1):
        wall = [spot(f, side, u) for f, u, _ in profile]
        middle = spot(0, side, 0.5)[2]
        faces.append((middle, "left" if side < 0 else "right", wall, (0.0, 0.0)))
    for _, kind, points, slope in sorted(faces, key=lambda face: -face[0]):
        flat = [canvas.camera.project(*p) for p in points]
        turn = sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(flat, flat[1:] + flat[:1], strict=True))
        if kind in ("left", "right"):
            if (turn > 0) == (kind == "right"):
                _draw_side(canvas, car, points, spot, -1 if kind == "left" else 1)
        elif turn < 0:
            _draw_strip(canvas, car, kind, points, slope)


def _draw_strip(canvas: Canvas, car: Car, kind: str, quad: list[Tint], slope: Point) -> None:
    """One strip of the body across its width, with the lamps and plate it carries."""
    s, c = sin(car.heading), cos(car.heading)
    size = (slope[0] ** 2 + slope[1] ** 2) ** 0.5 or 1.0
    normal = (-slope[1] / size * s, slope[0] / size, -slope[1] / size * c)
    colour = car.glass if kind == "glass" else car.paint
    if kind in ("rear", "front"):
        colour = (0.7 * colour[0], 0.7 * colour[1], 0.7 * colour[2])
    canvas.solid(quad, colour, CAR, normal)

    def part(left: float, right: float, low: float, high: float, tint: Tint) -> None:
        corners = []
        for a, b in ((left, low), (right, low), (right, high), (left, high)):
            bottom = [p + (q - p) * a for p, q in zip(quad[0], quad[1], strict=True)]
            top = [p + (q - p) * a for p, q in zip(quad[3], quad[2], strict=True)]
            x, y, z = (p + (q - p) * b for p, q in zip(bottom, top, strict=True))
            corners.append((x, y, z))
        canvas.solid(corners, tint, CAR, normal)

    glow = 1.0 if car.lights_on else 0.62
    if kind == "tail" and quad[0][1] < 1.3:
        for left in (0.03, 0.81):
            part(left, left + 0.16, 0.25, 0.95, (225 * glow, 40 * glow, 32 * glow))
        part(0.37, 0.63, 0.15, 0.5, (214, 190, 80))
    elif kind == "rear":
        part(0.0, 1.0, 0.0, 0.25, (35, 35, 38))
    elif kind == "nose":
        for left in (0.02, 0.76):
            part(left, left + 0.22, 0.1, 0.95, (250 * glow, 248 * glow, 236 * glow))
        part(0.28, 0.72, 0.1, 0.8, (40, 40, 44))
    elif kind == "front":
        part(0.36, 0.64, 0.35, 0.75, (222, 220, 208))
        part(0.1, 0.9, 0.0, 0.22, (35, 35, 38))
    elif kind == "glass":
        r, g, b = car.glass
        part(0.05, 0.95, 0.62, 0.95, (1.5 * r + 12, 1.5 * g + 14, 1.5 * b + 18))


def _draw_side(canvas: Canvas, car: Car, wall: list[Tint], spot: object, side: int) -> None:
    """The side of a car: two-tone flank, windows, pillars and wheels."""
    assert callable(spot)
    length, _, height, _, wheel, axles = _BODIES[car.body]
    normal = (side * cos(car.heading), 0.25, -side * sin(car.heading))
    r, g, b = car.paint
    canvas.solid(wall, car.paint, CAR, normal)
    sill = [spot(f, side, u) for f, u in ((-0.49, 0.2), (0.49, 0.18), (0.5, 0.4), (-0.5, 0.4))]
    canvas.solid(sill, (0.72 * r, 0.72 * g, 0.72 * b), CAR, normal)
    profile = _PROFILES[car.body]
    roof = [(f, u) for f, u, _ in profile if u > 0.9]
    if car.body == "bus":
        panes = [(-0.46 + 0.19 * i, -0.29 + 0.19 * i, -0.46 + 0.19 * i, -0.29 + 0.19 * i)
                 for i in range(5)]  # fmt: skip
        low, high = 0.52, 0.84
    else:
        back, front = roof[0][0] + 0.05, roof[-1][0] - 0.02
        low, high = (0.67, 0.92) if car.body != "van" else (0.58, 0.9)
        middle = 0.5 * (back + front) + 0.02
        panes = [(back - 0.04, middle - 0.012, back + 0.01, middle - 0.012),
                 (middle + 0.012, front + 0.13, middle + 0.012, front)]  # fmt: skip
        if car.body == "van":
            panes = [(0.16, 0.37, 0.16, 0.28)]
    for b0, b1, t0, t1 in panes:
        pane = [spot(f, side, u) for f, u in ((b0, low), (b1, low), (t1, high), (t0, high))]
        canvas.solid(pane, car.glass, CAR, normal)
    for axle in axles:
        for radius, tint in ((1.15 * wheel, (20, 20, 22)), (wheel, (32, 32, 34)),
                             (0.6 * wheel, (128, 130, 134))):  # fmt: skip
            rim = [spot(axle + radius * cos(a) / length, side * 1.01,
                        (wheel + radius * sin(a)) / height)
                   for a in (i * pi / 7 for i in range(14))]  # fmt: skip
            canvas.solid(rim, tint, CAR, normal)


@dataclass(frozen=True)
class Person:
    """Someone on foot or on a bicycle, and what they wear."""

    across: float
    along: float
    heading: float
    height: float
    stride: float
    top: Tint
    bottom: Tint
    skin: Tint
    hair: Tint
    long_coat: bool
    bag: bool


def draw_pedestrian(canvas: Canvas, person: Person) -> None:
    """Someone walking or standing: legs, coat, arms, head."""
    k = person.height / 1.75

    def spot(forward: float, side: float, up: float) -> Tint:
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
    for side in (-0.09, 0.09):
        low = 0.55 if person.long_coat else 0.92
        canvas.limb(spot(0, side, 1.36), spot(0, side, low), 0.24 * k, person.top, PEDESTRIAN)
    for side in (-1, 1):
        hand = spot(-0.7 * side * step, 0.25 * side, 0.9)
        elbow = spot(-0.3 * side * step - 0.03, 0.25 * side, 1.13)
        canvas.limb(spot(0, 0.21 * side, 1.38), elbow, 0.1 * k, dark, PEDESTRIAN)
        canvas.limb(elbow, hand, 0.085 * k, dark, PEDESTRIAN)
    if person.bag:
        canvas.limb(spot(-0.16, 0.05, 1.3), spot(-0.16, 0.05, 1.05), 0.24 * k, person.hair,
                    PEDESTRIAN)  # fmt: skip
    _draw_head(canvas, person, spot(0.02, 0, 1.62), k, PEDESTRIAN)


def _draw_head(canvas: Canvas, person: Person, at: Tint, k: float, label: int) -> None:
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


def draw_cyclist(canvas: Canvas, person: Person, frame: Tint) -> None:
    """Someone riding a bicycle: two wheels, frame, pedalling legs, arms on the bars."""

    def spot(forward: float, side: float, up: float) -> Tint:
        return _place(person.across, person.along, person.heading, forward, side, up)

    k, tyre = person.height / 1.75, (30.0, 30.0, 32.0)
    thin = max(0.04, 1.2 * person.along / canvas.camera.focal / 2)
    for axle in (-0.52, 0.52):
        rim = [spot(axle + 0.34 * cos(i * pi / 6), 0, 0.34 + 0.34 * sin(i * pi / 6))
               for i in range(12)]  # fmt: skip
        # the labels take the whole wheel, the picture shows the street between the spokes
        canvas.polygon([canvas.camera.project(*p) for p in rim], None, BICYCLIST)
        for a, b in zip(rim, rim[1:] + rim[:1], strict=True):
            canvas.limb(a, b, thin, tyre, BICYCLIST)
    seat, crank = (-0.2, 0.92), (-0.05, 0.3)
    for (f0, u0), (f1, u1) in (
        (seat, crank), (crank, (0.38, 0.8)), (seat, (0.36, 0.86)), (crank, (-0.52, 0.34)),
        ((-0.52, 0.34), (-0.17, 0.8)), ((0.36, 0.98), (0.52, 0.34)),
    ):  # fmt: skip
        canvas.limb(spot(f0, 0, u0), spot(f1, 0, u1), 1.1 * thin, frame, BICYCLIST)
    canvas.limb(spot(0.42, -0.25, 1.0), spot(0.42, 0.25, 1.0), thin, tyre, BICYCLIST)
    swing = 0.17 * person.stride
    for side, up in ((-1, 0.3 + swing), (1, 0.3 - swing)):
        hip, foot = spot(-0.2, 0.1 * side, 0.96), spot(0.0, 0.11 * side, up)
        knee = spot(0.2, 0.14 * side, 0.55 + 0.5 * (up - 0.1))
        canvas.limb(hip, knee, 0.17 * k, person.bottom, BICYCLIST)
        canvas.limb(knee, foot, 0.12 * k, person.bottom, BICYCLIST)
    r, g, b = person.top
    for side in (-0.08, 0.08):
        canvas.limb(spot(-0.2, side, 0.98), spot(0.12, side, 1.42), 0.25 * k, person.top, BICYCLIST)
    for side in (-1, 1):
        shoulder, grip = spot(0.12, 0.19 * side, 1.4), spot(0.4, 0.24 * side, 1.03)
        canvas.limb(shoulder, grip, 0.09 * k, (0.8 * r, 0.8 * g, 0.8 * b), BICYCLIST)
    _draw_head(canvas, person, spot(0.2, 0, 1.64), k, BICYCLIST)


def draw_lamp_post(
    canvas: Canvas, across: float, along: float, height: float, reach: float, tint: Tint
) -> None:
    """A street light: a tapering post, and an arm of `reach` metres with its lamp."""
    outline = [(across + w, u, along) for w, u in
               ((-0.09, 0), (0.09, 0), (0.05, height), (-0.05, height))]  # fmt: skip
    canvas.solid(outline, tint, POLE)
    canvas.limb((across, 0, along), (across, 1.2, along), 0.22, tint, POLE)
    canvas.limb((across, 0.3, along), (across, height, along), 0.12, tint, POLE)
    if reach:
        tip = (across + reach, height + 0.35, along)
        canvas.limb((across, height, along), tip, 0.1, tint, POLE)
        canvas.limb(tip, (tip[0] + 0.35 * reach, tip[1] + 0.03, along), 0.2, tint, POLE)


def draw_bollard(canvas: Canvas, across: float, along: float, tint: Tint) -> None:
    """A waist-high post with a pale band."""
    canvas.limb((across, 0.05, along), (across, 0.95, along), 0.17, tint, POLE)
    canvas.limb((across, 0.78, along), (across, 0.84, along), 0.17, (210, 205, 200), POLE)


def draw_traffic_light(
    canvas: Canvas, across: float, along: float, lit: int, tall: float, tint: Tint
) -> None:
    """A post with a black head of three lamps, the `lit` one shining."""
    canvas.limb((across, 0, along), (across, tall, along), 0.13, tint, POLE)
    width, top = 0.24, tall + 0.5
    plate = [(across + s * width, u, along) for s, u in
             ((-1, tall - 0.6), (1, tall - 0.6), (1, top), (-1, top))]  # fmt: skip
    canvas.solid(plate, (26, 27, 28), SIGN)
    shining = ((255, 50, 40), (255, 180, 40), (70, 255, 130))
    for i, tint_on in enumerate(shining):
        x, y = canvas.camera.project(across, top - 0.2 - 0.35 * i, along)
        size = 0.12 * canvas.camera.focal / along
        canvas.disc(x, y, size, size, tint_on if i == lit else (52, 48, 44), None)


def draw_road_sign(
    canvas: Canvas, across: float, along: float, low: float, size: float, kind: int, post: Tint
) -> None:
    """A sign on its post: 0 red ring, 1 blue disc, 2 warning triangle, 3 blue plate, 4 no entry."""
    light, focal = canvas.light, canvas.camera.focal
    canvas.limb((across, 0, along), (across, low + 0.4 * size, along), 0.08, post, POLE)
    x, y = canvas.camera.project(across, low + size / 2, along)
    half = max(1.0, 0.5 * size * focal / along)
    white, red, blue, black = ((235.0, 233.0, 228.0), (200.0, 30.0, 36.0), (28.0, 74.0, 160.0),
                               (30.0, 30.0, 30.0))  # fmt: skip
    seen = {name: light.seen(tint, along) for name, tint in
            (("white", white), ("red", red), ("blue", blue), ("black", black))}  # fmt: skip
    if kind == 2:
        for scale, colour in ((1.0, "red"), (0.66, "white")):
            corners = [(x, y - 1.05 * half * scale), (x + half * scale, y + 0.75 * half * scale),
                       (x - half * scale, y + 0.75 * half * scale)]  # fmt: skip
            canvas.polygon(corners, seen[colour], SIGN if scale == 1 else None)
        canvas.disc(x, y + 0.15 * half, 0.1 * half, 0.3 * half, seen["black"], None)
    elif kind == 3:
        for grow, colour in ((1.0, "white"), (0.9, "blue")):
            w, h = half * grow * 0.8, half * grow * 1.1
            corners = [(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)]
            canvas.polygon(corners, seen[colour], SIGN)
        canvas.disc(x, y - 0.3 * half, 0.32 * half, 0.4 * half, seen["white"], None)
    else:
        outer, inner = {0: ("red", "white"), 1: ("white", "blue"), 4: ("white", "red")}[kind]
        canvas.disc(x, y, half, half, seen[outer], SIGN)
        canvas.disc(x, y, 0.76 * half, 0.76 * half, seen[inner], None)
        if kind == 0:
            canvas.disc(x, y, 0.18 * half, 0.38 * half, seen["black"], None)
        else:
            bar = [(x - 0.5 * half, y - 0.14 * half), (x + 0.5 * half, y - 0.14 * half),
                   (x + 0.5 * half, y + 0.14 * half), (x - 0.5 * half, y + 0.14 * half)]  # fmt: skip
            canvas.polygon(bar, seen["white"], None)


def draw_board(
    canvas: Canvas,
    across: float,
    along: float,
    low: float,
    size: Point,
    tints: tuple[Tint, Tint, Tint],
    posts: bool,
) -> None:
    """An advertising board, banner or direction sign: a ground, a block and lines of writing."""
    width, height = size
    if posts:
        for side in (-0.45, 0.45):
            x = across + side * width
            canvas.limb((x, 0, along), (x, low + 0.2, along), 0.1, (120, 122, 124), POLE)

    def block(left: float, right: float, bottom: float, top: float, tint: Tint) -> None:
        corners = [(across + width * (a - 0.5), low + height * b, along)
                   for a, b in ((left, bottom), (right, bottom), (right, top), (left, top))]  # fmt: skip
        canvas.solid(corners, tint, SIGN)

    block(0, 1, 0, 1, (60, 62, 64))
    block(0.04, 0.96, 0.03, 0.97, tints[0])
    block(0.12, 0.88, 0.5, 0.88, tints[1])
    for i in range(3):
        block(0.14, 0.86 - 0.13 * i, 0.34 - 0.12 * i, 0.4 - 0.12 * i, tints[2])


def draw_bin(canvas: Canvas, across: float, along: float, size: float, tint: Tint) -> None:
    """A litter bin or cabinet; it belongs to no class."""
    r, g, b = tint
    half, deep = 0.4 * size, 0.3 * size
    side = 1 if across < 0 else -1
    for colour, points, normal in (
        ((0.8 * r, 0.8 * g, 0.8 * b), [(side * half, 0, 0), (side * half, 0, 1),
                                       (side * half, 1, 1), (side * half, 1, 0)], (side, 0, 0)),
        (tint, [(-half, 0, 0), (half, 0, 0), (1.1 * half, 1, 0), (-1.1 * half, 1, 0)], (0, 0, -1)),
        ((1.1 * r, 1.1 * g, 1.1 * b), [(-1.1 * half, 1, 0), (1.1 * half, 1, 0),
                                       (half, 1, 1), (-half, 1, 1)], (0, 1, 0)),
    ):  # fmt: skip
        outline = [(across + x, size * u, along + 2 * deep * z) for x, u, z in points]
        canvas.solid(outline, colour, VOID, normal)
