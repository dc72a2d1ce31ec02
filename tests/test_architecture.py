"""Each outside library has one door, and only the command line prints.

Which layer may import which is a contract of import-linter, in pyproject.toml.
"""

import ast
import functools
from pathlib import Path

import paumer

ROOT = Path(paumer.__file__).parent
DOORS = {
    "timm": ("model.backbone", "model.decoders"),
    "matplotlib": ("study.figures",),
    "av": ("inference.video",),
    "datasets": ("data.hub",),
    "transformers": ("huggingface",),
    "onnx": (
        *("inference.exported", "inference.graphs", "exporting.onnx", "exporting.labels"),
        *("exporting.nodes", "exporting.assembly", "exporting.rounding", "exporting.verify"),
    ),
    "onnxruntime": ("inference.exported",),
    "onnxscript": ("exporting.onnx",),
    "openvino": ("inference.exported",),
    "fastapi": ("serve.http",),
    "starlette": ("serve.guard", "serve.http", "serve.process"),
    "uvicorn": ("serve.process",),
    "prometheus_client": ("serve.watch",),
    "lightning_fabric": ("training.loggers", "training.loop", "training.run"),
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
}


def libraries(tree):
    """The outside names imported anywhere in a module, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield node.module.split(".")[0]


def test_each_outside_library_has_one_door():
    for module, tree in MODULES.items():
        used = set(libraries(tree)) & set(DOORS)
        assert [library for library in used if module not in DOORS[library]] == [], module


def test_every_door_is_used():
    for library, doors in DOORS.items():
        for module in doors:
            text = ast.unparse(MODULES[module])
            assert library in text, f"{module} no longer needs {library}"


def test_only_the_command_line_prints():
    for module, tree in MODULES.items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        printed = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
        assert printed == [] or module.startswith("cli."), module


LONGEST_CHAIN = 9


def own_imports(tree):
    """The modules of ours that importing a module imports."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "paumer":
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from (n for name in names if (n := name.removeprefix("paumer.")) in MODULES)


@functools.cache
def chain(module):
    """The longest row of modules each of which imports the next."""
    return [module, *max(map(chain, own_imports(MODULES[module])), key=len, default=[])]


def test_no_chain_of_imports_is_long():
    longest = max(map(chain, MODULES), key=len)
    assert len(longest) <= LONGEST_CHAIN, " <- ".join(longest)
