"""What stands about in a street scene: posts, signs, boards and bins."""

from paumer.scenes.canvas import POLE, SIGN, VOID, Canvas, Number, Point, Tint


def draw_lamp_post(
    canvas: Canvas, across: Number, along: Number, height: Number, reach: Number, tint: Tint
) -> None:
    """A street light: a tapering post, and an arm of `reach` metres with its lamp."""
    outline = [
        (across + w, u, along) for w, u in ((-0.09, 0), (0.09, 0), (0.05, height), (-0.05, height))
    ]
    canvas.solid(outline, tint, POLE)
    canvas.limb((across, 0, along), (across, 1.2, along), 0.22, tint, POLE)
    canvas.limb((across, 0.3, along), (across, height, along), 0.12, tint, POLE)
    if reach:
        tip = (across + reach, height + 0.35, along)
        canvas.limb((across, height, along), tip, 0.1, tint, POLE)
        canvas.limb(tip, (tip[0] + 0.35 * reach, tip[1] + 0.03, along), 0.2, tint, POLE)


def draw_bollard(canvas: Canvas, across: Number, along: Number, tint: Tint) -> None:
    """A waist-high post with a pale band."""
    canvas.limb((across, 0.05, along), (across, 0.95, along), 0.17, tint, POLE)
    canvas.limb((across, 0.78, along), (across, 0.84, along), 0.17, (210, 205, 200), POLE)


def draw_traffic_light(
    canvas: Canvas, across: Number, along: Number, lit: int, tall: Number, tint: Tint
) -> None:
    """A post with a black head of three lamps, the `lit` one shining."""
    canvas.limb((across, 0, along), (across, tall, along), 0.13, tint, POLE)
    width, top = 0.24, tall + 0.5
    plate = [
        (across + s * width, u, along)
        for s, u in ((-1, tall - 0.6), (1, tall - 0.6), (1, top), (-1, top))
    ]
    canvas.solid(plate, (26, 27, 28), SIGN)
    shining = ((255, 50, 40), (255, 180, 40), (70, 255, 130))
    for i, tint_on in enumerate(shining):
        x, y = canvas.camera.project(across, top - 0.2 - 0.35 * i, along)
        size = 0.12 * canvas.camera.focal / along
        canvas.disc(x, y, size, size, tint_on if i == lit else (52, 48, 44), SIGN)


def draw_road_sign(
    canvas: Canvas, across: Number, along: Number, low: Number, size: Number, kind: int, post: Tint
) -> None:
    """A sign on its post: 0 red ring, 1 blue disc, 2 warning triangle, 3 blue plate, 4 no entry."""
    light, focal = canvas.light, canvas.camera.focal
    canvas.limb((across, 0, along), (across, low + 0.4 * size, along), 0.08, post, POLE)
    x, y = canvas.camera.project(across, low + size / 2, along)
    half = max(1.0, 0.5 * size * focal / along)
    white, red, blue, black = (
        (235.0, 233.0, 228.0),
        (200.0, 30.0, 36.0),
        (28.0, 74.0, 160.0),
        (30.0, 30.0, 30.0),
    )
    seen = {name: light.seen(tint, along) for name, tint in
            (("white", white), ("red", red), ("blue", blue), ("black", black))}  # fmt: skip
    if kind == 2:
        for scale, colour in ((1.0, "red"), (0.66, "white")):
            corners = [
                (x, y - 1.05 * half * scale),
                (x + half * scale, y + 0.75 * half * scale),
                (x - half * scale, y + 0.75 * half * scale),
            ]
            canvas.polygon(corners, seen[colour], SIGN)
        canvas.disc(x, y + 0.15 * half, 0.1 * half, 0.3 * half, seen["black"], SIGN)
    elif kind == 3:
        for grow, colour in ((1.0, "white"), (0.9, "blue")):
            w, h = half * grow * 0.8, half * grow * 1.1
            corners = [(x - w, y - h), (x + w, y - h), (x + w, y + h), (x - w, y + h)]
            canvas.polygon(corners, seen[colour], SIGN)
        canvas.disc(x, y - 0.3 * half, 0.32 * half, 0.4 * half, seen["white"], SIGN)
    else:
        outer, inner = {0: ("red", "white"), 1: ("white", "blue"), 4: ("white", "red")}[kind]
        canvas.disc(x, y, half, half, seen[outer], SIGN)
        canvas.disc(x, y, 0.76 * half, 0.76 * half, seen[inner], SIGN)
        if kind == 0:
            canvas.disc(x, y, 0.18 * half, 0.38 * half, seen["black"], SIGN)
        else:
            bar = [
                (x - 0.5 * half, y - 0.14 * half),
                (x + 0.5 * half, y - 0.14 * half),
                (x + 0.5 * half, y + 0.14 * half),
                (x - 0.5 * half, y + 0.14 * half),
            ]
            canvas.polygon(bar, seen["white"], SIGN)


def draw_board(
    canvas: Canvas,
    across: Number,
    along: Number,
    low: Number,
    size: Point,
    tints: tuple[Tint, Tint, Tint],
    image: Number,
) -> None:
    """An advertising board or banner on two posts: an image over lines of writing."""
    width, height = size
    for side in (-0.45, 0.45):
        x = across + side * width
        canvas.limb((x, 0, along), (x, low + 0.2, along), 0.1, (120, 122, 124), POLE)

    def block(left: Number, right: Number, bottom: Number, top: Number, tint: Tint) -> None:
        corners = [
            (across + width * (a - 0.5), low + height * b, along)
            for a, b in ((left, bottom), (right, bottom), (right, top), (left, top))
        ]
        canvas.solid(corners, tint, SIGN)

    block(0.0, 1.0, 0.0, 1.0, (60, 62, 64))
    block(0.04, 0.96, 0.03, 0.97, tints[0])
    block(0.1, 0.9, 0.9 - image, 0.9, tints[1])
    line, end = 0.8 - image, 0.88
    while line > 0.08:
        block(0.12, end, line, line + 0.06, tints[2])
        line, end = line - 0.13, end - 0.11


def draw_bin(canvas: Canvas, across: Number, along: Number, size: Number, tint: Tint) -> None:
    """A litter bin or cabinet; it belongs to no class."""
    r, g, b = tint
    half, deep = 0.4 * size, 0.3 * size
    side = 1 if across < 0 else -1
    for colour, points, normal in (
        (
            (0.8 * r, 0.8 * g, 0.8 * b),
            [(side * half, 0, 0), (side * half, 0, 1), (side * half, 1, 1), (side * half, 1, 0)],
            (side, 0, 0),
        ),
        (tint, [(-half, 0, 0), (half, 0, 0), (1.1 * half, 1, 0), (-1.1 * half, 1, 0)], (0, 0, -1)),
        (
            (1.1 * r, 1.1 * g, 1.1 * b),
            [(-1.1 * half, 1, 0), (1.1 * half, 1, 0), (half, 1, 1), (-half, 1, 1)],
            (0, 1, 0),
        ),
    ):
        outline = [(across + x, size * u, along + 2 * deep * z) for x, u, z in points]
        canvas.solid(outline, colour, VOID, normal)
    lid = [
        (across + x * half, size * u, along)
        for x, u in ((-1.15, 0.86), (1.15, 0.86), (1.15, 0.99), (-1.15, 0.99))
    ]
    canvas.solid(lid, (0.6 * r, 0.6 * g, 0.6 * b), VOID)
