"""The sides of a street: which houses, trees, hedges and fences line it, and where."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from paumer.scenes.canvas import Number, Point, Tint
from paumer.scenes.scenery import Barrier, Facade, House, draw_barrier, draw_house
from paumer.scenes.street import Numbers, Street, between, offset, pick, vary
from paumer.scenes.trees import BARE_CROWNS, LEAFY_CROWNS, Tree, draw_tree


@dataclass(frozen=True)
class Plan:
    """How one side of a street is built up; ranges are in metres, chances from 0 to 1."""

    setback: Point
    length: Point
    storeys: tuple[int, int]  # above the ground floor
    gap: Point  # a negative gap is none
    built: Number
    pitched: Number
    trees: Number
    tree_gap: Number
    garden: bool


TERRACE = Plan((0, 0.01), (5, 13), (1, 3), (-30, 2), 1, 0.6, 0.6, 26, False)
BLOCKS = Plan((0, 3), (14, 30), (2, 5), (-4, 9), 1, 0, 0.7, 18, False)
HOUSES = Plan((3, 7), (7, 12), (1, 1), (1.5, 7), 1, 1, 0.8, 10, True)
GREEN = Plan((14, 30), (10, 26), (1, 2), (5, 30), 0.35, 0.6, 1, 5.5, True)


def choose_plan(numbers: Numbers) -> Plan:
    """A random plan for one side."""
    kind = numbers.random()
    return TERRACE if kind < 0.38 else BLOCKS if kind < 0.64 else HOUSES if kind < 0.85 else GREEN


def build_side(numbers: Numbers, street: Street, side: int, plan: Plan) -> None:
    """Lines the left (-1) or right (1) side of the street with houses, trees and fences."""
    setback = between(numbers, *plan.setback)
    shops = plan is TERRACE and numbers.random() < 0.65
    line = street.border(side) + side * setback
    along, before = between(numbers, -6, 4), 0.0  # height of the house that adjoins nearer by
    while along < 115:
        # far houses are a few pixels wide: fewer and longer ones look the same
        length = between(numbers, *plan.length) * (1 if along < 50 else 1.7)
        junction = street.ground.junction
        if junction and along < junction[1] and along + length > junction[0]:
            along, before = junction[1], 0.0
        house = _house(numbers, street, side, plan, line, (along, along + length), shops)
        if house.height < before + 0.3:
            house = replace(house, flank=None)
        gap = max(0.0, between(numbers, *plan.gap))
        before = 0.0
        if numbers.random() < plan.built:
            street.things.append((house.far, partial(draw_house, house=house)))
            street.cast([(line, max(0.6, house.near)), (line, house.far)], house.height)
            before = 0.0 if gap else house.height
        along += length + gap
    _plant(numbers, street, side, plan, setback)
    if plan.garden:
        style = "hedge" if numbers.random() < 0.55 else ""
        across = street.border(side) + side * 0.15
        add_barrier(numbers, street, across, (0, 120), between(numbers, 0.8, 2.0), style)


def _house(
    numbers: Numbers,
    street: Street,
    side: int,
    plan: Plan,
    line: Number,
    span: Point,
    shops: bool,
) -> House:
    low, high = plan.storeys
    storeys = low + int((high - low + 1) * numbers.random())
    front = _facade(numbers, storeys, span[1] - span[0], shops)
    few = np.where(numbers.random((storeys, 3)) < 0.7, 4, 0)
    right, up, _ = street.light.sun
    shaded = 0.0
    if right * side < 0:
        wide = street.border(1) - street.border(-1)
        shaded = max(0.0, 9.0 - wide * up / max(0.05, abs(right)))
    return House(
        side=side,
        line=line,
        near=span[0],
        far=span[1],
        height=(storeys + 1) * between(numbers, 2.7, 3.4),
        roof=between(numbers, 1.4, 3.2) if numbers.random() < plan.pitched else 0.0,
        roof_tint=pick(numbers, (84, 80, 84), (128, 74, 58), (98, 90, 82), (70, 72, 78)),
        front=front,
        flank=replace(front, kinds=few, ground=np.full(3, 4)),
        shaded=shaded,
    )


_WALLS: tuple[Tint, ...] = (
    (142, 84, 64), (166, 110, 82), (206, 192, 162), (226, 222, 212), (150, 148, 144),
    (118, 108, 98), (188, 168, 128), (96, 92, 92), (172, 178, 182), (176, 140, 120),
)  # fmt: skip
_SHOPS: tuple[Tint, ...] = (
    (150, 36, 34), (32, 62, 120), (36, 88, 60), (44, 42, 44), (214, 206, 190),
    (196, 150, 50), (104, 60, 110), (60, 120, 140),
)  # fmt: skip


def _facade(numbers: Numbers, storeys: int, length: Number, shops: bool) -> Facade:
    bays = max(1, round(length / between(numbers, 2.2, 4.2)))
    if shops:
        ground = np.where(numbers.random(bays) < 0.82, 0, 1)
    else:
        ground = np.array([2, 2, 1, 3])[(numbers.random(bays) * 3.3).astype(np.int64)]
    return Facade(
        wall=pick(numbers, *_WALLS),
        trim=pick(numbers, (232, 230, 224), (216, 208, 190), (84, 80, 78), (200, 200, 204)),
        glass=pick(numbers, (62, 72, 84), (46, 50, 56), (92, 108, 124), (74, 78, 76)),
        shop=pick(numbers, *_SHOPS),
        kinds=np.minimum(3, (numbers.random((storeys, bays)) * 5).astype(np.int64)),
        ground=ground,
        window=(between(numbers, 0.32, 0.8), between(numbers, 0.42, 0.66)),
        roughness=int(3 * numbers.random()),
        offset=offset(numbers),
    )


_LEAVES: tuple[tuple[Tint, Tint], ...] = (  # in the shade and in the light
    ((34, 48, 22), (122, 146, 66)),
    ((28, 42, 26), (92, 120, 62)),
    ((46, 50, 24), (160, 160, 84)),
    ((62, 44, 22), (190, 140, 70)),
    ((30, 36, 28), (84, 100, 74)),
    ((58, 34, 30), (140, 84, 66)),
)


def _tree(numbers: Numbers, across: Number, along: Number, leafy: bool) -> Tree:
    height = between(numbers, 5, 12)
    if leafy:
        kind = int(LEAFY_CROWNS * numbers.random())
        dark, pale = _LEAVES[int(numbers.random() ** 1.4 * len(_LEAVES))]
    else:
        kind = LEAFY_CROWNS + int(BARE_CROWNS * numbers.random())
        dark, pale = (58, 50, 46), (110, 100, 92)
    return Tree(
        across=across,
        along=along,
        height=height,
        spread=height * between(numbers, 0.55, 0.9),
        stem=height * between(numbers, 0.15, 0.32),
        crown=kind,
        dark=vary(numbers, dark, 0.2),
        pale=vary(numbers, pale, 0.2),
    )


def _plant(numbers: Numbers, street: Street, side: int, plan: Plan, setback: Number) -> None:
    """A row of trees: at the kerb, or in the gardens where there are any."""
    leafy = numbers.random() < 0.6
    row = street.edge(side) + side * 0.8
    if plan.garden:
        row = street.border(side) + side * min(0.6 * setback, between(numbers, 2, 6))
    if numbers.random() > plan.trees:
        return
    along = between(numbers, 6, 6 + plan.tree_gap)
    while along < 130:
        if street.free(along):
            across = row + side * between(numbers, -0.3, 1.5)
            tree = _tree(numbers, across, along, leafy)
            street.things.append((along, partial(draw_tree, tree=tree)))
            radius = 0.5 * tree.spread
            street.cast_crown((across, along), radius, 0.65 * tree.height)
        along += plan.tree_gap * between(numbers, 0.5, 1.5)


def add_barrier(
    numbers: Numbers, street: Street, across: Number, span: Point, height: Number, style: str = ""
) -> None:
    """A hedge, or a fence of random or given style, along the street but not in the junction."""
    dark, pale = _LEAVES[int(3 * numbers.random())]
    if not style:
        style = ("planks", "railings", "railings", "bricks")[int(4 * numbers.random())]
    if style == "bricks":
        pale = pick(numbers, *_WALLS)
    elif style != "hedge":
        pale = pick(numbers, (128, 92, 62), (104, 88, 74), (60, 62, 64), (176, 172, 164))
    start, along = offset(numbers), span[0]
    while along < span[1]:
        far = along + between(numbers, 9, 14)
        if street.free(along) and street.free(far) and numbers.random() < 0.9:
            barrier = Barrier(style, across, (along, far), height, dark, pale, start)
            street.things.append((far, partial(draw_barrier, barrier=barrier)))
            street.cast([(across, max(0.6, along)), (across, far)], height)
        along = far
