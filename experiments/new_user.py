"""Play a new user: a folder in each layout, from `data init` to an exported model.

    python experiments/new_user.py --out runs/new-user

Synthetic scenes are written in the form of each layout, with three classes of the user's own
(ground, object, backdrop). Then come the commands that docs/data.md and docs/training.md name, each
in a process of its own: data init, the classes' names, check-data; train from `street-tiny`, stop
it, resume and tune it, predict, export, and predict by the exported file's script; at last a
prediction of a folder is stopped and resumed. The first thing that is not as the docs say ends it.
`--only` restricts the layouts, `--export` those whose model is exported, which does not depend on
the data.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import yaml
from jaxtyping import Bool, UInt8
from PIL import Image

from paumer.classes import CAMVID
from paumer.scenes.scene import scene

Picture = UInt8[np.ndarray, "h w 3"]
Labels = UInt8[np.ndarray, "h w"]
Scenes = dict[str, dict[str, tuple[Picture, Labels]]]
"""By split and name: an image and the numbers of CamVid's classes."""

OWN = ("ground", "object", "backdrop")
GROUND, BACKDROP = ("road", "pavement"), ("sky", "building", "tree")
MERGED = {
    name: "ground" if name in GROUND else "backdrop" if name in BACKDROP else "object"
    for name in CAMVID.names
}
IDS = np.full(256, 255, np.uint8)
IDS[: len(MERGED)] = [OWN.index(name) for name in MERGED.values()]
COLOURS = np.zeros((256, 3), np.uint8)
COLOURS[: len(OWN)] = [[128, 64, 128], [220, 20, 60], [70, 130, 180]]
NAMES: dict[str, object] = {"classes": list(OWN)}


def save(path: Path, pixels: UInt8[np.ndarray, "..."]) -> None:
    """Write an image into a folder that may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def outline(mask: Bool[np.ndarray, "h w"]) -> list[tuple[int, int]]:
    """The corners of a polygon around a region: its upper edge, and its lower one back."""
    columns = np.flatnonzero(mask.any(0)).tolist()
    upper = [(x, int(mask[:, x].argmax())) for x in columns]
    lower = [(x + 1, int(len(mask) - mask[::-1, x].argmax())) for x in columns]
    return upper + lower[::-1]


def write_indices(root: Path, scenes: Scenes) -> dict[str, object]:
    """Masks of CamVid's numbers, which the user merges by name."""
    for split, pairs in scenes.items():
        for name, (image, labels) in pairs.items():
            save(root / f"images/{split}/{name}.jpg", image)
            save(root / f"masks/{split}/{name}.png", labels)
    return {"classes": list(CAMVID.names), "map": MERGED}


def write_colours(root: Path, scenes: Scenes) -> dict[str, object]:
    """Masks by colour; the upper row is black, which is ignored."""
    for split, pairs in scenes.items():
        for name, (image, labels) in pairs.items():
            painted = COLOURS[IDS[labels]]
            painted[0] = 0
            save(root / f"{split}/images/{name}.png", image)
            save(root / f"{split}/labels/{name}.png", painted)
    colours = dict(zip(OWN, COLOURS.tolist(), strict=False))
    return {"classes": colours, "rgb_masks": True, "ignore": [[0, 0, 0]]}


def write_templates(root: Path, scenes: Scenes) -> dict[str, object]:
    """Masks whose names differ from the images', in folders below."""
    for split, pairs in scenes.items():
        for name, (image, labels) in pairs.items():
            save(root / f"left/{split}/town/{name}_camera.png", image)
            save(root / f"truth/{split}/town/{name}_labelIds.png", IDS[labels])
    return NAMES


def write_lists(root: Path, scenes: Scenes) -> dict[str, object]:
    """Pascal VOC's folders, lists of names and masks with a palette."""
    for split, pairs in scenes.items():
        for name, (image, labels) in pairs.items():
            save(root / f"JPEGImages/{name}.jpg", image)
            mask = Image.fromarray(IDS[labels]).convert("P")
            mask.putpalette(COLOURS.ravel().tolist())
            (root / "SegmentationClass").mkdir(exist_ok=True)
            mask.save(root / f"SegmentationClass/{name}.png")
        file = root / f"ImageSets/Segmentation/{split}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(pairs) + "\n")
    return NAMES


def write_coco(root: Path, scenes: Scenes) -> dict[str, object]:
    """Polygons of the ground; objects as run lengths of both kinds."""
    from pycocotools.mask import encode  # type: ignore[import-untyped]

    for split, pairs in scenes.items():
        images, annotations = [], []
        for number, (name, (image, labels)) in enumerate(pairs.items()):
            height, width = labels.shape
            save(root / f"{split}/{name}.jpg", image)
            images.append(
                {"id": number, "file_name": f"{name}.jpg", "width": width, "height": height}
            )
            objects = np.asfortranarray(IDS[labels] == 1)
            if number % 2:
                packed = encode(objects.view(np.uint8))["counts"].decode()
                runs: dict[str, object] = {"size": [height, width], "counts": packed}
            else:
                edges = np.flatnonzero(np.diff(objects.ravel("F"), prepend=False))
                counts = np.diff(edges, prepend=0, append=objects.size).tolist()
                runs = {"size": [height, width], "counts": counts}
            polygon = [float(n) for corner in outline(IDS[labels] == 0) for n in corner]
            for category, shape in ((1, [polygon]), (2, runs)):
                annotations.append(
                    {
                        "id": 2 * number + category,
                        "image_id": number,
                        "category_id": category,
                        "segmentation": shape,
                        "iscrowd": int(category == 2),
                        "area": int((IDS[labels] == category - 1).sum()),
                    }
                )
        categories = [{"id": number, "name": name} for number, name in enumerate(OWN[:2], 1)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / f"instances_{split}.json").write_text(json.dumps(content))
    return {"background": "backdrop"}


def write_yolo(root: Path, scenes: Scenes) -> dict[str, object]:
    """Polygons in text files beside the images."""
    for split, pairs in scenes.items():
        for name, (image, labels) in pairs.items():
            save(root / f"images/{split}/{name}.jpg", image)
            height, width = labels.shape
            lines = []
            for number in (0, 1):
                corners = outline(IDS[labels] == number)
                points = " ".join(f"{x / width:.6f} {y / height:.6f}" for x, y in corners)
                lines += [f"{number} {points}\n"] if corners else []
            file = root / f"labels/{split}/{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(lines))
    return {"names": {0: "ground", 1: "object"}, "background": "backdrop"}


def write_table(root: Path, scenes: Scenes) -> dict[str, object]:
    """A table of Hugging Face's `datasets`, saved to disk."""
    import datasets

    columns = datasets.Features({"image": datasets.Image(), "annotation": datasets.Image()})
    tables = {}
    for split, pairs in scenes.items():
        rows = {
            "image": [Image.fromarray(image) for image, _ in pairs.values()],
            "annotation": [Image.fromarray(IDS[labels]) for _, labels in pairs.values()],
        }
        name = {"val": "validation"}.get(split, split)
        tables[name] = datasets.Dataset.from_dict(rows, features=columns)
    datasets.DatasetDict(tables).save_to_disk(root)
    return NAMES


LAYOUTS: dict[str, Callable[[Path, Scenes], dict[str, object]]] = {
    "indices": write_indices,
    "colours": write_colours,
    "templates": write_templates,
    "lists": write_lists,
    "coco": write_coco,
    "yolo": write_yolo,
    "table": write_table,
}
"""How each layout is written, and what the user then writes into its data.yaml."""


class User:
    """Runs commands in a folder, reads what they print, and gives up at the first surprise."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def run(self, *words: object, stop_at: str | None = None) -> str:
        """What a command printed; with ``stop_at`` it gets Ctrl-C once that file is there."""
        begin = time.monotonic()
        line = " ".join(map(str, words))
        print(f"$ {line}", flush=True)
        command = [sys.executable, "-m", *map(str, words)]
        if words[0] != "paumer":
            command.remove("-m")
        process = subprocess.Popen(
            command, cwd=self.out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if stop_at:
            while process.poll() is None and not (self.out / stop_at).exists():
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
        code, wanted = process.returncode, 130 if stop_at else 0
        if code != wanted:
            raise SystemExit(f"{said}\n`{line}` ended with {code} instead of {wanted}")
        print(f"  {time.monotonic() - begin:.1f} s", flush=True)
        return said

    def see(self, what: str, text: str) -> None:
        """Give up unless that is what a command printed."""
        if not re.search(what, text):
            raise SystemExit(f'{text}\nthis does not say "{what}"')

    def find(self, *files: str) -> None:
        """Give up unless these files are there."""
        for name in files:
            if not (self.out / name).is_file():
                raise SystemExit(f'"{self.out / name}" was not written')

    def describe(self, layout: str, scenes: Scenes) -> str:
        """Write a folder in a layout, and its data.yaml with the commands for that."""
        root = self.out / layout
        root.mkdir()
        entries = LAYOUTS[layout](root, scenes)
        said = self.run("paumer", "data", "init", layout)
        self.see(r"train: \d+ images\n", said)
        self.find(f"{layout}/data.yaml", f"{layout}/data-sheet.png")
        file = root / "data.yaml"
        plan = yaml.safe_load(file.read_text())
        for key in ("classes", "names", "background", "map", "ignore", "rgb_masks"):
            if key in entries or (key == "classes" and "names" in entries):
                plan.pop(key, None)
        file.write_text(yaml.safe_dump(plan | entries, sort_keys=False))
        said = self.run("paumer", "check-data", f"{layout}/data.yaml", "--out", f"{layout}-report")
        for name in OWN:
            self.see(name, said)
        self.find(f"{layout}-report/report.json", f"{layout}-report/samples.png")
        return f"{layout}/data.yaml"

    def journey(self, layout: str, options: Sequence[object]) -> None:
        """From a data.yaml to a model with operating points that segments an image."""
        run, data = f"{layout}-run", f"{layout}/data.yaml"
        start = ("paumer", "train", "--data", data, "--init", "street-tiny", "--out", run)
        said = self.run(*start, *options, stop_at=f"{run}/model/config.json")
        self.see("street-tiny knows none of the 3 classes: its heads are re-initialised", said)
        self.see(f"resume with --resume {run}", said)
        said = self.run("paumer", "train", "--resume", run, "--tune")
        self.see(r"balanced\s", said)
        self.find(f"{run}/model/operating_points.json", f"{run}/best/config.json")
        save(self.out / "photo.png", scene(10**6, (1024, 768))[0])
        common = ("--model", run, "--mode", "balanced", "--out")
        said = self.run("paumer", "predict", "photo.png", *common, f"{layout}-out")
        self.see("1 image", said)
        self.find(f"{layout}-out/photo_overlay.png", f"{layout}-out/photo_mask.png")

    def export(self, layout: str) -> None:
        """A file that segments an image elsewhere."""
        words = ("--model", f"{layout}-run", "--mode", "balanced", "--out", f"{layout}.onnx")
        self.run("paumer", "export", *words)
        (self.out / "photo_mask.png").unlink(missing_ok=True)
        self.run(f"{layout}.py", "photo.png")
        self.find("photo_mask.png")

    def stop_predicting(self, layout: str) -> None:
        """Ctrl-C in the midst of a folder, and the same command again."""
        for number in range(6):
            save(self.out / f"photos/{number}.png", scene(10**6 + number, (1024, 768))[0])
        model, how = ("--model", f"{layout}-run"), ("--mode", "none size=full", "--batch", "1")
        words = ("paumer", "predict", "photos", *model, "--out", "photos-out", *how)
        said = self.run(*words, stop_at="photos-out/predictions.jsonl")
        self.see(r"stopped: [1-5] of 6 files are finished", " ".join(said.split()))
        self.see(r"segmented [1-5] of 6 images into photos-out, [1-5] were", self.run(*words))
        lines = (self.out / "photos-out/predictions.jsonl").read_text().splitlines()
        names = sorted(json.loads(line)["name"] for line in lines)
        if names != list("012345"):
            raise SystemExit(f"the images {names} were segmented, and each should be once")


def main() -> None:
    """Write the folders and run the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder that does not exist yet")
    parser.add_argument("--only", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--export", nargs="*", choices=LAYOUTS, help="default: those of --only")
    parser.add_argument("--images", type=int, default=20, help="for training; a quarter for val")
    parser.add_argument("--size", default="96x64", help="of the images")
    parser.add_argument(
        "--options", default="--steps 6 --val-every 2 --batch 2 --crop 64 --workers 0"
    )
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    arguments.out.mkdir(parents=True)
    counts = {"train": arguments.images, "val": max(2, arguments.images // 4)}
    scenes: Scenes = {
        split: {f"{split}{n:03}": scene(start + n, (width, height)) for n in range(count)}
        for start, (split, count) in zip((0, 10**5), counts.items(), strict=True)
    }
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    user, begin = User(arguments.out.resolve()), time.monotonic()
    for layout in arguments.only:
        user.describe(layout, scenes)
    for layout in arguments.only:
        user.journey(layout, arguments.options.split())
    for layout in arguments.only if arguments.export is None else arguments.export:
        user.export(layout)
    user.stop_predicting(arguments.only[0])
    print(f"done in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
