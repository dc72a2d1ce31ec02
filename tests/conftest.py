"""What every test stands on: no network, one thread, checked shapes, small lively models."""

import functools
import gc
import importlib
import os
import re
import runpy
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace

import beartype.typing  # noqa: F401 (named in the hook below)
import hypothesis
import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook
from jaxtyping._import_hook import _JaxtypingLoader
from PIL import Image

# Some virtual machines promise matrix tiles (AMX) and stop a program that uses them.
os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
torch.set_num_threads(1)
# Lightning asks for the version of torchmetrics by importing it, which takes seconds.
with pytest.MonkeyPatch.context() as patch, suppress(ImportError):
    patch.setitem(sys.modules, "torchmetrics", None)
    importlib.import_module("lightning_fabric.utilities.imports")
PACKAGE = Path(__file__).parent.parent / "paumer"
SHAPED = [path for path in PACKAGE.rglob("*.py") if "from jaxtyping import" in path.read_text()]
"""The modules that write shapes into their signatures. Checking costs time: mypy reads the rest."""

# jaxtyping's loader has all that is imported meanwhile (torchvision, timm) compiled anew as well.
_JaxtypingLoader.exec_module = SourceFileLoader.exec_module
_JaxtypingLoader.get_code = lambda self, _: self.source_to_code(self.get_data(self.path), self.path)
# Methods are checked one by one, where "Self" has no meaning yet: anything passes for it.
install_import_hook(
    [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in SHAPED],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True, hint_overrides="
    "beartype.BeartypeHintOverrides({beartype.typing.Self: object})))",
)


def check_shapes(jaxtyped):
    """A decorator that checks what writes shapes; of functions made by others, the first ones.

    Checking takes a tenth of a millisecond, and making a function ready for it several: some are
    made in every forward pass.
    """
    made = Counter()

    def decorate(typechecker):
        def decorated(item):
            if "jaxtyping" not in str(getattr(item, "__annotations__", "")):
                return item
            if "<locals>" in item.__qualname__:
                made[item.__code__] += 1
                if made[item.__code__] > 10:
                    return item
            return jaxtyped(typechecker=typechecker)(item)

        return decorated

    return decorate


# A value is looked at by itself, whatever the sides of a caller's arrays are called.
arguments = importlib.import_module("paumer.arguments")
arguments.fits = jaxtyping.jaxtyped(typechecker=None)(arguments.fits)
jaxtyping.jaxtyped = check_shapes(jaxtyping.jaxtyped)
hypothesis.settings.register_profile(
    "paumer",
    deadline=None,
    max_examples=30,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("paumer")


def pytest_ignore_collect(collection_path, config):
    """Files of which every test is slow are not even imported where slow tests are left out."""
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        text = collection_path.read_text("utf-8")
        return re.search(r"^pytestmark = .*\bslow\b", text, re.MULTILINE) is not None or None
    return None


def pytest_collection_finish():
    """What was imported stays: looking through it for garbage takes half a second each time."""
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def quick_tables():
    """Cost tables of a few rounds: here only their form matters."""
    from paumer.study import cost

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "ROUNDS", 2)
        yield


def enliven(module, seed=0):
    """Weights with which everything matters: no zero bias, no unit scale, no tiny layer scale."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        running = [item for item in module.named_buffers() if "running_" in item[0]]
        for name, value in (*module.named_parameters(), *running):
            noise = torch.randn(value.shape, generator=rng)
            if name.endswith("running_var"):
                value.copy_(1 + noise.abs())
            elif value.dim() > 1 and "token" not in name and "embed" not in name.split(".")[-1]:
                value.copy_(noise * value[0].numel() ** -0.5)
            elif name.endswith(("bias", "running_mean", "token")) or value.dim() > 1:
                value.copy_(noise * 0.3)
            else:
                value.copy_(1 + noise * 0.2)
    return module


@functools.cache
def _small_backbone(kind):
    """Six blocks of 64 channels over patches of 8 pixels, in the make of five timm families."""
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    shape = {
        "img_size": 48,
        "patch_size": 8,
        "embed_dim": 64,
        "depth": 6,
        "num_heads": 2,
        "num_classes": 0,
        "dynamic_img_size": True,
    }
    rotary = {"use_rot_pos_emb": True, "rope_grid_offset": 0.0, "scale_attn_inner": True}
    makes = {
        "plain": lambda: VisionTransformer(**shape),
        "distilled": lambda: VisionTransformerDistilled(**shape),
        "registers": lambda: VisionTransformer(
            **shape, reg_tokens=4, no_embed_class=True, init_values=1e-5
        ),
        "no prefix": lambda: VisionTransformer(**shape, class_token=False, global_pool="avg"),
        "rotary": lambda: Eva(**shape, **rotary, swiglu_mlp=True, ref_feat_shape=(6, 6)),
        "rotary only": lambda: Eva(
            **shape,
            rope_type="dinov3",
            use_rot_pos_emb=True,
            use_abs_pos_emb=False,
            num_reg_tokens=4,
            init_values=1e-5,
        ),
    }
    torch.manual_seed(0)
    return makes[kind]()


@functools.cache
def _small_model(kind, decoder, classes, double, options):
    import copy

    from paumer.model.backbone import Backbone
    from paumer.model.decoders import create_decoder
    from paumer.model.segmenter import PausingSegmenter

    model = PausingSegmenter(
        Backbone(copy.deepcopy(_small_backbone(kind))),
        create_decoder(decoder, 64, classes, dict(options)),
        torch.nn.Linear(64, classes),
    )
    enliven(model)
    return (model.double() if double else model).eval()


@pytest.fixture(scope="session")
def small_model():
    """A function that gives a small, lively segmenter; the same one every time: do not change it.

    Kinds of backbone: plain, distilled, registers, no prefix, rotary, rotary only.
    """

    def give(kind="plain", decoder="linear", classes=5, double=False, **options):
        return _small_model(kind, decoder, classes, double, tuple(sorted(options.items())))

    return give


@pytest.fixture(scope="session")
def fresh_backbone():
    """A function that builds the timm ViT of a small model anew, on whatever device is in force."""
    return _small_backbone.__wrapped__


@pytest.fixture(scope="session")
def lively():
    """A function that gives a module weights with which everything matters."""
    return enliven


@pytest.fixture(scope="session")
def unchecked():
    """A function that imports a module of a second paumer, whose shapes are not checked.

    Compilers look inside every function they meet, and cannot read the checks.
    """

    def paumer_modules():
        return {name: sys.modules[name] for name in sys.modules if name.split(".")[0] == "paumer"}

    second = {}

    def give(name):
        first = paumer_modules()
        finders = list(sys.meta_path)
        for module in first:
            del sys.modules[module]
        sys.modules.update(second)
        sys.meta_path[:] = [
            finder for finder in finders if "jaxtyping" not in type(finder).__module__
        ]
        try:
            module = importlib.import_module(name)
            second.update(paumer_modules())
        finally:
            for module_name in paumer_modules():
                del sys.modules[module_name]
            sys.modules.update(first)
            sys.meta_path[:] = finders
        return module

    return give


@pytest.fixture(scope="session")
def reading():
    """The module of experiments/ that reads what a sweep kept."""
    path = Path(__file__).parents[1] / "experiments" / "reading.py"
    return SimpleNamespace(**runpy.run_path(str(path)))


@pytest.fixture(scope="session")
def plain_table():
    """A machine on which work alone takes time, for 100 patches or so many."""

    from paumer.mode import CRITERIA
    from paumer.study.cost import CostTable

    scorings = [f"{name}{more}" for name in CRITERIA for more in ("", ", protecting")]

    def make(patches=100, prefix=0, depth=6, **other):
        ladder = ((0, 0.0), (patches + prefix, 1.0))
        nothing = ((0, 0.0), (patches, 0.0))
        values = {
            "environment": {
                "when": "today",
                "device": "a machine",
                "threads": 1,
                "precision": "fp32",
                "size": [160, 160],
                "batch": 1,
                "full_size": True,
            },
            "batch": 1,
            "embed": 0.0,
            "upsampling": 0.0,
            "block": ladder,
            "weighted": ladder,
            "merging": nothing,
            "decoder": ((0, 0.0), (patches, 1.0)),
            "pausing": dict.fromkeys(scorings, nothing),
            "assembling": nothing,
        }
        return CostTable(patches=patches, prefix=prefix, depth=depth, **{**values, **other})

    return make


@pytest.fixture(scope="session")
def write_data():
    """A function that writes a small data set of the classes a, b and c: its data.yaml."""

    def write(path, size, count, splits):
        rng = np.random.default_rng(0)
        for kind in ("images", "masks"):
            (path / kind).mkdir()
        for number in range(count):
            image = rng.integers(0, 255, (*size, 3), np.uint8)
            Image.fromarray(image).save(path / "images" / f"{number}.png")
            Image.fromarray(image[..., 0] % 3).save(path / "masks" / f"{number}.png")
        text = "".join(f"{split}: {{images: images, masks: masks}}\n" for split in splits)
        (path / "data.yaml").write_text(f"{text}classes: [a, b, c]\n")
        return str(path / "data.yaml")

    return write


@pytest.fixture
def two_processes():
    """A function that calls another in two processes, placed as torchrun would place them."""

    def give(work):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        children = []
        for rank in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                os.environ |= {"TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "2"}
                try:
                    work()
                    os._exit(0)
                finally:
                    os._exit(1)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]

    return give


HOLD = "import pathlib, sys; from paumer.disk import alone_in\n"
HOLD += "with alone_in(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def in_another_process():
    """A function that has a directory held by another process while its context lasts."""
    if sys.platform == "win32":
        pytest.skip("no locks there")

    @contextmanager
    def hold(directory):
        command, pipe = [sys.executable, "-c", HOLD, str(directory)], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            try:
                assert process.stdout.readline() == "held\n"
                yield
            finally:
                process.kill()

    return hold
