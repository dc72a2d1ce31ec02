"""From and to a model directory or the hub: what was saved comes back to the last bit."""

import copy
import json
import stat
import time
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

import paumer
from paumer.model import directory as files
from paumer.model import pretrained
from paumer.model.backbone import Backbone
from paumer.model.config import ModelConfig
from paumer.model.segmenter import PausingSegmenter

# Writing and reading back


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decoder": "linear"},
        {"decoder_options": {"depth": 1, "dropout": 0.3}},
        {"decoder": "pup", "decoder_options": {"channels": 32, "depth": 2, "scale": 4}},
        {"image_size": (64, 96), "drop_path": 0.2},
        {"context": True},
        {"backbone": "deit_tiny_distilled_patch16_224", "classes": 4},
        {"backbone": "eva02_tiny_patch14_224"},
        *(
            pytest.param({"backbone": name, "decoder": "linear"}, marks=pytest.mark.slow)
            for name in (
                "vit_small_patch14_reg4_dinov2",
                "vit_small_patch16_dinov3",
                "vit_small_patch16_rope_224",
            )
        ),
    ],
)
def test_what_was_saved_comes_back_to_the_last_bit(make, same, tmp_path, changes):
    model = make(**changes)
    model.save_pretrained(tmp_path / "model")
    again = PausingSegmenter.from_pretrained(tmp_path / "model")
    assert again.config == model.config
    assert not again.training
    assert same(model, again)
    names = sorted(file.name for file in (tmp_path / "model").iterdir())
    files = ["README.md", "config.json", "model.safetensors", "preprocessor_config.json"]
    assert names == files
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_everything_a_configuration_says_survives(same, lively, tmp_path):
    config = ModelConfig(
        backbone="test_vit",
        decoder="mask",
        classes=("Straße", "sky", 'a "b"'),
        image_size=(64, 96),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        colours=((128, 64, 128), (0, 0, 0), (255, 255, 255)),
        decoder_options={"depth": 1, "dropout": 0.25},
        norm_eps=1e-3,
        position_resize="bilinear",
        drop_path=0.1,
        short_side=64,
        window=48,
        stride=32,
        context=True,
    )
    model = lively(PausingSegmenter.from_config(config)).eval()
    model.save_pretrained(tmp_path / "model")
    again = PausingSegmenter.from_pretrained(str(tmp_path / "model"))
    assert again.config == config
    assert same(model, again)
    assert {m.eps for m in again.backbone.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-3}
    assert again.backbone.position_resize == "bilinear"
    assert again.decoder.blocks[0].mlp.drop1.p == 0.25
    assert again.backbone.blocks[-1].drop_path1.drop_prob == pytest.approx(0.1)


@pytest.mark.parametrize(
    "changes", [{}, {"decoder": "pup"}, {"backbone": "eva02_tiny_patch14_224"}]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tensors_load_into_full_precision(make, same, tmp_path, dtype, changes):
    model = make(**changes)
    # Not the buffers that no file holds.
    model.load_state_dict(
        {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in model.state_dict().items()
        },
    )
    halves = {name: value.to(dtype) for name, value in model.named_parameters()}
    files.save_model(tmp_path / "model", model.config, {**model.state_dict(), **halves})
    assert load_file(tmp_path / "model/model.safetensors")["aux_head.bias"].dtype == dtype
    again = PausingSegmenter.from_pretrained(tmp_path / "model")
    assert {value.dtype for value in again.parameters()} == {torch.float32}
    assert same(model, again)


def test_a_new_directory_has_ordinary_permissions(make, tmp_path):
    make().save_pretrained(tmp_path / "deep/er/model")
    (tmp_path / "plain").mkdir()
    mode = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "deep/er/model").stat().st_mode) == mode


def test_saving_again_replaces_the_model_and_leaves_the_rest(make, same, tmp_path):
    directory = tmp_path / "model"
    make().save_pretrained(directory)
    (directory / "README.md").write_text("my own words")
    (directory / "operating_points.json").write_text("{}")
    newer = make(seed=1, decoder="linear", classes=7)
    newer.save_pretrained(directory)
    assert same(PausingSegmenter.from_pretrained(directory), newer)
    assert (directory / "README.md").read_text() == "my own words"
    assert (directory / "operating_points.json").read_text() == "{}"
    assert len(list(directory.iterdir())) == 5


def test_the_current_directory_can_be_saved_into(make, same, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model = make()
    model.save_pretrained(".")
    assert same(PausingSegmenter.from_pretrained("."), model)
    assert [file.name for file in tmp_path.iterdir()] == ["here"]


def test_a_context_is_kept_and_without_one_nothing_is_said(make, tmp_path):
    make(context=True).save_pretrained(tmp_path / "model")
    assert PausingSegmenter.from_pretrained(tmp_path / "model").context
    make().save_pretrained(tmp_path / "model")
    assert "context" not in json.loads((tmp_path / "model/config.json").read_text())
    assert not PausingSegmenter.from_pretrained(tmp_path / "model").context


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", "cpu cpu"])
def test_a_device_that_is_not_there_is_refused_by_its_name(model_directory, device):
    for name in (model_directory, "street-tiny"):
        with pytest.raises(ValueError, match=f'^cannot use device "{device}": '):
            PausingSegmenter.from_pretrained(name, map_location=device)
    with pytest.raises(ValueError, match=f'^cannot use device "{device}": '):
        paumer.load(model_directory, device)


# Loading takes the memory of the weights alone


@pytest.fixture(params=["plain", "distilled", "registers", "no prefix", "rotary", "rotary only"])
def by_hand(request, small_model, fresh_backbone, monkeypatch):
    """A small model with a configuration, which the package then knows how to build.

    Beside it the devices on which it was built.
    """
    model, devices = copy.deepcopy(small_model(request.param, "mask", depth=1)), []
    model.config = ModelConfig(
        "by hand", "mask", tuple("abcde"), (48, 48), decoder_options={"depth": 1}
    )

    def create(*_, **__):
        devices.append(torch.empty(0).device.type)
        return Backbone(fresh_backbone(request.param))

    monkeypatch.setattr(pretrained, "create_backbone", create)
    return model, devices


def every_tensor(model):
    """Parameters and buffers, also those that no file holds."""
    return dict([*model.named_parameters(), *model.named_buffers()])


@pytest.mark.parametrize("half", [False, True])
def test_a_network_is_built_without_memory_and_then_filled(by_hand, tmp_path, half):
    model, devices = by_hand
    tensors = model.state_dict()
    if half:
        tensors = {name: value.half() for name, value in tensors.items()}
        model.load_state_dict(tensors)
    files.save_model(tmp_path / "model", model.config, tensors)
    loaded = PausingSegmenter.from_pretrained(tmp_path / "model")
    assert devices == ["meta"]
    slowly = PausingSegmenter.from_config(model.config).eval()
    assert devices == ["meta", "cpu"]
    files.load_tensors(slowly, tensors, "here")
    found, expected = every_tensor(loaded), every_tensor(slowly)
    assert found.keys() == expected.keys() == every_tensor(model).keys()
    for name, value in found.items():
        assert value.device.type == "cpu", name
        assert value.dtype == expected[name].dtype == torch.float32, name
        assert torch.equal(value, expected[name]), name
    assert all(value.requires_grad for value in loaded.parameters())
    rotary = {name for name in found if name.startswith("backbone.vit.rope.")}
    assert bool(rotary) == loaded.backbone.rotary
    assert not rotary & model.state_dict().keys()
    images = torch.randn(2, 3, 40, 56, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for text in ("none", "2:0.4,4:0.5"):
            logits = [one(images, text).logits for one in (loaded, slowly, model)]
            assert torch.equal(logits[0], logits[1])
            assert torch.equal(logits[0], logits[2])


class Filled(TorchDispatchMode):
    """Notes what draws or sets values."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("uniform_", "normal_", "erfinv_", "fill_", "zero_", "mul_", "clamp_"):
            self.names.add(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("decoder", ["mask", "linear", "pup"])
@pytest.mark.parametrize("backbone", ["test_vit", "eva02_tiny_patch14_224"])
def test_nothing_is_drawn_that_a_file_replaces(backbone, decoder):
    config = ModelConfig(backbone, decoder, ("a", "b"), (56, 56), drop_path=0.1)
    with Filled() as filled:
        with pretrained.without_values():
            PausingSegmenter.from_config(config)
        assert filled.names == set()
        PausingSegmenter.from_config(config)
    assert filled.names >= {"uniform_", "erfinv_", "fill_"}


def test_weights_do_not_lie_in_the_file(make, same, tmp_path):
    """A file may change or vanish after it was loaded, and weights may change."""
    make().save_pretrained(tmp_path / "model")
    loaded = PausingSegmenter.from_pretrained(tmp_path / "model")
    file = tmp_path / "model/model.safetensors"
    content = bytearray(file.read_bytes())
    with file.open("r+b") as opened:
        opened.write(bytes(len(content)))
    assert same(loaded, make())
    with torch.no_grad():
        loaded.aux_head.weight.zero_()
    assert not any(file.read_bytes())


def test_tensors_are_checked_before_they_are_filled_in(make):
    with torch.device("meta"):
        empty = make()
    tensors = {n: t for n, t in make().state_dict().items() if n != "aux_head.bias"}
    with pytest.raises(ValueError, match=r'"here" do not fit the model; missing: aux_head\.bias'):
        files.load_tensors(empty, tensors, "here")
    assert all(value.is_meta for value in empty.parameters())


# The hub


@pytest.mark.parametrize(
    "name", ["someone/some-model", "no such directory", "a/b/c", "/nowhere/at/all"]
)
def test_a_hub_model_that_cannot_be_loaded_is_refused_quickly(load, name):
    begin = time.perf_counter()
    with pytest.raises(FileNotFoundError, match="no model directory at") as raised:
        load(name)
    assert f'"{name}"' in str(raised.value)
    assert "pickle" not in str(raised.value)
    assert time.perf_counter() - begin < 5


def test_a_hub_model_without_safetensors_is_refused(load, unchecked, monkeypatch):
    asked = []

    def download(name, file, **_):
        asked.append(file)
        raise huggingface_hub.errors.EntryNotFoundError("404")

    monkeypatch.setattr(unchecked("paumer.model.directory"), "hf_hub_download", download)
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin\) are not loaded"):
        load("someone/some-model")
    assert set(asked) <= {"config.json", "model.safetensors"}


def test_a_hub_model_loads_from_what_was_downloaded(make, same, model_directory, monkeypatch):
    asked = []

    def download(name, file, **options):
        asked.append((name, file, options["revision"]))
        return str(model_directory / file)

    monkeypatch.setattr(files, "hf_hub_download", download)
    model = PausingSegmenter.from_pretrained("someone/some-model", revision="v1")
    assert same(model, make())
    assert asked == [
        ("someone/some-model", "config.json", "v1"),
        ("someone/some-model", "model.safetensors", "v1"),
        ("someone/some-model", "operating_points.json", "v1"),
    ]


@pytest.fixture
def hub(monkeypatch):
    """A hub that takes everything and keeps it in mind."""
    uploads = []

    class Repository:
        repo_id = "someone/some-model"

    class Hub:
        def __init__(self, *args, **kwargs):
            pass

        def create_repo(self, *args, **kwargs):
            return Repository()

        def upload_folder(self, *, repo_id, folder_path, **kwargs):
            here = {file.name: file.read_bytes() for file in Path(folder_path).iterdir()}
            uploads.append((repo_id, here))
            return "done"

    monkeypatch.setattr(huggingface_hub.hub_mixin, "HfApi", Hub)
    return uploads


def test_pushing_uploads_a_whole_model_directory(make, same, tmp_path, hub):
    model = make()
    model.push_to_hub("someone/some-model")
    ((repository, uploaded),) = hub
    assert repository == "someone/some-model"
    files = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
    assert set(uploaded) == files
    for name, data in uploaded.items():
        (tmp_path / name).write_bytes(data)
    assert same(PausingSegmenter.from_pretrained(tmp_path), model)
    assert b"library_name: paumer" in uploaded["README.md"]


def test_saving_can_push_as_well(make, tmp_path, hub):
    make().save_pretrained(tmp_path / "some-model", push_to_hub=True)
    assert len(hub) == 1
    assert (tmp_path / "some-model/model.safetensors").is_file()


def test_a_segmenter_put_together_by_hand_cannot_be_saved(small_model, tmp_path):
    with pytest.raises(ValueError, match="no configuration to save"):
        small_model().save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()
