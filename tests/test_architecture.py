"""Each outside library has one door, and only the command line prints.

Which layer may import which is a contract of import-linter, in pyproject.toml.
"""

import ast
from pathlib import Path

import pytest

import paumer

ROOT = Path(paumer.__file__).parent
DOORS = {
    "timm": ("model.backbone", "model.decoders"),
    "matplotlib": ("study.figures",),
    "av": ("inference.video",),
    "datasets": ("data.hub",),
    "onnx": ("inference.exported", "exporting.onnx"),
    "onnxruntime": ("inference.exported", "exporting.onnx"),
    "onnxscript": ("inference.exported", "exporting.onnx"),
    "openvino": ("inference.exported",),
    "fastapi": ("serve.http",),
    "starlette": ("serve.guard", "serve.http"),
    "uvicorn": ("serve.process",),
    "prometheus_client": ("serve.watch",),
    "lightning_fabric": ("training.loop", "training.run"),
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


@pytest.mark.parametrize("module", MODULES)
def test_each_outside_library_has_one_door(module):
    used = set(libraries(MODULES[module])) & set(DOORS)
    assert [library for library in used if module not in DOORS[library]] == []


def test_every_door_is_used():
    for library, doors in DOORS.items():
        for module in doors:
            text = ast.unparse(MODULES[module])
            assert library in text, f"{module} no longer needs {library}"


@pytest.mark.parametrize("module", MODULES)
def test_only_the_command_line_prints(module):
    calls = [node for node in ast.walk(MODULES[module]) if isinstance(node, ast.Call)]
    printed = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
    assert printed == [] or module.startswith("cli.")
