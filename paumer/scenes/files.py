"""Scenes written as files: a data set in the ``data.yaml`` form, and a sheet to look at."""

from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from paumer.classes import CAMVID, Pixels, paint
from paumer.disk import new_beside
from paumer.drawing import contact_sheet, mask_image, overlay, write_image
from paumer.scenes.scene import scene, scene_seeds


def write_scenes(
    directory: Path,
    counts: Mapping[str, int],
    size: tuple[int, int],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write ``counts`` scenes of each split, ``data.yaml`` and ``sheet.png`` to a new directory.

    It appears when all of it is there.
    """
    if directory.exists():
        raise ValueError(f'"{directory}" exists: name a directory that does not')
    with new_beside(directory) as new:
        samples: list[tuple[Pixels, Pixels | None]] = []
        done = 0
        for split, count in counts.items():
            for seed in scene_seeds(split, count):
                image, labels = scene(seed, size)
                write_image(new / "images" / split / f"{seed:08d}.png", image)
                write_image(new / "masks" / split / f"{seed:08d}.png", mask_image(labels, CAMVID))
                if len(samples) < 12:
                    samples.append((image, overlay(image, paint(labels, CAMVID), 0.6)))
                done += 1
                if progress:
                    progress(done, sum(counts.values()))
        write_image(new / "sheet.png", contact_sheet(samples, columns=3))
        (new / "data.yaml").write_text(_data_yaml(counts), "utf-8")
        new.rename(directory)


def _data_yaml(counts: Mapping[str, int]) -> str:
    folders = {s: {"images": f"images/{s}", "masks": f"masks/{s}"} for s in counts}
    classes = {name: list(c) for name, c in zip(CAMVID.names, CAMVID.colours, strict=True)}
    return yaml.safe_dump({**folders, "classes": classes, "ignore": [255]}, sort_keys=False)
