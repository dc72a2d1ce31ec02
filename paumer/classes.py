"""Class names, colours and label maps of the data sets. Needs numpy only."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Pixels = NDArray[np.uint8]
"""An RGB image (h w 3), or the labels of one (h w)."""

IGNORE = 255
"""The usual label of pixels that do not count."""


@dataclass(frozen=True)
class ClassSet:
    """The classes of a data set: label `i` is called `names[i]` and painted in `colours[i]`."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...]
    ignore: int = IGNORE

    def __post_init__(self) -> None:
        if len(self.names) != len(self.colours):
            raise ValueError(
                f"{len(self.names)} class names but {len(self.colours)} colours: "
                "give one colour per name, or make them with distinct_colours(n)"
            )
        if twice := [name for name, times in Counter(self.names).items() if times > 1]:
            raise ValueError(f'two classes are called "{twice[0]}": give each its own name')
        if 0 <= self.ignore < len(self.names):
            raise ValueError(
                f"the ignore label {self.ignore} is also the class {self.names[self.ignore]!r}: "
                "choose an ignore label outside the classes, customarily 255"
            )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        first = ", ".join(name[:20] for name in self.names[:4])
        return f"ClassSet({len(self)} classes: {first}{', ...' if len(self) > 4 else ''})"


def distinct_colours(count: int) -> tuple[Colour, ...]:
    """`count` colours, each as far as can be from those before it; none is dark or grey.

    So they are seen on dark images and on bright ones, and black is left for the ignore label.
    """
    steps = 8
    while steps**3 < 2 * count:
        steps += 1
    levels = np.linspace(0, 255, steps).round().astype(np.int64)
    candidates = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    brightness = candidates @ (30, 59, 11)
    candidates = candidates[(brightness >= 7000) & (np.ptp(candidates, axis=1) >= 70)]
    taken = np.array([[0, 0, 0], [128, 128, 128], [255, 255, 255]])
    room = ((candidates[:, None] - taken) ** 2).sum(2).min(1)
    colours: list[Colour] = []
    for _ in range(count):
        red, green, blue = candidates[room.argmax()].tolist()
        colours.append((red, green, blue))
        room = np.minimum(room, ((candidates - (red, green, blue)) ** 2).sum(1))
    return tuple(colours)


def paint(labels: NDArray[np.integer], class_set: ClassSet) -> NDArray[np.uint8]:
    """An RGB image of a label map; the ignore label, and any label without a class, is black."""
    if labels.size and (labels.min() < 0 or labels.max() > 65535):
        raise ValueError(
            f"cannot paint labels from {labels.min()} to {labels.max()}: "
            "labels are whole numbers from 0 to 65535"
        )
    highest = max(int(labels.max(initial=0)), class_set.ignore, len(class_set) - 1)
    table = np.zeros((highest + 1, 3), np.uint8)
    table[: len(class_set)] = class_set.colours
    painted: NDArray[np.uint8] = table[labels]
    return painted


def _class_set(text: str) -> ClassSet:
    """The classes of a text such as `sky 808080, road 804080`."""
    names, colours = zip(*(part.rsplit(maxsplit=1) for part in text.split(",")), strict=True)
    rgb = (bytes.fromhex(colour) for colour in colours)
    return ClassSet(tuple(name.strip() for name in names), tuple((r, g, b) for r, g, b in rgb))


CAMVID = _class_set("""
sky 50b4ff, building d8a878, pole fff060, road b070d8, pavement 4858ff, tree 28c050, sign ff90d0,
fence 98a830, car 00e0d0, pedestrian ff2030, bicyclist ff8800
""")
"""Not in the colours of its authors, of which some are dark, grey or alike."""
CITYSCAPES = _class_set("""
road 804080, sidewalk f423e8, building 464646, wall 66669c, fence be9999, pole 999999,
traffic light faaa1e, traffic sign dcdc00, vegetation 6b8e23, terrain 98fb98, sky 4682b4,
person dc143c, rider ff0000, car 00008e, truck 000046, bus 003c64, train 005064, motorcycle 0000e6,
bicycle 770b20
""")

# In the order of the train ids.
_LABEL_IDS = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
CITYSCAPES_TRAIN_IDS: NDArray[np.uint8] = np.full(256, IGNORE, np.uint8)
"""Train id of every value of a `labelIds` image: `CITYSCAPES_TRAIN_IDS[label_ids]`."""
CITYSCAPES_TRAIN_IDS[_LABEL_IDS] = range(len(CITYSCAPES))
CITYSCAPES_TRAIN_IDS.setflags(write=False)

_ADE20K_NAMES = """
wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person,
earth, door, table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea,
mirror, rug, field, armchair, seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion,
base, box, column, signboard, chest of drawers, counter, sand, sink, skyscraper, fireplace,
refrigerator, grandstand, path, stairs, runway, case, pool table, pillow, screen door, stairway,
river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill, bench, countertop, stove,
palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel, light,
truck, tower, chandelier, awning, streetlight, booth, television receiver, airplane, dirt track,
apparel, pole, land, bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship,
fountain, conveyer belt, canopy, washer, plaything, swimming pool, stool, barrel, basket, waterfall,
tent, bag, minibike, cradle, oven, ball, food, step, tank, trade name, microwave, pot, animal,
bicycle, lake, dishwasher, screen, blanket, sculpture, hood, sconce, vase, traffic light, tray,
ashcan, fan, pier, crt screen, plate, monitor, bulletin board, shower, radiator, glass, clock, flag
"""
ADE20K = ClassSet(tuple(" ".join(_ADE20K_NAMES.split()).split(", ")), distinct_colours(150))
