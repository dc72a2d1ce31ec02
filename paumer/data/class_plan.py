"""The classes a `data.yaml` names, and what the values in masks and label files mean by them."""

from collections.abc import Mapping, Sequence
from typing import Any

from paumer.classes import IGNORE, ClassSet, Colour, distinct_colours
from paumer.data.folders import UNCOVERED, Code, Value
from paumer.untrusted import near, quoted, shorten

_LONGEST_NAME = 200

Plan = dict[Any, Any]
Entries = dict[str, Colour | None]
"""Names of classes with their colours, None where none is given."""


def read_classes(
    plan: Plan, categories: Mapping[int, str] | None = None, drawn: bool = False
) -> tuple[ClassSet, Code]:
    """The classes after merging and ignoring, and the label of each value.

    `categories` are the names that the label files themselves give to their ids. `drawn` labels are
    outlines: `background` is what they leave.
    """
    rgb = plan.get("rgb_masks", False)
    if not isinstance(rgb, bool):
        raise wrong("rgb_masks", rgb, "must be true or false")
    if rgb and drawn:
        raise ValueError("rgb_masks is for masks that are images; these labels are outlines")
    entries, ids = _entries(plan, categories)
    names: dict[Value, str] = _by_colour(entries) if rgb else _by_id(plan, entries, ids)
    merged = _merged(plan, entries)
    values, ignored = _ignored(plan, entries, rgb, drawn or IGNORE in names)
    if drawn:
        values = {*values, UNCOVERED}
        if (background := _background(plan)) is not None:
            entries.setdefault(background, None)
            names[UNCOVERED] = background
            values.remove(UNCOVERED)
    elif "background" in plan:
        raise ValueError("background is for labels that are outlines: in masks it has an id")
    if twice := sorted(values & names.keys(), key=repr):
        what = "colours" if rgb else "ids"
        raise ValueError(f"the {what} {quoted(twice)} are ignored and also stand for classes")
    class_set = _class_set(entries, merged, ignored)
    meaning = dict.fromkeys(values, IGNORE)
    for value, name in names.items():
        final = merged.get(name, name)
        lost = name in ignored or final in ignored
        meaning[value] = IGNORE if lost else class_set.names.index(final)
    return class_set, Code(meaning, rgb)  # type: ignore[arg-type]


def wrong(key: str, given: Any, must: str) -> ValueError:
    """What to raise for a value that its key cannot have."""
    return ValueError(f"{key} is {quoted(given)}, and {must}")


def check_keys(plan: Plan, known: tuple[str, ...], start: str = "", where: str = "") -> None:
    """Raise for a key that is none of those known."""
    for key in plan:
        if key not in known:
            what = f'"{where}{shorten(str(key), 200)}" is unknown{near(str(key), known)}'
            raise ValueError(f"{start}{what}. Known are {', '.join(known)}")


def is_id(value: object) -> bool:
    """Whether masks can hold it: they come with up to 32 bits."""
    return type(value) is int and -(2**31) < value < 2**31


def _class_set(entries: Entries, merged: Mapping[str, str], ignored: set[str]) -> ClassSet:
    """The classes that are left, each where the first of those merged into it was."""
    left: Entries = {}
    for name, colour in entries.items():
        final = merged.get(name, name)
        if name not in ignored and final not in ignored:
            left[final] = left.get(final) or entries.get(final) or colour
    if not 1 <= len(left) <= IGNORE:
        raise ValueError(f"{len(left)} classes, and there must be 1 to {IGNORE}")
    spare = distinct_colours(len(left))
    colours = tuple(colour or spare[i] for i, colour in enumerate(left.values()))
    return ClassSet(tuple(left), colours)


def _entries(plan: Plan, categories: Mapping[int, str] | None) -> tuple[Entries, dict[int, str]]:
    """The classes with their colours, and which of them each id stands for."""
    if "names" in plan and "classes" in plan:
        raise ValueError("classes and names are both given: keep one")
    given, ids = plan.get("classes", plan.get("names")), dict(categories or {})
    if given is None and categories is not None:
        return dict.fromkeys(ids.values()), ids
    numbers: Sequence[int] | None = None
    if isinstance(given, list):
        pairs = [(name, None) for name in given]
    elif not isinstance(given, dict):
        must = "must be a list of names, or lead from names to colours or from ids to names"
        raise wrong("names" if "names" in plan else "classes", given, must)
    elif all(map(is_id, given)):
        numbers = sorted(given)
        pairs = [(given[value], None) for value in numbers]
    else:
        pairs = list(given.items())
    entries: Entries = {}
    for i, (name, colour) in enumerate(pairs):
        if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
            raise ValueError(
                f"class {i} is called {quoted(name)}, which is not a text of 1 to {_LONGEST_NAME} "
                f"letters. Put the name in quotes if it looks like something else to YAML"
            )
        if name in entries:
            raise ValueError(f'two classes are called "{name}": give each its own name')
        entries[name] = None if colour is None else _colour(colour, f'class "{name}"')
    count = plan.get("nc", len(entries))
    if count != len(entries):
        raise wrong("nc", count, f"there are {len(entries)} names")
    if categories is None:
        return entries, dict(zip(numbers or range(len(pairs)), entries, strict=True))
    ignored = plan.get("ignore")
    known = [*entries, *_map(plan), *(ignored if isinstance(ignored, list) else ())]
    if rest := [name for name in ids.values() if name not in known]:
        raise ValueError(
            f"the label file has the categories {quoted(rest)}, which are not among the classes: "
            f"add them there, merge them by map, or list them under ignore"
        )
    return entries | {name: None for name in ids.values() if name not in entries}, ids


def _by_id(plan: Plan, entries: Entries, ids: Mapping[int, str]) -> dict[Value, str]:
    """The class of each id: as `map` says, if it says anything of ids."""
    given, names = _map(plan), list(entries)
    mapped: dict[Value, str] = {}
    for value, label in given.items():
        if isinstance(value, str) and value in entries:
            continue
        index = names.index(label) if label in names else label
        if not is_id(value) or type(index) is not int or not 0 <= index < len(names):
            raise ValueError(
                f"map says {quoted(value)}: {quoted(label)}, and must lead from an id in the masks "
                f"or a class to a class, 0 to {len(names) - 1} or its name"
            )
        mapped[value] = names[index]
    return mapped or dict(ids.items())


def _by_colour(entries: Entries) -> dict[Value, str]:
    names: dict[Value, str] = {}
    for name, colour in entries.items():
        if colour is None:
            raise ValueError(
                f"with rgb_masks every class needs a colour, as in {{{name}: [128, 64, 128]}}"
            )
        if colour in names:
            both = f'"{names[colour]}" and "{name}"'
            raise ValueError(f"the classes {both} have the same colour {colour}")
        names[colour] = name
    return names


def _map(plan: Plan) -> Plan:
    given = plan.get("map")
    if "map" in plan and (not isinstance(given, dict) or not given):
        raise wrong("map", given, "must be like {7: 0, 8: 1} or {truck: car}")
    return given or {}


def _merged(plan: Plan, entries: Entries) -> dict[str, str]:
    """What becomes of the classes that `map` merges by name."""
    given, names = _map(plan), list(entries)
    if plan.get("rgb_masks") and any(name not in entries for name in given):
        raise ValueError(
            "map is for masks of ids; with rgb_masks it can merge classes by name only"
        )
    merged = {}
    for name, label in given.items():
        if name not in entries:
            continue
        if type(label) is int and 0 <= label < len(names):
            label = names[label]
        if not isinstance(label, str) or not 1 <= len(label) <= _LONGEST_NAME:
            raise wrong(f"map of the class {quoted(name)}", label, "must be the name of a class")
        merged[name] = label
    for name, label in merged.items():
        if merged.get(label, label) != label:
            raise ValueError(f'map merges "{name}" into "{label}", and that into another class')
    return merged


def _ignored(plan: Plan, entries: Entries, rgb: bool, taken: bool) -> tuple[set[Value], set[str]]:
    """The values and the classes that count nowhere; `taken`: 255 is not one of them by itself."""
    example = "[[0, 0, 0]]" if rgb else "[255]"
    usual: list[Any] = [] if rgb or taken else [IGNORE]
    given = plan.get("ignore", usual)
    kind = "with rgb_masks must be a list of colours" if rgb else "must be a list of ids"
    if not isinstance(given, list):
        raise wrong("ignore", given, f"{kind} or classes, as in {example}")
    names = {name for name in given if isinstance(name, str)}
    if unknown := sorted(names - entries.keys()):
        guess = near(unknown[0], entries)
        raise ValueError(f"ignore names {quoted(unknown[0])}, which is not a class{guess}")
    values = [value for value in given if not isinstance(value, str)]
    if rgb:
        return {_colour(value, "ignore") for value in values}, names
    if not all(map(is_id, values)):
        raise wrong("ignore", given, f"{kind} or classes, as in {example}")
    return set(values or (usual if names else ())), names


def _background(plan: Plan) -> str | None:
    given = plan.get("background")
    if given is not None and not (isinstance(given, str) and 1 <= len(given) <= _LONGEST_NAME):
        raise wrong("background", given, "must be the name of a class")
    return given


def _colour(given: Any, whose: str) -> Colour:
    good = isinstance(given, list) and len(given) == 3
    if not good or any(type(c) is not int or not 0 <= c <= 255 for c in given):
        must = "must be three numbers from 0 to 255, as in [128, 64, 128]"
        raise wrong(f"the colour of {whose}", given, must)
    red, green, blue = given
    return red, green, blue
