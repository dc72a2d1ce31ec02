"""Data sets as one thing: an image and its labels by index, wherever they come from.

Labels are class indices from 0, and 255 where pixels do not count.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from paumer.arguments import checked
from paumer.classes import CAMVID
from paumer.data.data_yaml import open_plan, open_yaml, yaml_splits
from paumer.data.folders import FolderDataset
from paumer.data.published import PUBLISHED
from paumer.data.samples import SPLITS, Dataset, Sample
from paumer.scenes.scene import check_size, scene, scene_seeds
from paumer.untrusted import near

_SCENES = {"train": 2000, "val": 200, "test": 200}
_SCENE_SIZE = (384, 288)
_SAMPLE = Path(__file__).parent / "sample" / "data.yaml"
_KNOWN = (
    "sample, scenes, camvid:DIR, cityscapes:DIR, ade20k:DIR, voc:DIR or the path of a data.yaml"
)


class SceneDataset(Dataset):
    """Procedural street scenes with the labels of CamVid: the same ones at every call."""

    class_set = CAMVID

    def __init__(self, split: str, count: int, size: tuple[int, int] = _SCENE_SIZE) -> None:
        check_size(size)
        self.name = "scenes" if size == _SCENE_SIZE else f"scenes@{size[0]}x{size[1]}"
        self.split = split
        self.size = size
        self.seeds = scene_seeds(split, count)

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, index: int) -> Sample:
        seed = self.seeds[index]
        return Sample(f"scene-{seed}", *scene(seed, self.size))


class JoinedDataset(Dataset):
    """Several data sets of the same classes, one after the other."""

    def __init__(self, parts: Sequence[Dataset]) -> None:
        first = parts[0]
        for part in parts[1:]:
            if part.class_set.names != first.class_set.names:
                raise ValueError(
                    f"cannot join {first.name} and {part.name}: their classes differ "
                    f"({', '.join(first.class_set.names)}; {', '.join(part.class_set.names)})"
                )
        self.name = "+".join(part.name for part in parts)
        self.split = first.split
        self.class_set = first.class_set
        self.problems = tuple(problem for part in parts for problem in part.problems)
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: int) -> Sample:
        part, index = self.find(index)
        return part[index]

    def files(self, index: int) -> tuple[Path, Path] | None:
        """The files of an image and of its labels; None where they are made, not read."""
        part, index = self.find(index)
        return part.files(index)

    def find(self, index: int) -> tuple[Dataset, int]:
        """The part that has an image, and the image's index there."""
        index = range(len(self))[index]
        for part in self.parts:
            if index < len(part):
                break
            index -= len(part)
        return part, index


@checked
def open_dataset(spec: str | Path, split: str = "train") -> Dataset:
    """The data set of that name: sample, scenes, camvid:DIR and the like, or a data.yaml.

    The sample is eight small scenes in files. Scenes come as `scenes`, `scenes:COUNT` or
    `scenes:COUNT@WIDTHxHEIGHT`. Several of the same classes are joined by `+`, as in
    `camvid:DIR+scenes:400`. Images without a mask, masks without an image and files of the same
    name are a ValueError.
    """
    dataset = list_dataset(str(spec), split)
    if dataset.problems:
        others = len(dataset.problems) - 1
        more = f" (and {others} more such problems)" if others else ""
        raise ValueError(
            f"{dataset.problems[0].message}{more}. `paumer check-data {spec}` lists them all"
        )
    return dataset


def list_dataset(spec: str, split: str = "train") -> Dataset:
    """As `open_dataset`, but files that make no pair are left out and listed in `problems`."""
    if split not in SPLITS:
        raise ValueError(f'no split "{split}": there are {", ".join(SPLITS)}{near(split, SPLITS)}')
    return _source(spec)[1](split)


def available_splits(spec: str) -> tuple[str, ...]:
    """The splits of a data set that have labels, in the order train, val, test."""
    return _source(spec)[0]


def _source(spec: str) -> tuple[tuple[str, ...], Callable[[str], Dataset]]:
    """The splits of a data set that have labels, and what opens one of them."""
    if parts := _joined(spec):
        sources = [_source(part) for part in parts]
        common = tuple(s for s in SPLITS if all(s in splits for splits, _ in sources))
        return common, lambda split: JoinedDataset([give(split) for _, give in sources])
    kind, _, rest = spec.partition(":")
    if kind.partition("@")[0] == "scenes":
        return SPLITS, partial(_scenes, spec)
    if spec == "sample":
        return yaml_splits(_SAMPLE), partial(open_yaml, _SAMPLE)
    if kind not in PUBLISHED:
        file = _data_yaml(spec)
        return yaml_splits(file), partial(open_yaml, file)
    if not rest:
        raise ValueError(f'"{kind}" needs its folder: write {kind}:DIR')
    folder, published = Path(rest).expanduser(), PUBLISHED[kind]
    splits = published.splits(folder) or published.splits(folder, ())
    return splits, partial(_published, kind, folder)


def _joined(spec: str) -> list[str]:
    """The data sets that a text joins by `+`; none where the `+` belongs to a file's name."""
    if "+" not in spec or _exists(spec):
        return []
    parts: list[str] = []
    for piece in spec.split("+"):
        # A + may also belong to the name of the folder before it.
        if parts and not _exists(parts[-1]) and _exists(f"{parts[-1]}+{piece}"):
            parts[-1] += f"+{piece}"
        else:
            parts.append(piece)
    if not all(parts):
        raise ValueError(f'"{spec}" joins nothing: write it as in camvid:DIR+scenes:400')
    return parts


def _exists(spec: str) -> bool:
    """Whether a text names a file or folder, after the kind of data set if it says one."""
    return Path(spec.partition(":")[2] or spec).expanduser().exists()


def _scenes(spec: str, split: str) -> SceneDataset:
    match = re.fullmatch(r"scenes(?::(\d{1,10}))?(?:@(\d{1,6})x(\d{1,6}))?", spec)
    if not match or match[1] == "0":
        raise ValueError(
            f'cannot make scenes from "{spec}": write scenes, scenes:COUNT or '
            f"scenes:COUNT@WIDTHxHEIGHT, as in scenes:500@384x288"
        )
    size = (int(match[2]), int(match[3])) if match[2] else _SCENE_SIZE
    return SceneDataset(split, int(match[1] or _SCENES[split]), size)


def _published(kind: str, folder: Path, split: str) -> FolderDataset:
    published = PUBLISHED[kind]
    if split not in published.plan:
        raise ValueError(
            f'the "{split}" split of {published.title} has no public labels: use "val"'
        )
    root = published.root(folder)
    return open_plan(published.plan, split, f"{kind}:{folder}", kind, root)


def _data_yaml(spec: str) -> Path:
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / "data.yaml").is_file():
            return path / "data.yaml"
        raise ValueError(
            f'the folder "{spec}" holds no data.yaml: write one with '
            f"`paumer data init {spec}`, or give {_KNOWN}"
        )
    kind = spec.partition(":")[0]
    guess = (
        near(kind, ("sample", "scenes", *PUBLISHED)) if path.suffix not in (".yaml", ".yml") else ""
    )
    raise ValueError(f'there is no data set "{spec}"{guess}: give {_KNOWN}')
