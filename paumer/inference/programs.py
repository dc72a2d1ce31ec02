"""Untrusted programs of torch.export (.pt2): what torch would run of them is refused.

Reading such a file, torch evaluates its shapes as Python, loads compiled code that lies in it, and
looks operations up by name. Only what `paumer export` writes passes.
"""

import ast
import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from paumer.untrusted import quoted

_GRAPH = "models/model.json"
_FILES = re.compile(
    r"models/model\.json|extra/paumer\.json|data/sample_inputs/model\.pt|byteorder|"
    r"data/weights/(model_weights_config\.json|weight_\d+)|archive_(format|version)|"
    r"data/constants/(model_constants_config\.json|tensor_\d+)|\.data/(version|serialization_id)"
)
_OPERATIONS = re.compile(
    r"torch\.ops\.aten\.(?!from_file)\w+\.\w+|_operator\.\w+|math\.\w+|torch\.sym_\w+"
)
_NODES = (ast.Expression, ast.Call, ast.keyword, ast.Load, ast.UnaryOp, ast.USub)
_NAMES = {
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Abs",
    "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv", "IntTrueDiv", "FloatTrueDiv", "CeilToInt",
    "FloorToInt", "TruncToInt", "ToFloat", "Identity", "ModularIndexing", "Where", "Piecewise",
    "ExprCondPair", "Equality", "Unequality", "LessThan", "GreaterThan", "StrictLessThan",
    "StrictGreaterThan", "And", "Or", "Not", "true", "false",
}  # fmt: skip
_MOST_GRAPH = 2**26  # Bytes; that of a ViT with twelve blocks has about one million.


def open_program(path: Path) -> BytesIO:
    """The archive for torch to load, packed anew; a ValueError if paumer would not write such."""
    packed = BytesIO()
    try:
        with ZipFile(path) as archive, ZipFile(packed, "w", ZIP_STORED) as new:
            for entry in archive.infolist():
                name = entry.filename.partition("/")[2]
                if not _FILES.fullmatch(name) or entry.compress_type != ZIP_STORED:
                    raise ValueError(f"it holds {quoted(entry.filename)}")
                if f"program/{name}" in new.NameToInfo:
                    raise ValueError(f"it holds {quoted(name)} twice")
                content = archive.read(entry)
                if name == _GRAPH:
                    _check_graph(content)
                new.writestr(f"program/{name}", content)
    except (BadZipFile, RuntimeError, RecursionError, EOFError, NotImplementedError) as error:
        raise ValueError(f"it is damaged ({error})") from error
    packed.seek(0)
    return packed


def _check_graph(content: bytes) -> None:
    """Raise if a graph holds operations or shapes that could do anything but compute."""
    if len(content) > _MOST_GRAPH:
        raise ValueError(f"its graph has {len(content):,} bytes")
    graph = json.loads(content)
    for target in _values(graph, "target"):
        if not (isinstance(target, str) and _OPERATIONS.fullmatch(target)):
            raise ValueError(f"its graph runs {quoted(target)}")
    for text in {str(text) for text in _values(graph, "expr_str")}:
        _check_shape(text)


def _values(value: object, key: str) -> Iterator[object]:
    """What stands under a name, at any depth."""
    if isinstance(value, dict):
        yield from (part for name, part in value.items() if name == key)
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _values(part, key)


def _check_shape(text: str) -> None:
    """Raise unless a shape is sums, products and the like of numbers and symbols."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        fits = isinstance(node, _NODES)
        if isinstance(node, ast.Name):
            fits = node.id in _NAMES
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            fits = node.value.isidentifier()
        elif isinstance(node, ast.Constant):
            fits = isinstance(node.value, int | float) and abs(node.value) < 2**63
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Pow":
            fits = _small_power(node)
        if not fits:
            raise ValueError(f"a shape in its graph is {quoted(text)}")


def _small_power(call: ast.Call) -> bool:
    """Whether a power has a small exponent, and is not one of another power: such take forever."""
    powers = [node for node in ast.walk(call) if isinstance(node, ast.Name) and node.id == "Pow"]
    return len(powers) == 1 and ast.unparse(call.args[1]) in ("Integer(2)", "Integer(-1)")
