"""JSON that others wrote, read within bounds; and what messages say of such content."""

import json
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = 150
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20


def read_json(path: Path, most: int = 2**20) -> dict[str, object]:
    """The object in a JSON file of at most ``most`` bytes; anything else there is a ValueError."""
    if not path.is_file():
        raise FileNotFoundError(f'"{path}" is missing or not a file')
    with path.open("rb") as file:
        content = file.read(most + 1)
    try:
        if len(content) > most:
            raise ValueError(f"it has more than {most} bytes")
        values = json.loads(content)
        if not isinstance(values, dict):
            raise ValueError(f"it holds a {type(values).__name__}, not an object of names")
    except RecursionError:
        raise ValueError(f'cannot read "{path}": it is nested too deeply') from None
    except ValueError as error:
        raise ValueError(f'cannot read "{path}": {error}') from error
    return values


def quoted(value: object) -> str:
    """The value as a message repeats it: as Python writes it, in a line of 200 characters."""
    return shorten(" ".join(_SHORT.repr(value).splitlines()), 200)


def shorten(text: str, most: int = 600) -> str:
    """The text, without its middle where it has more than ``most`` characters."""
    half = most // 2 - 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def near(word: str, words: Iterable[str]) -> str:
    """` (did you mean "..."?)` where one of the words is much like this one, or nothing."""
    by_small = {known.lower(): known for known in words}
    close = get_close_matches(word.lower(), by_small, 1)
    return f' (did you mean "{by_small[close[0]]}"?)' if close else ""
