"""Arguments of the wrong kind: one sentence each, before anything is done with them."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from inspect import Parameter, signature
from io import IOBase
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from paumer.untrusted import quoted

_LONGEST = 4096  # Characters of a text: as many as a path can have.
F = TypeVar("F", bound=Callable[..., object])
_WORDS = {
    int: "a whole number",
    float: "a number, such as 0.001",
    bool: "true or false",
    str: "a text",
    bytes: "bytes",
    Path: "a path",
    NoneType: "None",
}


def checked(function: F) -> F:
    """The function, which raises a TypeError where an argument does not fit its annotation.

    Arrays are left to what reads them, which says more of them.
    """
    known = signature(function)
    kinds = {
        name: item.annotation
        for name, item in known.parameters.items()
        if item.annotation is not Parameter.empty and item.kind is not Parameter.VAR_KEYWORD
    }

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        try:
            given = known.bind(*args, **kwargs).arguments
        except TypeError:  # A name that there is not: the call itself says it.
            given = {}
        for name, value in given.items():
            check(name, value, kinds.get(name, object))
        return function(*args, **kwargs)

    return cast(F, call)


def check_fields(value: Any) -> None:
    """Raise a TypeError where a field of a dataclass does not fit its annotation."""
    kinds = _kinds_of(cast(Hashable, type(value)))
    for item in fields(value):
        check(item.name, getattr(value, item.name), kinds[item.name])


@cache
def _kinds_of(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def check(name: str, value: object, kind: Any) -> None:
    """Raise a TypeError where the argument of that name does not fit its annotation."""
    if not fits(value, kind):
        given, shape = quoted(value), getattr(value, "shape", None)
        if isinstance(shape, tuple) and shape:  # A number of numpy's has none.
            given = f"of shape {tuple(shape)} and type {getattr(value, 'dtype', None)}"
        elif shape != () and not isinstance(value, str | int | float | list | tuple | dict | None):
            given = f"of type {type(value).__name__}"
        raise TypeError(f"{name} is {given}: give {in_words(kind)}")
    if isinstance(value, str | Path) and (len(text := str(value)) > _LONGEST or "\0" in text):
        raise ValueError(
            f"{name} is {quoted(text)}: give at most {_LONGEST} characters, none of them null"
        )


def fits(value: object, kind: Any) -> bool:
    """Whether a value is what an annotation asks for, as far as that can be seen quickly."""
    if isinstance(kind, str):  # Of a class that is not loaded yet, and then has no instances.
        names = set(re.findall(r"\w+", kind))
        return bool(names & {"None" if value is None else "", *_class_names(value)})
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple and parts[-1] is not ...:
        alike = isinstance(value, tuple) and len(value) == len(parts)
        return alike and all(map(fits, cast(Sequence[object], value), parts))
    if origin in (tuple, Sequence, Iterable):
        listed = isinstance(value, list | tuple)
        if isinstance(value, str | bytes | IOBase) or not (listed or isinstance(value, Iterable)):
            return False
        if not listed:
            return origin is Iterable
        return all(fits(item, parts[0]) for item in cast(Sequence[object], value))
    if origin in (Mapping, dict):
        names, values = parts
        return isinstance(value, Mapping) and all(
            fits(name, names) and fits(item, values) for name, item in value.items()
        )
    if origin is Callable:
        return callable(value)
    if parts:
        return any(fits(value, part) or hasattr(part, "array_type") for part in parts)
    if kind is int:
        return type(value) is int and abs(value) < 2**63
    if kind is float:
        return type(value) is float or (type(value) is int and abs(value) < 2**63)
    return isinstance(value, kind) if isinstance(kind, type) and kind is not Any else True


def _class_names(value: object) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__} - {"object"}


def at_least_one(number: int, name: str) -> int:
    """The number, when it is at least one."""
    if number < 1:
        raise ValueError(f"{name} is {number}: give at least 1")
    return number


def in_words(kind: Any) -> str:
    """What to give for an annotation."""
    if isinstance(kind, str):
        return kind.replace(" | ", " or ")
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(parts)
    if origin is tuple and parts[-1] is not ...:
        return f"({', '.join(map(in_words, parts))})"
    if origin in (tuple, Sequence, Iterable):
        return f"a list, each {in_words(parts[0])}"
    if origin in (Mapping, dict):
        return f"a dictionary of {in_words(parts[0])} to {in_words(parts[1])}"
    if origin is Callable:
        return "a function"
    if parts:
        words = list(dict.fromkeys(in_words(part) for part in parts))
        return " or ".join([", ".join(words[:-1]), words[-1]])
    if hasattr(kind, "array_type"):
        return "an array"
    name = getattr(kind, "__name__", str(kind))
    return _WORDS.get(kind, f"{'an' if name[0] in 'AEIO' else 'a'} {name}")
