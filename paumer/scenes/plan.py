"""The plan of a street from random numbers: its sides, its furniture, who and what is on it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import cos, pi, sin

from paumer.scenes.canvas import VOID, Canvas, Light, Number, Tint
from paumer.scenes.frontage import add_barrier, build_side, choose_plan
from paumer.scenes.furniture import (
    draw_bin,
    draw_board,
    draw_bollard,
    draw_lamp_post,
    draw_road_sign,
    draw_traffic_light,
)
from paumer.scenes.street import Numbers, Street, between, paint_road, pick, plan_ground
from paumer.scenes.traffic import (
    BODIES,
    Car,
    Person,
    draw_bicycle,
    draw_car,
    draw_cyclist,
    draw_pedestrian,
)


def lay_out_street(numbers: Numbers, light: Light) -> Street:
    """A whole street, ready to be drawn."""
    plans = {side: choose_plan(numbers) for side in (-1, 1)}
    ground = plan_ground(numbers, (plans[-1].garden, plans[1].garden))
    street = Street(ground, light)
    for side, plan in plans.items():
        build_side(numbers, street, side, plan)
    paint_road(numbers, street)
    for side in (-1, 1):
        _add_posts(numbers, street, side)
        _add_clutter(numbers, street, side)
    _add_riders(numbers, street)
    _add_parked_cars(numbers, street)
    _add_moving_cars(numbers, street)
    _add_walkers(numbers, street)
    return street


def _stand(street: Street, along: Number, draw: Callable[[Canvas], None]) -> None:
    street.things.append((along, draw))


def _add_posts(numbers: Numbers, street: Street, side: int) -> None:
    """Street lights, road signs, traffic lights and bollards along one kerb."""
    kerb, junction = street.edge(side), street.ground.junction
    steel = pick(numbers, (118, 122, 122), (70, 74, 74), (48, 60, 54), (156, 158, 156))
    if numbers.random() < 0.72:
        along, gap = between(numbers, 7, 24), between(numbers, 18, 32)
        tall, x = between(numbers, 5.5, 9), kerb + side * between(numbers, 0.4, 0.9)
        reach = -side * between(numbers, 0.8, 2.0)
        while along < 120:
            _stand(
                street,
                along,
                partial(
                    draw_lamp_post, across=x, along=along, height=tall, reach=reach, tint=steel
                ),
            )
            street.cast([(x - 0.06, along), (x + 0.06, along)], tall)
            along += gap
    for _ in range(int(2.8 * numbers.random())):
        along, x = between(numbers, 6, 42), kerb + side * between(numbers, 0.4, 1.0)
        low, size = between(numbers, 1.9, 2.5), between(numbers, 0.65, 1.1)
        kind = int(5 * numbers.random())
        _stand(
            street,
            along,
            partial(
                draw_road_sign, across=x, along=along, low=low, size=size, kind=kind, post=steel
            ),
        )
    if junction is not None and numbers.random() < 0.7:
        for along in (junction[0] - 1.0, junction[1] + 1.0):
            lit, x = int(3 * numbers.random()), kerb + side * 0.5
            _stand(
                street,
                along,
                partial(draw_traffic_light, across=x, along=along, lit=lit, tall=2.6, tint=steel),
            )
    if numbers.random() < 0.2:
        along, gap, x = between(numbers, 5, 15), between(numbers, 1.5, 2.6), kerb + side * 0.35
        for _ in range(2 + int(8 * numbers.random())):
            _stand(street, along, partial(draw_bollard, across=x, along=along, tint=steel))
            along += gap


def _add_clutter(numbers: Numbers, street: Street, side: int) -> None:
    """Boards, railings at the kerb, bins and bicycles left on the pavement."""
    kerb, border = street.edge(side), street.border(side)
    if numbers.random() < 0.45:
        _add_boards(numbers, street, side)
    if numbers.random() < 0.26:
        start = between(numbers, 4, 14)
        span = (start, start + between(numbers, 8, 30))
        tall = between(numbers, 0.9, 1.15)
        add_barrier(numbers, street, kerb + side * 0.4, span, tall, "railings")
    for _ in range(int(2.2 * numbers.random())):
        along, x = between(numbers, 6, 40), border - side * between(numbers, 0.3, 0.9)
        tint = pick(numbers, (50, 62, 54), (60, 60, 64), (44, 46, 50), (60, 84, 70), (150, 124, 60))
        size = between(numbers, 0.8, 1.3)
        _stand(street, along, partial(draw_bin, across=x, along=along, size=size, tint=tint))
    if numbers.random() < 0.3:
        along = between(numbers, 6, 30)
        for _ in range(1 + int(4 * numbers.random())):
            turn, frame = pi / 2 + between(numbers, -0.9, 0.9), pick(numbers, *_FRAMES)
            _stand(
                street,
                along,
                partial(
                    draw_bicycle,
                    across=border - side * 0.4,
                    along=along,
                    heading=turn,
                    frame=frame,
                    label=VOID,
                ),
            )
            along += 0.9


def _add_boards(numbers: Numbers, street: Street, side: int) -> None:
    """Advertising boards on the pavement and banners over it."""
    for _ in range(1 + int(2.5 * numbers.random())):
        along = 8 + 28 * float(numbers.random()) ** 1.3
        tints = (
            pick(numbers, (38, 64, 124), (160, 48, 46), (222, 219, 211), (48, 104, 72)),
            pick(numbers, (214, 120, 60), (236, 232, 222), (70, 138, 172), (210, 184, 84)),
            pick(numbers, (236, 234, 226), (40, 40, 44)),
        )
        high = numbers.random() < 0.5
        low = between(numbers, 2.6, 3.6) if high else between(numbers, 0.3, 1.0)
        _stand(
            street,
            along,
            partial(
                draw_board,
                across=street.border(side) - side * between(numbers, 0.5, 1.0),
                along=along,
                low=low,
                size=(between(numbers, 0.8, 1.6), between(numbers, 1.2, 2.4)),
                tints=tints,
                image=between(numbers, 0.15, 0.6),
            ),
        )


_PAINTS: tuple[Tint, ...] = (
    (190, 192, 196),
    (222, 222, 220),
    (40, 42, 46),
    (92, 96, 102),
    (130, 28, 30),
    (34, 54, 104),
    (120, 126, 130),
    (60, 80, 74),
    (168, 150, 116),
    (74, 92, 118),
)


def _add_car(
    numbers: Numbers, street: Street, across: Number, along: Number, heading: Number
) -> None:
    shares = (("hatchback", 0.4), ("saloon", 0.62), ("estate", 0.86), ("van", 0.96), ("bus", 1.0))
    kind = numbers.random()
    body = BODIES[next(name for name, share in shares if kind < share)]
    length, width = body.length, body.width
    along = max(along, 1.2 * length)  # not through the windscreen
    car = Car(
        body=body,
        across=across,
        along=along,
        heading=heading,
        paint=pick(numbers, *_PAINTS),
        glass=pick(numbers, (44, 50, 56), (70, 82, 92), (30, 32, 36), (96, 106, 112)),
        lights_on=bool(numbers.random() < 0.3),
    )
    wide = abs(length * sin(heading)) + abs(width * cos(heading))
    long = abs(length * cos(heading)) + abs(width * sin(heading))
    if not street.claim(across, along, wide + 0.2, long + 1.0):
        return
    _stand(street, along, partial(draw_car, car=car))
    foot = [
        (across + 0.52 * a * wide, max(0.6, along + 0.5 * b * long))
        for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]
    street.dark.append(foot)
    for start, end in zip(foot, foot[1:] + foot[:1], strict=True):
        street.cast([start, end], 1.3)


def _add_parked_cars(numbers: Numbers, street: Street) -> None:
    for side in (-1, 1):
        if numbers.random() > 0.5:
            continue
        heading = 0.0 if numbers.random() < 0.6 else pi
        along = between(numbers, 4, 18)
        while along < 80:
            if numbers.random() < 0.6 and street.free(along):
                across = street.edge(side) - side * between(numbers, 1.0, 1.25)
                turn = heading + between(numbers, -0.04, 0.04)
                _add_car(numbers, street, across, along, turn)
            along += between(numbers, 6, 9)


def _add_moving_cars(numbers: Numbers, street: Street) -> None:
    """Cars ahead in the camera's lane, cars that come towards it, and one that crosses."""
    left, right = street.ground.road
    quarter, middle = (right - left) / 4, (left + right) / 2
    away = -1 if middle > 0 else 1  # the side of the road the camera drives on
    for lane, heading, nearest in (
        (middle + away * quarter, 0.0, 7),
        (middle - away * quarter, pi, 8),
    ):
        along = between(numbers, nearest, nearest + 28)
        while along < 100:
            if numbers.random() < 0.5:
                across = lane + between(numbers, -0.4, 0.4)
                _add_car(numbers, street, across, along, heading)
            along += between(numbers, 12, 30)
    if street.ground.junction is not None and numbers.random() < 0.5:
        turn = pi / 2 if numbers.random() < 0.5 else -pi / 2
        along = sum(street.ground.junction) / 2
        _add_car(numbers, street, between(numbers, -9, 9), along, turn)


_TOPS: tuple[Tint, ...] = (
    (40, 42, 50),
    (60, 66, 90),
    (120, 40, 44),
    (190, 186, 178),
    (84, 92, 76),
    (150, 120, 80),
    (30, 30, 32),
    (90, 120, 160),
    (200, 166, 72),
)
_BOTTOMS: tuple[Tint, ...] = ((42, 46, 62), (32, 32, 36), (96, 88, 76), (70, 82, 110))
_SKINS: tuple[Tint, ...] = ((222, 178, 150), (196, 150, 120), (140, 98, 72), (92, 62, 48))
_HAIR: tuple[Tint, ...] = (
    (44, 34, 28),
    (90, 64, 40),
    (24, 22, 22),
    (150, 120, 80),
    (140, 138, 134),
)
_FRAMES: tuple[Tint, ...] = ((150, 40, 40), (40, 70, 120), (40, 40, 42), (200, 200, 200))


def _person(numbers: Numbers, across: Number, along: Number, heading: Number) -> Person:
    child = numbers.random() > 0.88
    return Person(
        across=across,
        along=along,
        heading=heading,
        height=between(numbers, 1.0, 1.4) if child else between(numbers, 1.55, 1.9),
        stride=between(numbers, -1, 1),
        top=pick(numbers, *_TOPS),
        bottom=pick(numbers, *_BOTTOMS),
        skin=pick(numbers, *_SKINS),
        hair=pick(numbers, *_HAIR),
        long_coat=bool(numbers.random() < 0.3),
        bag=bool(numbers.random() < 0.3),
    )


def _darken(street: Street, across: Number, along: Number, half: Number) -> None:
    """Takes the light from the ground right under someone."""
    left, right = across - 0.2, across + 0.2
    near, far = along - half, along + half
    street.dark.append([(left, near), (right, near), (right, far), (left, far)])


def _add_walkers(numbers: Numbers, street: Street) -> None:
    """People on the pavements, alone or in pairs, and now and then one on the road."""
    for side in (-1, 1):
        for _ in range(int(6.3 * numbers.random() ** 1.4)):
            wide = street.border(side) - street.edge(side)
            across = street.edge(side) + wide * between(numbers, 0.25, 0.85)
            along = 6 + 40 * float(numbers.random()) ** 1.4
            heading = (0.0 if numbers.random() < 0.5 else pi) + between(numbers, -0.5, 0.5)
            for _ in range(2 if numbers.random() < 0.25 else 1):
                person = _person(numbers, across, along, heading)
                _stand(street, along, partial(draw_pedestrian, person=person))
                street.cast([(across - 0.2, along), (across + 0.2, along)], person.height)
                _darken(street, across, along, 0.15)
                across, along = across + 0.55, along + between(numbers, -0.2, 0.3)
    if numbers.random() < 0.2:
        across, along = between(numbers, *street.ground.road), between(numbers, 10, 40)
        person = _person(numbers, across, along, pi / 2)
        if street.claim(across, along, 0.6, 0.6):
            _stand(street, along, partial(draw_pedestrian, person=person))


def _add_riders(numbers: Numbers, street: Street) -> None:
    for side in (-1, 1):
        if numbers.random() > 0.4:
            continue
        across = street.edge(side) - side * between(numbers, 0.5, 1.6)
        along = 6.5 + 26 * float(numbers.random()) ** 1.3
        way = numbers.random()
        heading = 0.0 if way < 0.45 else pi if way < 0.75 else pi / 2 if way < 0.88 else -pi / 2
        rider = _person(numbers, across, along, heading + between(numbers, -0.25, 0.25))
        rider = replace(rider, height=max(rider.height, 1.55))
        frame = pick(numbers, *_FRAMES)
        if not street.claim(across, along, 0.8, 2.2):
            continue
        _stand(street, along, partial(draw_cyclist, person=rider, frame=frame))
        _darken(street, across, along, 0.5)
