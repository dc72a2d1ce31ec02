"""YAML files that others wrote, read within bounds: no file can hang, crash or flood a program."""

from pathlib import Path
from typing import Any

import yaml

_DEPTH = 50
_ENTRIES = 100_000


def read_yaml(path: Path, most: int = 2**20) -> object:
    """The content of a YAML file of at most ``most`` bytes; None where it is empty.

    What is wrong with it is a ValueError that names the file and the line. Besides invalid YAML
    that is a key written twice, and aliases that stand for far more than is written. Tuples of
    Python come as lists.
    """
    if not path.is_file():
        raise FileNotFoundError(f'"{path}" is missing, or not a file')
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f'"{path}" is too large for a YAML file: give at most {most} bytes')
    try:
        text = content.decode("utf-8-sig")
        return yaml.load(text, _Loader)
    except UnicodeDecodeError as error:
        line, problem = content.count(b"\n", 0, error.start) + 1, "the file is not UTF-8 text"
    except yaml.reader.ReaderError as error:
        line, problem = text.count("\n", 0, error.position) + 1, error.reason
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = str(error.problem)
    raise ValueError(f'"{path}" is not valid YAML: line {line}, {problem}')


def line_of(path: Path, key: str) -> int:
    """The line of a key of the mapping in a YAML file; hyphens in it count as underscores."""
    node = yaml.compose(path.read_text("utf-8-sig"), _Loader)
    keys = [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    found = [k.start_mark.line + 1 for k in keys if str(k.value).replace("-", "_") == key]
    return next(iter(found), 1)


class _Loader(yaml.SafeLoader):
    """Plain values alone, each key once, and only so many of them, however they are written."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.entries = 0
        self.sizes: dict[yaml.Node, int] = {}
        """How many entries each complete node is, with all that its aliases stand for."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node; raises once there are too many."""
        event, before = self.peek_event(), self.entries  # type: ignore[no-untyped-call]
        self.depth += 1
        if self.depth > _DEPTH:
            raise _refused(f"there are more than {_DEPTH} levels", event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if node not in self.sizes:
                raise _refused(f'the alias "{event.anchor}" stands for itself', event)
            self.entries += self.sizes[node]
        elif node is not None:
            self.entries += 1
            self.sizes[node] = self.entries - before
        if self.entries > _ENTRIES:
            raise _refused(f"there are more than {_ENTRIES} entries", event)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A value; one that is not what its tag says is an error of the file."""
        try:
            if node.tag.endswith((":int", ":float")) and len(node.value) > 100:
                raise ValueError  # Reading it could take minutes.
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f'"{str(node.value)[:40]}" is not a value of the kind "{kind}"'
            raise _refused(problem, node) from error

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping; of a key that is written twice YAML would keep the last in silence."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise _refused(f'"{key.value}" is written twice', key)
            seen.add((key.tag, key.value))
        return node


_Loader.yaml_constructors = {
    **yaml.SafeLoader.yaml_constructors,
    "tag:yaml.org,2002:python/tuple": yaml.SafeLoader.construct_yaml_seq,
}


def _refused(problem: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, where.start_mark)
