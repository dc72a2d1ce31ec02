"""Hostile model directories and YAML files: small real ones whose values or bytes change."""

import copy
import json
import math
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from fuzz_bytes import damage, odd_number
from PIL import Image

from paumer import Measurement, Mode, build_model, load
from paumer.data.datasets import open_dataset
from paumer.inference.points import write_points
from paumer.model.directory import CONFIG_FILE, POINTS_FILE, WEIGHTS_FILE
from paumer.training.options import TrainOptions, plain_options, read_options, read_recipe

_TYPES = ("F32", "F16", "BF16", "F64", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "C64", "X", "")


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def odd_value(rng: random.Random) -> Any:
    """A value of any type: an edge, too long, too deep, or not what anybody expects."""
    number = odd_number(rng, 64) * rng.choice((1, -1))
    texts = ("", " ", "none", "x" * 5000, "\0", "é\u2028\ud7ff🙂", "../../etc", "~nobody/x", "1e5",
        "3:0.4", "3:0.4,5:nan", "3:" + "9" * 400, "vit_giant_patch14_dinov2", "resnet50", "pup",
        "hf-hub:a/b", "local-dir:/", "test_vit2", "linear", "/dev", "*", "**/" * 30 + "*", "a+b",
        "[a-", "{}", "%s", "street.png", "scenes")  # fmt: skip
    numbers = (number, number, 0, -1, 0.5, -0.0, 1e-320, 1e308, math.inf, -math.inf, math.nan)
    large = (10**30, 10**400, [0] * 5000, [[1, 2, 3]] * 300, nested(30), nested(90))
    others: tuple[Any, ...] = (None, True, False, [], {}, [number], [None], {"a": number}, {"": ""})
    return rng.choice((rng.choice(texts), rng.choice(numbers), rng.choice(large + others)))


def _slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value with each of its keys or indices."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _slots(value[key])


def mutate(rng: random.Random, value: Any) -> Any:
    """A copy of a JSON value in which one to three parts are changed, lost, added or renamed."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        slots = list(_slots(root))
        holder, key = rng.choice(slots)
        choice = rng.randrange(7)
        if choice == 0 and holder is not root:
            del holder[key]
        elif choice == 1 and isinstance(holder, dict):
            names = (f"{key}s", str(key).upper(), "x" * 3000, "", "é", 7, None, "format")
            holder[rng.choice(names)] = odd_value(rng)
        elif choice == 2 and isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice((1, 3, 1000))
        elif choice == 3:
            other, place = rng.choice(slots)
            holder[key] = copy.deepcopy(other[place])
        elif choice == 4 and type(holder[key]) in (int, float) and abs(holder[key]) < 2**64:
            holder[key] *= rng.choice((-1, 0, 2, 1000, 0.5, 1e30))
        else:
            holder[key] = odd_value(rng)
    return root[0]


def json_file(rng: random.Random, value: Any) -> bytes:
    """A JSON file in which values or bytes are wrong."""
    content = json.dumps(mutate(rng, value), ensure_ascii=rng.random() < 0.5)
    choice = rng.randrange(12)
    if choice == 0:
        return rng.choice((b"[" * 100_000, b'{"a":' * 100_000, b"", b"null", b"\xff\xfe{}", b"1"))
    if choice == 1:
        number = rng.choice(("1e999", "9" * 5000, "-" + "9" * 4000, "NaN", "1E400", '"\\ud800"'))
        content = content.replace(": 1", f": {number}").replace("null", number)
    raw = content.encode("utf-8", "surrogatepass")
    return damage(rng, raw, raw) if choice == 2 else raw


def safetensors_file(rng: random.Random, content: bytes) -> bytes:
    """A file of tensors whose header lies or whose body is damaged, cut or longer."""
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    for _ in range(rng.choice((1, 1, 2, 5))):
        name, choice = rng.choice(names), rng.randrange(9)
        entry = header.get(name)
        if not isinstance(entry, dict):
            continue
        if choice == 0:
            entry["dtype"] = rng.choice(_TYPES)
        elif choice == 1:
            entry["shape"] = [odd_number(rng, 64) for _ in range(rng.choice((0, 1, 2, 4, 100)))]
        elif choice == 2:
            entry["shape"] = rng.sample(entry["shape"], len(entry["shape"])) + [1] * rng.choice(
                (0, 1)
            )
        elif choice == 3:
            entry["data_offsets"] = [odd_number(rng, 64), odd_number(rng, 64)]
        elif choice == 4:
            entry["data_offsets"] = header[rng.choice(names)]["data_offsets"]
        elif choice == 5:
            header[rng.choice(("x" * 3000, name + "x", "", "é\n", "__metadata__"))] = dict(entry)
        elif choice == 6:
            del header[name]
            names.remove(name)
        elif choice == 7:
            header[name] = mutate(rng, entry)
            names.remove(name)
        else:
            body = damage(rng, body)
    text = json.dumps(header).encode()
    if rng.random() < 0.15:
        text = rng.choice((damage(rng, text), b"[" * 50_000, b"{}", b" " * 10**6 + text))
    size = odd_number(rng, 64) if rng.random() < 0.1 else len(text)
    return struct.pack("<Q", size) + text + body


class Models:
    """Loads model directories."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        base = folder / "base"
        names = ("road", "sky", "tree")
        model = build_model("test_vit", "mask", names, image_size=64, decoder_options={"depth": 1})
        model.save_pretrained(base)
        points = {"fast": "2:0.4,4:0.4", "careful": "2:0.4 exit by=neighbours protect=sky"}
        known = {"miou": 0.7, "speed_up": 1.5, "images": 20, "data": "scenes val"}
        measured = {n: Measurement(mode=Mode.parse(m), **known) for n, m in points.items()}  # type: ignore[arg-type]
        write_points(base, measured)
        files = (CONFIG_FILE, WEIGHTS_FILE, POINTS_FILE)
        self.files = {name: (base / name).read_bytes() for name in files}

    def make(self, rng: random.Random, number: int) -> dict[str, bytes]:
        """A model directory in which one file is bad, or two are."""
        files = dict(self.files)
        for name in rng.sample(list(files), rng.choice((1, 1, 1, 2))):
            if name == WEIGHTS_FILE:
                files[name] = safetensors_file(rng, files[name])
            else:
                files[name] = json_file(rng, json.loads(files[name]))
        if rng.random() < 0.02:
            del files[rng.choice(list(files))]
        return files

    def run(self, case: Path, number: int) -> bool:
        """Load it."""
        load(case, "cpu")
        return True

    def bounded(self, number: int) -> bool:
        """Always."""
        return True


_DATA = """\
path: data
train: {images: images, masks: masks}
val: {images: images/*, masks: masks}
classes: [road, {name: sky, colour: [1, 2, 3]}, tree]
map: {0: 0, 7: sky, 8: 2}
ignore: [255]
"""
_LAUGHS = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))
_TEXTS = (
    "&a [*a]", "!!python/object/apply:os.system [ls]", "!!python/tuple [1, 2]", "!!binary aGk=",
    "!!binary x", "!!timestamp 2020-99-99", "2020-99-99", "!!set {a, b}", "!!omap [a: 1]",
    "!!pairs [a: 1]", "!!int x", "!!float ''", "!!bool maybe", "!!null x", "!!str {a: b}", "!x y",
    "0x" + "f" * 5000, "1:59:59", "190:20:30.15", "9" * 5000, "0b" + "1" * 9000, "1e9999", ".nan",
    "-.inf", "{<<: *b}", "{<<: [1]}", "? [a]", "? {a: b}\n: c", "[" * 3000, "{a: " * 60, "- " * 200,
    "|\n  x\n y", ">9\n x", "'\\x'", '"\\x"', '"\\ud800"', '"\\0"', "\t- x", "@x", "`x", "%TAG",
    "--- x", "... x", "{a: 1, a: 2}", "[1, 2", "x" * 30_000, "~", "yes", "[[], {}, [a]]", "!!map x",
    "{? [1, 2] : 3}", "!!python/name:os.system", "&a {<<: *a}", "*z", "\u2028", "\u0085",
)  # fmt: skip


def yaml_text(rng: random.Random, text: str) -> bytes:
    """A YAML file in which values, the text of a line, or bytes are wrong."""
    choice = rng.randrange(8)
    if choice < 3:
        text = yaml.safe_dump(mutate(rng, yaml.safe_load(text)), allow_unicode=True)
    elif choice < 6:
        lines = text.splitlines()
        for _ in range(rng.choice((1, 1, 2))):
            i = rng.randrange(len(lines))
            key = lines[i].partition(":")[0]
            lines[i] = rng.choice((f"{key}: {rng.choice(_TEXTS)}", rng.choice(_TEXTS)))
        text = "\n".join(lines) + "\n"
    elif choice == 6:
        text = rng.choice((f"a0: &a0 [lol]\n{_LAUGHS}\n{text}", f"{text}{_LAUGHS}\nx: *a11\n"))
    raw = text.encode("utf-8", "surrogatepass")
    if choice == 7 or rng.random() < 0.1:
        raw = damage(rng, raw, raw)
    mark = rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"---\n", b"%YAML 9.9\n---\n"))
    return mark + raw if rng.random() < 0.05 else raw


class Yaml:
    """Reads what describes data, a recipe, and a run."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        noise = np.random.default_rng(0)
        for part in ("images", "masks"):
            (self.data / part / "deep").mkdir(parents=True)
            for name in ("a", "b", "deep/c"):
                pixels = noise.integers(0, 3, (8, 8), np.uint8)
                Image.fromarray(pixels).save(self.data / part / f"{name}.png")
        options = yaml.safe_dump(plain_options(TrainOptions()), sort_keys=False)
        recipe = "extends: parent.yaml\nsteps: 100\nlr: 0.1\nval-mode: [none]\nclip: null\n"
        self.texts = {"data.yaml": _DATA, "recipe.yaml": recipe, "args.yaml": options}

    def make(self, rng: random.Random, number: int) -> dict[str, bytes]:
        """One of them; a recipe with the one that it extends."""
        name = list(self.texts)[number % 3]
        files = {name: yaml_text(rng, self.texts[name])}
        if name == "recipe.yaml":
            texts = (b"extends: recipe.yaml\n", b"steps: 5\n", yaml_text(rng, "steps: 5\nlr: 1\n"))
            files["parent.yaml"] = rng.choice(texts)
        return files

    def run(self, case: Path, number: int) -> bool:
        """Read it."""
        if number % 3 == 0:
            shutil.copytree(self.data, case / "data")
            dataset = open_dataset(str(case / "data.yaml"), "val")
            return dataset[0].image.ndim == 3
        return bool(read_recipe(case / "recipe.yaml") if number % 3 == 1 else read_options(case))

    def bounded(self, number: int) -> bool:
        """Always."""
        return True
