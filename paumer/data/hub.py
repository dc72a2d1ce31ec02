"""Data sets of Hugging Face `datasets`, saved to disk: a table with images and their masks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paumer.data.folders import FolderDataset
from paumer.untrusted import near

_OTHER_NAMES = {"val": ("validation", "valid"), "train": ("training",), "test": ("testing",)}


@dataclass(eq=False, repr=False)
class HubDataset(FolderDataset):
    """The rows of a table, each with an image and a mask, decoded as all others are."""

    tables: tuple[Any, Any] = field(repr=False, default=((), ()))
    """The columns of the images and of the masks, each a table of its own."""
    columns: tuple[str, str] = ("image", "label")
    rows: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def name_of(self, index: int) -> str:
        """The number of the row."""
        return row_name(self.rows[index])

    def where(self, index: int) -> tuple[Path, Path]:
        """The row and the columns, written like files."""
        row = str(self.rows[index])
        image, mask = (Path(self.name, self.split, row, name) for name in self.columns)
        return image, mask

    def files(self, index: int) -> None:
        """None: rows are not files."""

    def content(self, index: int, labels: bool) -> Path | bytes:
        """What is in the image file that a row has in a column, or where it lies."""
        cell = self.tables[labels][self.rows[index]][self.columns[labels]]
        cell = cell if isinstance(cell, dict) else {"bytes": cell}
        if isinstance(cell.get("bytes"), bytes):
            return bytes(cell["bytes"])
        if isinstance(cell.get("path"), str):
            return Path(cell["path"])
        raise ValueError(f'"{self.where(index)[labels]}" holds no image')


def row_name(row: int) -> str:
    """What the image of a row is called."""
    return f"{row:06d}"


def open_table(
    folder: Path, split: str, columns: tuple[str, str], listed: bool = False
) -> tuple[Any, Any]:
    """These columns of a split that `save_to_disk` wrote, as they are stored.

    Rows that a list names may be of the training split where there is no other.
    """
    try:
        from datasets import DatasetDict, Image, load_from_disk
    except ImportError as error:
        raise ImportError(
            'a data set of Hugging Face needs the extra "hf": pip install "paumer[hf]"'
        ) from error
    if not any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        raise ValueError(f'"{folder}" is not a data set that save_to_disk of datasets wrote')
    try:
        table = load_from_disk(str(folder.resolve()))
    except Exception as error:  # Whatever a damaged table makes it raise.
        raise ValueError(f'cannot read the data set "{folder}": {error}') from error
    if isinstance(table, DatasetDict):
        names = (
            split,
            *_OTHER_NAMES[split],
            *(("train", *_OTHER_NAMES["train"]) if listed else ()),
        )
        found = next((name for name in names if name in table), None)
        if found is None:
            raise ValueError(f'"{folder}" has no "{split}" split: it has {", ".join(table)}')
        table = table[found]
    for name in columns:
        if name not in table.column_names:
            there = ", ".join(table.column_names)
            guess = near(name, table.column_names)
            raise ValueError(f'"{folder}" has no column "{name}": it has {there}{guess}')
        if isinstance(table.features[name], Image):
            table = table.cast_column(name, Image(decode=False))
    table = table.with_format(None)
    return table.select_columns(columns[0]), table.select_columns(columns[1])
