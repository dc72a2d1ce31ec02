"""The front door: these names and no others, and nothing happens on import."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import paumer
from paumer.api import Exported
from paumer.data.samples import Dataset
from paumer.study.tradeoff import Budget
from paumer.study.tuning import Tuned

NAMES = [
    "Client",
    "Inference",
    "Measurement",
    "Mode",
    "Model",
    "PAPER_CONFIGS",
    "PauseConfig",
    "PausingSegmenter",
    "Prediction",
    "Predictor",
    "Segmentation",
    "Stage",
    "Threshold",
    "DEFAULT_MODEL",
    "__version__",
    "bench",
    "build_model",
    "evaluate",
    "export",
    "load",
    "resume",
    "sweep",
    "train",
    "tune",
]


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_these_are_the_public_names():
    assert sorted(paumer.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(paumer))


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_resolves_and_says_what_it_is(name):
    thing = getattr(paumer, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert inspect.getdoc(thing)
        assert not inspect.getdoc(thing).startswith(f"{name}(")  # A dataclass's stand-in.
        assert thing.__module__.startswith("paumer.")


@pytest.mark.parametrize(
    "name",
    ["Inference", "Measurement", "Mode", "Model", "PausingSegmenter", "Predictor", "Segmentation"],
)
def test_each_public_method_says_what_it_does(name):
    thing = getattr(paumer, name)
    own = {k: getattr(thing, k) for k in vars(thing) if not k.startswith("_")}
    methods = {k: v for k, v in own.items() if callable(v) or isinstance(v, property)}
    assert methods or name == "Inference"
    assert [key for key, value in methods.items() if not inspect.getdoc(value)] == []


def public_signatures():
    """Every public function, and every public method of a public class."""
    for name in NAMES:
        thing = getattr(paumer, name)
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            for key, value in vars(thing).items():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                if inspect.isfunction(function) and (key == "__init__" or key[0] != "_"):
                    yield f"{name}.{key}", function


def test_signatures_complete_in_an_editor():
    for name, function in public_signatures():
        parameters = inspect.signature(function).parameters.values()
        texts = [str(p.annotation) for p in parameters if p.name not in ("self", "cls")]
        assert "<class 'inspect._empty'>" not in texts, name
        assert not any(re.search(r"\bAny\b", text) for text in texts), name


PUBLIC = ("Client", "Measurement", "Mode", "Model", "PauseConfig", "Segmentation")
SCRIPT = Path(__file__).with_name("user_script.py")


def test_the_users_script_has_every_public_call():
    """Its types are read by make check, and the next test runs it."""
    tree = ast.parse(SCRIPT.read_text("utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    kinds = [getattr(paumer, name) for name in PUBLIC] + [Dataset]
    members = {name: value for kind in kinds for name, value in inspect.getmembers(kind)}
    calls = {
        name for name, value in members.items() if callable(value) or isinstance(value, property)
    }
    wanted = {name for name in calls if name[0] != "_"} | set(NAMES)
    assert wanted - used == set()


@pytest.mark.slow
def test_the_users_script_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no answer from http://127.0.0.1:9" in done.stdout
    assert "skipped" not in done.stderr


def test_everything_public_prints_in_a_line():
    from paumer.data.datasets import open_dataset
    from paumer.study.speed import SpeedSettings

    model, settings = paumer.load(), SpeedSettings(rounds=1, warmup=0)
    dataset = open_dataset("sample+scenes:2", "val")
    report = model.bench("fast", input="64", settings=settings)
    prediction = model.network(torch.zeros(1, 3, 64, 96), "3:0.4")
    tuned = Tuned(report.measurements[0], True, {}, report.measurements, Budget(speed_up=1.5))
    things = [
        *(model, model.config, model.classes, model.modes["fast"], model.points["fast"]),
        *(model.evaluate("scenes:1@96x64"), model(np.zeros((64, 96, 3), np.uint8))),
        *(prediction, prediction.stages[0], report, report.measurements[0], tuned),
        *(dataset, *dataset.parts, dataset[0], default_collate([dataset[0]] * 2)),
        *(paumer.Client("http://127.0.0.1:8000"), paumer.Inference(), paumer.Threshold(0.3)),
        *(Exported(Path("m.onnx"), (), 20, 1.0, None, None), *paumer.PAPER_CONFIGS),
    ]
    assert [text for text in map(repr, things) if len(text) > 150 or "\n" in text] == []
    assert not any(" object at 0x" in repr(thing) for thing in things)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'PausedSegmenter'"):
        paumer.PausedSegmenter  # noqa: B018


def test_importing_paumer_imports_nothing_heavy():
    code = "import paumer, sys; print([m for m in {} if m in sys.modules])"
    heavy = ["torch", "torchvision", "timm", "lightning", "matplotlib", "numpy", "huggingface_hub"]
    assert run(code.format(heavy)) == "[]"
    light = "from paumer import Measurement, Mode, PauseConfig\n"
    assert run(light + code.format(heavy)) == "[]"


IMPORT_ALL = """
import importlib, logging, os, random, sys, warnings
import numpy, torch

def state():
    return {{
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "benchmark": torch.backends.cudnn.benchmark,
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "numpy": hash(numpy.random.get_state()[1].tobytes()),
        "random": hash(random.getstate()),
        "environ": dict(os.environ),
        "logging": [str(h) for h in logging.getLogger().handlers] + [logging.getLogger().level],
        "showwarning": str(warnings.showwarning),
        "cwd": os.getcwd(),
    }}

for name in {others}:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
before = state()
for name in {modules}:
    importlib.import_module(name)
after = state()
print([key for key in before if before[key] != after[key]])
"""


@pytest.mark.slow
def test_importing_every_module_changes_nothing():
    """What other libraries do to the process when imported is theirs: they come first."""
    root = Path(paumer.__file__).parent
    modules = [
        ".".join(("paumer", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        if path.stem not in ("__init__", "__main__")
    ]
    others = ["timm", "torchvision", "matplotlib.pyplot", "cyclopts", "rich.console"]
    others += ["lightning_fabric"]
    assert run(IMPORT_ALL.format(modules=modules, others=others)) == "[]"


def test_the_version_is_one_for_package_and_metadata():
    from importlib.metadata import version

    assert version("paumer") == paumer.__version__


def test_the_package_is_typed():
    assert Path(paumer.__file__).with_name("py.typed").exists()
