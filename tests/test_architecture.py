"""The house: imports point to lower floors, and each outside library has one door."""

import ast
from pathlib import Path

import pytest

import paumer

ROOT = Path(paumer.__file__).parent
FLOORS = """
disk memory pause_config options data.labels scenes.canvas serve.arrivals serve.watch
pausing study.tradeoff windows video scenes.backdrop scenes.furniture scenes.scenery scenes.trees
scenes.traffic
criteria model.backbone model.walk model.weights media data.transforms scenes.street serve.governor
model.decoders model.foreign data.layouts scenes.frontage sources segmentation
model.segmenter export_fused scenes.plan serve.answers
export scenes.scene serve.openapi
engines
predict data.datasets scenes.files
study.sizes study.speed data.checking serve.batcher
study.accuracy study.cost study.figures study.grids train.checkpoint train.feed serve.service
study.sweep study.uncertainty train.task train.metrics serve.server
study.tuning study.paper_figures study.temperature train.run serve.process
study.illustration study.adaptive jobs
commands.console
commands.bench commands.demo commands.export commands.study commands.measure commands.predict
commands.serve
cli
""".strip().splitlines()
"""From the ground up; a module imports from the lines above its own only."""

FLOOR = {module: number for number, line in enumerate(FLOORS) for module in line.split()}
DOORS = {
    "timm": "model.",
    "matplotlib": "study.figures",
    "av": "video",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "openvino": "export",
    "fastapi": "serve.server",
    "starlette": "serve.server",
    "uvicorn": "serve.process",
    "prometheus_client": "serve.watch",
    "lightning": "train.",
}
WITHOUT_TORCH = {
    "pause_config",
    "options",
    "data.labels",
    "study.tradeoff",
    "serve.arrivals",
    "serve.governor",
}


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


# The front door and the folders' own names stand outside the floors.
MODULES = {
    name_of(path): ast.parse(path.read_text("utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
}


def imports_of(tree):
    """Full names of everything imported anywhere in a module, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inner_imports_of(tree):
    """The modules of ours that a module imports, without the leading name."""
    for name in imports_of(tree):
        if name.startswith("paumer."):
            inner = name.removeprefix("paumer.")
            while inner and inner not in MODULES:
                inner = inner.rpartition(".")[0]
            if inner:
                yield inner


def test_every_module_has_a_floor():
    assert sorted(set(MODULES) - set(FLOOR)) == []


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_to_lower_floors(module):
    below = [other for other in inner_imports_of(MODULES[module]) if other != module]
    assert [other for other in below if FLOOR.get(other, 0) >= FLOOR.get(module, 99)] == []


@pytest.mark.parametrize("module", MODULES)
def test_each_outside_library_has_one_door(module):
    used = {name.split(".")[0] for name in imports_of(MODULES[module])}
    assert [lib for lib in used if lib in DOORS and not module.startswith(DOORS[lib])] == []


@pytest.mark.parametrize("module", MODULES)
def test_only_the_command_line_prints(module):
    calls = [node for node in ast.walk(MODULES[module]) if isinstance(node, ast.Call)]
    printed = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
    assert printed == [] or module == "cli" or module.startswith("commands.")


@pytest.mark.parametrize("module", sorted(WITHOUT_TORCH & set(MODULES)))
def test_modules_without_torch_reach_none(module):
    heavy = {"torch", "torchvision", "timm", "safetensors", "jaxtyping"}
    seen, todo = set(), [module]
    while todo:
        here = todo.pop()
        seen.add(here)
        assert heavy.isdisjoint(name.split(".")[0] for name in imports_of(MODULES[here])), here
        todo += [other for other in inner_imports_of(MODULES[here]) if other not in seen]


def test_the_check_itself_sees_a_wrong_import():
    tree = ast.parse("def f():\n    from paumer.model.segmenter import build_model")
    assert list(inner_imports_of(tree)) == ["model.segmenter"]
    assert list(inner_imports_of(ast.parse("from paumer import pausing"))) == ["pausing"]
    assert list(inner_imports_of(ast.parse("import paumer.model.weights as w"))) == [
        "model.weights"
    ]
