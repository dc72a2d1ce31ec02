"""Which files make a split: folders, patterns, templates and lists of names. Opens no image.

A template names the files of an image by `{stem}`, the name without its suffix, and `{parent}`, the
folders above it. Where images are looked for it also says which part of a name is the stem.
"""

import glob
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from paumer.data.folders import Pair, find_images, pair_files, subfolder
from paumer.data.images import SUFFIXES, open_file
from paumer.data.samples import Problem

Images = dict[str, list[Path]]
"""Images by name: their path below their folder, without the suffix."""
Pairs = tuple[tuple[Pair, ...], tuple[Problem, ...]]

# How people mark a mask that lies under the name of its image.
_ENDINGS = ("_mask", "_masks", "_label", "_labels", "_gt", "_seg")
_LONGEST_LIST = 2**26
_FIELDS = re.compile(r"\{(\w*)\}")


def find(base: Path, path: str, why: str) -> Images:
    """The images that a folder, a pattern or a template names. There must be some."""
    fields = _check_template(path)
    parts, rest = _split(base, path)
    start = subfolder(base, parts, why)
    images = _match_template(start, rest) if fields else find_images(start, rest or "**/*")
    if not images:
        what = f'no image in "{start}"' + (f' matches "{rest}"' if rest else "")
        raise ValueError(f"{what} ({why}; images end in {' '.join(SUFFIXES)})")
    return images


def pair_masks(base: Path, images: Images, path: str, why: str, listed: bool) -> Pairs:
    """The images with their masks, which a folder, a pattern or a template names.

    Masks of other images are a problem in a folder, unless the images come from a list.
    """
    if _check_template(path):
        subfolder(base, _split(base, path)[0], why)
        masks = {name: _fill(base, path, name) for name in images}
        wanted = Counter(file for files in masks.values() for file in files)
        if twice := [file for file, times in wanted.items() if times > 1]:
            raise ValueError(f'"{path}" gives several images the same mask, "{twice[0]}" ({why})')
        return pair_files(images, masks)
    masks = find(base, path, why)
    # A pattern for the images may take in the masks.
    mask_files = {file for files in masks.values() for file in files}
    rest = {name: [f for f in files if f not in mask_files] for name, files in images.items()}
    images = {name: files for name, files in rest.items() if files}
    if not images:
        raise ValueError(f"the images and the masks are the same files ({why})")
    pairs, problems = pair_files(images, masks, _ENDINGS)
    return pairs, tuple(p for p in problems if not (listed and p.kind == "missing image"))


def read_list(file: Path) -> list[str]:
    """The lines of a text file that say something."""
    try:
        with open_file(file) as stream:
            content = stream.read(_LONGEST_LIST + 1)
        if len(content) > _LONGEST_LIST:
            raise ValueError(
                f'"{file}" is too large for a list: give at most {_LONGEST_LIST} bytes'
            )
        lines = [line.strip() for line in content.decode("utf-8-sig").splitlines()]
    except OSError as error:
        raise ValueError(f'cannot read the list "{file}": {error.strerror or error}') from error
    except UnicodeDecodeError as error:
        raise ValueError(f'cannot read the list "{file}": it is not UTF-8 text') from error
    if not any(lines):
        raise ValueError(f'the list "{file}" is empty')
    return [line for line in lines if line]


def choose(images: Images, file: Path) -> tuple[Images, tuple[Problem, ...]]:
    """Those of the images that a list names, in its order, and the names that none has.

    A line is a name, with or without suffix, and may have more folders in front.
    """
    chosen: Images = {}
    problems = []
    for line in read_list(file):
        name = without_suffix(line)
        tails = ["/".join(name.split("/")[n:]) for n in range(name.count("/") + 1)]
        found = next((tail for tail in tails if tail in images), None)
        if found is None:
            text = f'"{line}" of the list "{file}" has no image: none of that name was found'
            problems.append(Problem(line, "missing image", text))
        elif found in chosen:
            text = f'"{line}" is in the list "{file}" twice: keep one'
            problems.append(Problem(line, "duplicate", text))
        else:
            chosen[found] = images[found]
    return chosen, tuple(problems)


def list_pairs(base: Path, file: Path, beside: Callable[[str], str] | None = None) -> Pairs:
    """The pairs of a list whose lines are an image and its mask, separated by blanks or a tab.

    Where `beside` says where the labels of an image lie, a line is an image alone, and labels need
    not exist.
    """
    pairs, problems = [], []
    for line in read_list(file):
        columns = line.split("\t") if "\t" in line else line.rsplit(maxsplit=1)
        if beside:
            columns = [line, beside(line)]
        if len(columns) != 2:
            raise ValueError(
                f'"{line[:200]}" of the list "{file}" is not an image and a mask: give images and '
                f"masks beside the list if its lines are names"
            )
        image, mask = (base / column.strip() for column in columns)
        if not image.is_file():
            text = f'the image "{image}" of the list "{file}" is missing'
            problems.append(Problem(str(image), "missing image", text))
        elif not (beside or mask.is_file()):
            text = f'the mask "{mask}" of the list "{file}" is missing'
            problems.append(Problem(str(image), "missing mask", text))
        else:
            pairs.append(Pair(without_suffix(columns[0].strip()), image, mask))
    return tuple(pairs), tuple(problems)


def without_suffix(path: str) -> str:
    """A name as `Images` has it."""
    name = PurePosixPath(path.replace("\\", "/"))
    return (name.with_suffix("") if name.suffix.lower() in SUFFIXES else name).as_posix()


def _check_template(path: str) -> list[str]:
    """The fields of a template; none where the text is a folder or a pattern."""
    fields: list[str] = _FIELDS.findall(path)
    for field in fields:
        if field not in ("stem", "parent"):
            raise ValueError(f'"{path}" has {{{field}}}: a template knows {{stem}} and {{parent}}')
    return fields


def _split(base: Path, path: str) -> tuple[Path, str]:
    """The folder before the first part that is a pattern or template, and the rest."""
    parts, wild = Path(path).parts, _FIELDS.search if _FIELDS.search(path) else glob.has_magic
    if (base / path).is_dir():
        return Path(path), ""
    fixed = next((i for i, part in enumerate(parts) if wild(part)), len(parts))
    return Path(*parts[:fixed]), "/".join(parts[fixed:])


def _match_template(start: Path, template: str) -> Images:
    """The images below a folder that a template fits, by their parent and stem."""
    pattern = re.sub(
        r"(?<![^/])\\\{parent\\\}/", "(?:(?P<parent>.+)/)?", re.escape(template), count=1
    )
    for field, letters in (("parent", "[^/]+"), ("stem", "[^/]+")):
        if f"<{field}>" not in pattern:
            pattern = pattern.replace(rf"\{{{field}\}}", f"(?P<{field}>{letters})", 1)
        pattern = pattern.replace(rf"\{{{field}\}}", f"(?P={field})")
    wild = re.sub(r"(?<![^/])\{parent\}/", "**/", glob.escape(template))
    images: Images = {}
    for files in find_images(start, _FIELDS.sub("*", wild)).values():
        for file in files:
            match = re.fullmatch(pattern, file.relative_to(start).as_posix())
            if match:
                groups = [match.groupdict().get(field) for field in ("parent", "stem")]
                images.setdefault("/".join(part for part in groups if part), []).append(file)
    return images


def _fill(base: Path, template: str, name: str) -> list[Path]:
    """The file that a template gives for an image, in a list, which is empty if there is none."""
    parent, _, stem = name.rpartition("/")
    path = template if parent else template.replace("{parent}/", "")
    file = base / path.replace("{parent}", parent).replace("{stem}", stem)
    return [file] if file.is_file() else []
