"""Model directories: written whole, whatever crashes; damaged ones refused in words."""

import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paumer.model import directory as files
from paumer.model.segmenter import PausingSegmenter

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
    make, same, tmp_path, monkeypatch, where, name, nth
):
    directory = tmp_path / "model"
    old, new = make(), make(seed=1, decoder="linear", classes=9)
    old.save_pretrained(directory)
    with monkeypatch.context() as patch:
        crashed = crash_on(patch, where, name, nth)
        with pytest.raises(Crash):
            new.save_pretrained(directory)
    assert crashed
    found = PausingSegmenter.from_pretrained(directory)
    assert same(found, old) or (name == "fsync" and same(found, new))
    assert len(list(directory.iterdir())) == 4
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("where", "name", "nth"), [*CRASHES, (Path, "write_text", 2), (Path, "rename", 1)]
)
def test_a_crash_while_saving_anew_leaves_all_or_nothing(
    make, tmp_path, monkeypatch, where, name, nth
):
    with monkeypatch.context() as patch:
        crashed = crash_on(patch, where, name, nth)
        with pytest.raises(Crash):
            make().save_pretrained(tmp_path / "model")
    assert crashed
    if (tmp_path / "model").exists():
        PausingSegmenter.from_pretrained(tmp_path / "model")
    else:
        assert list(tmp_path.iterdir()) == []


def test_a_crash_in_a_directory_without_a_model_leaves_it_without(make, tmp_path, monkeypatch):
    (tmp_path / "log.txt").write_text("a run")
    with monkeypatch.context() as patch:
        crash_on(patch, os, "replace", 2)
        with pytest.raises(Crash):
            make().save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["log.txt"]


def test_a_file_system_without_hard_links_will_do(make, same, tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError("no hard links here")

    make().save_pretrained(tmp_path / "model")
    monkeypatch.setattr(os, "link", no_links)
    newer = make(seed=1)
    newer.save_pretrained(tmp_path / "model")
    assert same(PausingSegmenter.from_pretrained(tmp_path / "model"), newer)


@pytest.mark.skipif(sys.platform == "win32", reason="has no such permissions and limits")
def test_whoever_the_umask_lets_may_read_a_model(make, tmp_path):
    before = os.umask(0o022)
    try:
        make().save_pretrained(tmp_path / "model")
        make().save_pretrained(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")}
    assert modes.pop("model") == oct(0o755)
    assert set(modes.values()) == {oct(0o644)}


@pytest.mark.skipif(sys.platform == "win32", reason="has no such permissions and limits")
@pytest.mark.parametrize("room", [100, 2000])
def test_a_full_disk_is_named_and_leaves_the_old_model(make, same, tmp_path, room):
    import resource

    old = make()
    old.save_pretrained(tmp_path / "model")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    message = r"File too large; what was saved before is intact: '\S*/model/model\.safetensors'$"
    try:
        with pytest.raises(OSError, match=message):
            make(seed=1).save_pretrained(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert same(PausingSegmenter.from_pretrained(tmp_path / "model"), old)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# Damage and malice


def edit(directory, **changes):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))


BAD_VALUES = {
    "backbone": [5, None, [], "", "no_such_vit", "resnet50", "mit_b0", "../x", "test_vit.nope"],
    "decoder": [5, None, ["mask"], "", "unet"],
    "classes": ["abc", [], 3, None, [1, 2, 3], {"a": 1}, [["a"], ["b"], ["c"]], ["a"]],
    "classes ": [["a", "b", "a"]],
    "image_size": [160, [160], [160] * 3, [0, 160], [-16, 160], ["160", 160], [1e300, 160], {}],
    "image_size ": [[10**400, 160], [65536, 65536], [160.5, 160], [True, 160], None, [8, 8]],
    "mean": [0.5, [0.5], "abc", [None] * 3, [1e999] * 3, [float("nan")] * 3],
    "std": [[0, 0, 0], [0.5], [-1, 1, 1], "abc"],
    "colours": [[[1, 2, 3]], [[1, 2]] * 3, [[300, 0, 0]] * 3, "abc", 5, [5, 5, 5]],
    "decoder_options": [[], 5, None, {"dropout": 3}, {"width": 5}, {"channels": 65536}],
    "decoder_options ": [
        {"depth": depth} for depth in (10**9, 65, 1.5, -1, 1, "2", True, float("nan"), [2], None)
    ],
    "norm_eps": ["x", -1, [1e-5], 1e999],
    "position_resize": ["nearest", 5, None],
    "drop_path": ["x", -1, 5, None],
    "short_side": [0, 64.5, "64", -1],
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


LONG = "x" * 10**5


def deep(levels):
    return [deep(levels - 1)] if levels else []


@pytest.mark.parametrize(
    "changes",
    [
        *({name: LONG} for name in ("backbone", "decoder", "position_resize", "context", LONG)),
        {"classes": ["a", LONG]},
        {"classes": LONG},
        {"classes": [[LONG] * 99]},
        {"classes": [LONG[:999]] * 2},
        {"mean": [LONG] * 3},
        {"mean": LONG},
        {"mean": deep(900)},
        {"mean": [10**4000] * 3},
        {"decoder_options": LONG},
        {"decoder_options": {LONG: 1}},
        {"decoder_options": {"depth": LONG}},
    ],
    ids=range(16),
)
def test_of_long_values_little_is_repeated(load, model_directory, changes):
    edit(model_directory, **changes)
    with pytest.raises(ValueError, match=r"config\.json") as raised:
        load(model_directory)
    assert len(str(raised.value)) < 1100


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_pipes_and_devices_are_not_read(load, model_directory, name):
    (model_directory / name).unlink()
    os.mkfifo(model_directory / name)
    with pytest.raises(FileNotFoundError, match=name):
        load(model_directory)
    (model_directory / name).unlink()
    (model_directory / name).symlink_to("/dev/zero")
    with pytest.raises(FileNotFoundError, match=name):
        load(model_directory)


def test_a_configuration_is_read_up_to_a_size(load, model_directory):
    file = model_directory / "config.json"
    text = file.read_text()
    file.write_text(text + " " * (2**20 - len(text)))
    load(model_directory)
    file.write_text(text + " " * 2**20)
    with pytest.raises(ValueError, match=r"config\.json.* more than 1048576 bytes"):
        load(model_directory)


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


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.complex64])
def test_tensors_of_another_kind_of_number_are_refused(load, model_directory, dtype):
    path = model_directory / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"aux_head.bias": tensors["aux_head.bias"].to(dtype)}, path)
    match = rf"wrong type: aux_head\.bias is {dtype}, expected torch\.float32$"
    with pytest.raises(ValueError, match=match):
        load(model_directory)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_of_another_precision_are_read(load, model_directory, dtype):
    path = model_directory / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path).items()}, path)
    assert load(model_directory).aux_head.weight.dtype == torch.float32


def test_of_long_names_little_is_repeated(load, model_directory):
    path = model_directory / "model.safetensors"
    tensors = load_file(path) | {"x" * 10**5: torch.zeros(1)}
    save_file(tensors | {"aux_head.bias": torch.zeros([1] * 5000)}, path)
    with pytest.raises(ValueError, match="not known: xxx") as raised:
        load(model_directory)
    assert len(str(raised.value)) < 2000


def test_a_header_that_lies_is_refused(load, model_directory):
    path = model_directory / "model.safetensors"
    for shape, end in (([10**12], 4 * 10**12), ([10**12], 64), ([2**62, 4], 64), ([-1], 64)):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}
        header = json.dumps({"aux_head.bias": entry}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
        with pytest.raises(ValueError, match=r"cannot read .*model\.safetensors"):
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


# Finding them


def test_a_mistyped_name_is_answered_with_the_near_one(tmp_path, monkeypatch):
    def ask(*_, **__):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(files, "hf_hub_download", ask)
    monkeypatch.setattr(files, "get_session", ask)
    with pytest.raises(FileNotFoundError, match=r'"stret-tiny" \(did you mean "street-tiny"\?\)'):
        files.find_model("stret-tiny")
    (tmp_path / "runs/mine").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=f'did you mean "{tmp_path}/runs/mine"'):
        files.find_model(f"{tmp_path}/runs/mien")
    with pytest.raises(FileNotFoundError, match="give a directory, a built-in name"):
        files.find_model("./someone/model")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("m.onnx", "cannot be trained"), ("m.pth", "paumer import"), ("m.jpg", "give the folder")],
)
def test_a_file_is_not_a_model(tmp_path, name, hint):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=f'{name}" is a file, not a model directory: .*{hint}'):
        files.find_model(str(tmp_path / name))


def test_a_hub_that_does_not_answer_is_not_asked_for_files(monkeypatch):
    asked = []

    def download(*_, **options):
        asked.append(options)
        raise files.LocalEntryNotFoundError("none there")

    monkeypatch.setattr(files, "hf_hub_download", download)
    with pytest.raises(FileNotFoundError, match="from the hub: it does not answer"):
        files.find_model("someone/model")
    assert asked == [{"local_files_only": True}]
