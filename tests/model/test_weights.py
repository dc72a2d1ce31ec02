"""Model directories: written whole, read back to the last bit, damaged ones refused in words."""

import json
import os
import pickle
import shutil
import stat
import time
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from paumer.model import weights as files
from paumer.model.segmenter import PausingSegmenter, build_model
from paumer.model.weights import ModelConfig
from paumer.pause_config import PauseConfig

IMAGES = torch.randn(1, 3, 40, 70, generator=torch.Generator().manual_seed(0))
PAUSE = PauseConfig.parse("2:0.4,4:0.4")


def make(lively, seed=0, **changes):
    options = {"backbone": "test_vit", "decoder": "mask", "classes": ["road", "sky", "car"]}
    return lively(build_model(**(options | changes)), seed).eval()


def same(one, other):
    """The two networks are bit-equal, in their tensors and in what they say."""
    mine, theirs = one.state_dict(), other.state_dict()
    with torch.inference_mode():
        equal = torch.equal(one(IMAGES, PAUSE).logits, other(IMAGES, PAUSE).logits)
    return (
        equal
        and mine.keys() == theirs.keys()
        and all(map(torch.equal, mine.values(), theirs.values()))
    )


# Writing and reading back


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decoder": "linear"},
        {"depth": 1, "dropout": 0.3},
        {"decoder": "pup", "channels": 32, "depth": 2, "scale": 4},
        {"image_size": (64, 96), "drop_path": 0.2},
        {"backbone": "deit_tiny_distilled_patch16_224", "classes": 4},
        {"backbone": "eva02_tiny_patch14_224"},
    ],
)
def test_what_was_saved_comes_back_to_the_last_bit(lively, tmp_path, changes):
    model = make(lively, **changes)
    model.save_pretrained(tmp_path / "model")
    again = PausingSegmenter.from_pretrained(tmp_path / "model")
    assert again.config == model.config
    assert not again.training
    assert same(model, again)
    names = sorted(file.name for file in (tmp_path / "model").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_everything_a_configuration_says_survives(lively, tmp_path):
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


def test_half_precision_tensors_load_into_full_precision(lively, tmp_path):
    model = make(lively)
    model.half().save_pretrained(tmp_path / "model")
    assert load_file(tmp_path / "model/model.safetensors")["aux_head.bias"].dtype == torch.float16
    again = PausingSegmenter.from_pretrained(tmp_path / "model")
    assert {value.dtype for value in again.parameters()} == {torch.float32}
    assert same(model.float(), again)


def test_a_new_directory_has_ordinary_permissions(lively, tmp_path):
    make(lively).save_pretrained(tmp_path / "deep/er/model")
    (tmp_path / "plain").mkdir()
    mode = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "deep/er/model").stat().st_mode) == mode


def test_saving_again_replaces_the_model_and_leaves_the_rest(lively, tmp_path):
    directory = tmp_path / "model"
    make(lively).save_pretrained(directory)
    (directory / "README.md").write_text("my own words")
    (directory / "operating_points.json").write_text("{}")
    newer = make(lively, seed=1, decoder="linear", classes=7)
    newer.save_pretrained(directory)
    assert same(PausingSegmenter.from_pretrained(directory), newer)
    assert (directory / "README.md").read_text() == "my own words"
    assert (directory / "operating_points.json").read_text() == "{}"
    assert len(list(directory.iterdir())) == 4


def test_the_current_directory_can_be_saved_into(lively, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model = make(lively)
    model.save_pretrained(".")
    assert same(PausingSegmenter.from_pretrained("."), model)
    assert [file.name for file in tmp_path.iterdir()] == ["here"]


# Crashes


class Crash(BaseException):
    pass


def crash_on(monkeypatch, where, name, nth):
    """Let the nth call of a function crash; give back a list that then holds one entry."""
    function, calls, crashed = getattr(where, name), [], []

    def fragile(*args, **kwargs):
        calls.append(name)
        if len(calls) == nth:
            crashed.append(name)
            raise Crash
        return function(*args, **kwargs)

    monkeypatch.setattr(where, name, fragile)
    return crashed


CRASHES = [
    (files, "save_file", 1),
    (Path, "write_text", 1),
    (os, "fsync", 1),
    (os, "fsync", 3),
    (os, "fsync", 4),
]


@pytest.mark.parametrize(
    ("where", "name", "nth"), [*CRASHES, (os, "replace", 1), (os, "replace", 2), (os, "link", 2)]
)
def test_a_crash_over_an_old_model_leaves_old_or_new_and_no_litter(
    lively, tmp_path, monkeypatch, where, name, nth
):
    directory = tmp_path / "model"
    old, new = make(lively), make(lively, seed=1, decoder="linear", classes=9)
    old.save_pretrained(directory)
    with monkeypatch.context() as patch:
        crashed = crash_on(patch, where, name, nth)
        with pytest.raises(Crash):
            new.save_pretrained(directory)
    assert crashed
    found = PausingSegmenter.from_pretrained(directory)
    assert same(found, old) or (name == "fsync" and same(found, new))
    assert len(list(directory.iterdir())) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("where", "name", "nth"), [*CRASHES, (Path, "write_text", 2), (Path, "rename", 1)]
)
def test_a_crash_while_saving_anew_leaves_all_or_nothing(
    lively, tmp_path, monkeypatch, where, name, nth
):
    with monkeypatch.context() as patch:
        crashed = crash_on(patch, where, name, nth)
        with pytest.raises(Crash):
            make(lively).save_pretrained(tmp_path / "model")
    assert crashed
    if (tmp_path / "model").exists():
        PausingSegmenter.from_pretrained(tmp_path / "model")
    else:
        assert list(tmp_path.iterdir()) == []


def test_a_crash_in_a_directory_without_a_model_leaves_it_without(lively, tmp_path, monkeypatch):
    (tmp_path / "log.txt").write_text("a run")
    with monkeypatch.context() as patch:
        crash_on(patch, os, "replace", 2)
        with pytest.raises(Crash):
            make(lively).save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["log.txt"]


def test_a_file_system_without_hard_links_will_do(lively, tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError("no hard links here")

    make(lively).save_pretrained(tmp_path / "model")
    monkeypatch.setattr(os, "link", no_links)
    newer = make(lively, seed=1)
    newer.save_pretrained(tmp_path / "model")
    assert same(PausingSegmenter.from_pretrained(tmp_path / "model"), newer)


# Damage and malice. The second paumer is used, so that its own checks are what refuses.


@pytest.fixture
def load(unchecked):
    return unchecked("paumer.model.segmenter").PausingSegmenter.from_pretrained


@pytest.fixture(scope="module")
def template(lively, tmp_path_factory):
    directory = tmp_path_factory.mktemp("template") / "model"
    make(lively).save_pretrained(directory)
    return directory


@pytest.fixture
def model_directory(template, tmp_path):
    return shutil.copytree(template, tmp_path / "model")


def edit(directory, **changes):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))


BAD_VALUES = {
    "backbone": [5, None, [], "", "no_such_vit", "resnet50", "mit_b0", "../x", "test_vit.nope"],
    "decoder": [5, None, ["mask"], "", "unet"],
    "classes": ["abc", [], 3, None, [1, 2, 3], {"a": 1}, [["a"], ["b"], ["c"]], ["a"]],
    "image_size": [160, [160], [160] * 3, [0, 160], [-16, 160], ["160", 160], [1e300, 160], {}],
    "image_size ": [[10**400, 160], [65536, 65536], [160.5, 160], [True, 160], None, [8, 8]],
    "mean": [0.5, [0.5], "abc", [None] * 3, [1e999] * 3],
    "std": [[0, 0, 0], [0.5], [-1, 1, 1], "abc"],
    "colours": [[[1, 2, 3]], [[1, 2]] * 3, [[300, 0, 0]] * 3, "abc", 5, [5, 5, 5]],
    "decoder_options": [[], 5, None, {"dropout": 3}, {"width": 5}, {"channels": 65536}],
    "decoder_options ": [
        {"depth": depth} for depth in (10**9, 65, 1.5, -1, 1, "2", True, float("nan"), [2], None)
    ],
    "norm_eps": ["x", -1, [1e-5], 1e999],
    "position_resize": ["nearest", 5, None],
    "drop_path": ["x", -1, 5, None],
    "pickle": ["anything"],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [(key.strip(), value) for key, values in BAD_VALUES.items() for value in values],
)
def test_a_bad_entry_is_refused_naming_the_file(load, model_directory, key, value):
    edit(model_directory, **{key: value})
    with pytest.raises(ValueError, match=r"config\.json|model\.safetensors") as raised:
        load(model_directory)
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize("key", ["backbone", "decoder", "classes", "image_size"])
def test_a_missing_entry_is_named(load, model_directory, key):
    config = json.loads((model_directory / "config.json").read_text())
    del config[key]
    (model_directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"config\.json.*missing entries: {key}"):
        load(model_directory)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[1, 2]", "null", "5", '"text"', "{}", "[" * 100_000, '{"a": 1', "\x00", "NaN"],
)
def test_a_configuration_that_is_none_is_refused(load, model_directory, text):
    (model_directory / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        load(model_directory)


def test_a_configuration_that_is_no_text_is_refused(load, model_directory):
    (model_directory / "config.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match=r"config\.json"):
        load(model_directory)


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1, -5000])
def test_truncated_weights_are_refused(load, model_directory, size):
    path = model_directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load(model_directory)


@pytest.mark.parametrize(
    "data", [b"\xff" * 64, b"\x10" + b"\x00" * 7 + b"{" * 16, b"PK\x03\x04" * 9]
)
def test_weights_that_are_none_are_refused(load, model_directory, data):
    (model_directory / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load(model_directory)


def test_tensors_that_do_not_fit_are_named(load, model_directory):
    path = model_directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["aux_head.bias"]
    tensors["backbone.vit.norm.weight"] = torch.zeros(3)
    tensors["decoder.surplus"] = torch.zeros(1)
    save_file(tensors, path)
    with pytest.raises(ValueError) as raised:
        load(model_directory)
    for words in (
        "model.safetensors",
        "missing: aux_head.bias",
        "not known: decoder.surplus",
        "backbone.vit.norm.weight is (3,), expected (64,)",
    ):
        assert words in str(raised.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(load, model_directory, name):
    (model_directory / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load(model_directory)
    (model_directory / name).mkdir()
    with pytest.raises(FileNotFoundError, match=name):
        load(model_directory)


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_a_pickle_never_runs(load, model_directory, tmp_path):
    """Whatever the pickle is called, and whatever else there is to load."""
    bomb = pickle.dumps({"model": Bomb(tmp_path / "ran")})
    pickle.loads(bomb)
    (tmp_path / "ran").unlink()  # It works, then.
    (model_directory / "pytorch_model.bin").write_bytes(bomb)
    load(model_directory)
    (model_directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is a pickle.*not loaded"):
        load(model_directory)
    for name in ("model.safetensors", "config.json"):
        (model_directory / name).write_bytes(bomb)
        with pytest.raises(ValueError, match=name):
            load(model_directory)
    assert not (tmp_path / "ran").exists()


# The hub


@pytest.mark.parametrize(
    "name", ["someone/some-model", "no such directory", "a/b/c", "/nowhere/at/all"]
)
def test_a_hub_model_that_cannot_be_had_is_said_quickly(load, name):
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

    monkeypatch.setattr(unchecked("paumer.model.weights"), "hf_hub_download", download)
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin\) are not loaded"):
        load("someone/some-model")
    assert set(asked) <= {"config.json", "model.safetensors"}


def test_a_hub_model_loads_from_what_was_downloaded(lively, model_directory, monkeypatch):
    asked = []

    def download(name, file, **options):
        asked.append((name, file, options["revision"]))
        return str(model_directory / file)

    monkeypatch.setattr(files, "hf_hub_download", download)
    model = PausingSegmenter.from_pretrained("someone/some-model", revision="v1")
    assert same(model, make(lively))
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


def test_pushing_uploads_a_whole_model_directory(lively, tmp_path, hub):
    model = make(lively)
    model.push_to_hub("someone/some-model")
    ((repository, uploaded),) = hub
    assert repository == "someone/some-model"
    assert set(uploaded) == {"config.json", "model.safetensors", "README.md"}
    for name, data in uploaded.items():
        (tmp_path / name).write_bytes(data)
    assert same(PausingSegmenter.from_pretrained(tmp_path), model)
    assert b"library_name: paumer" in uploaded["README.md"]


def test_saving_can_push_as_well(lively, tmp_path, hub):
    make(lively).save_pretrained(tmp_path / "some-model", push_to_hub=True)
    assert len(hub) == 1
    assert (tmp_path / "some-model/model.safetensors").is_file()


# The configuration itself


def test_a_configuration_is_a_value():
    config = ModelConfig("test_vit", "mask", ("a", "b"), (32, 32))
    assert config == replace(config)
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert replace(config, norm_eps=1e-3) != config
    assert replace(config, rejoin=4) != config


def test_options_are_kept_and_old_directories_have_none(lively, tmp_path):
    options = {"rejoin": 5, "context": True, "aux_norm": True}
    build_model("test_vit", classes=2, **options).save_pretrained(tmp_path / "new")
    new = PausingSegmenter.from_pretrained(tmp_path / "new")
    assert (new.rejoin, new.context, new.config.aux_norm) == (5, True, True)
    build_model("test_vit", classes=2).save_pretrained(tmp_path / "new")
    file = tmp_path / "new/config.json"
    values = json.loads(file.read_text())
    assert not set(options) & set(values)
    old = PausingSegmenter.from_pretrained(tmp_path / "new")
    assert (old.rejoin, old.context, old.config.aux_norm) == (None, False, False)
    for name in ("context", "aux_norm"):
        file.write_text(json.dumps({**values, name: 1}))
        with pytest.raises(ValueError, match="cannot read"):
            PausingSegmenter.from_pretrained(tmp_path / "new")
    file.write_text(json.dumps({**values, "rejoin": 9}))
    with pytest.raises(ValueError, match="before block 9: this backbone has 6 blocks"):
        PausingSegmenter.from_pretrained(tmp_path / "new")
