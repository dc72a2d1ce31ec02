"""Programs of strangers: what torch would run of them does not reach it."""

import json
import zipfile

import pytest
import torch

from paumer import load
from paumer.inference.programs import open_program

SIZE = "Symbol('s77', positive=True, integer=True)"


def graph(target="torch.ops.aten.add.Tensor", shape=SIZE):
    values = {"x": {"sizes": [{"as_expr": {"expr_str": shape}}, {"as_int": 4}]}}
    return {"graph_module": {"graph": {"nodes": [{"target": target}], "tensor_values": values}}}


def pack(path, files, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files:
            text = content if isinstance(content, str | bytes) else json.dumps(content)
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize(
    "shape",
    [
        SIZE,
        f"Add(Mul(Integer(16), {SIZE}), Integer(-1))",
        f"Pow(Add({SIZE}, Integer(1)), Integer(2))",
        f"Piecewise(ExprCondPair(Integer(1), StrictLessThan({SIZE}, Integer(3))), "
        f"ExprCondPair(Integer(0), true))",
    ],
)
def test_what_export_writes_passes(tmp_path, shape):
    files = {"models/model.json": graph(shape=shape), "data/weights/weight_3": b"123"}
    files |= {"extra/paumer.json": "{}", "byteorder": "little"}
    path = pack(tmp_path / "m.pt2", [(f"m/{name}", value) for name, value in files.items()])
    with zipfile.ZipFile(open_program(path)) as archive:
        assert {name.partition("/")[2] for name in archive.namelist()} == files.keys()
        assert archive.read("program/data/weights/weight_3") == b"123"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("models/model.json", graph(shape="__import__('os').system('touch harm')")),
        ("models/model.json", graph(shape='S(\'open("harm", "w")\')')),
        ("models/model.json", graph(shape='Symbol(\'open("harm", "w")\')')),
        ("models/model.json", graph(shape=f"{SIZE}.func")),
        ("models/model.json", graph(shape="(lambda: 1)()")),
        ("models/model.json", graph(shape="Pow(Integer(9), Integer(999999999))")),
        ("models/model.json", graph(shape="Pow(Pow(Integer(9), Integer(2)), Integer(2))")),
        ("models/model.json", graph(shape="Integer(" + 400 * "9" + ")")),
        ("models/model.json", graph(shape="(" * 9999)),
        ("models/model.json", graph("torch.os.system")),
        ("models/model.json", graph("torch.ops.aten.from_file.default")),
        ("models/model.json", graph(["torch.ops.aten.add.Tensor"])),
        ("models/model.json", b"[" * 10**5),
        ("models/model.json", b"\xff"),
        ("data/aotinductor/model/model.so", b"code"),
        ("data/constants/custom_obj_0", b"code"),
        ("models/other.json", graph()),
    ],
)
def test_what_torch_would_run_is_refused(tmp_path, monkeypatch, name, content):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("torch was asked"))
    path = pack(tmp_path / "m.pt2", [(f"m/{name}", content)])
    with pytest.raises(ValueError, match=r'^cannot read ".*m\.pt2": .{1,400}$'):
        load(path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_says_one_thing_to_all(tmp_path):
    twice = [("m/models/model.json", graph()), ("n/models/model.json", graph())]
    with pytest.raises(ValueError, match="twice"):
        open_program(pack(tmp_path / "m.pt2", twice))
    with pytest.raises(ValueError, match="it holds"):
        open_program(pack(tmp_path / "m.pt2", twice[:1], zipfile.ZIP_DEFLATED))
    (tmp_path / "m.pt2").write_bytes(pack(tmp_path / "m.pt2", twice[:1]).read_bytes()[:-30])
    with pytest.raises(ValueError, match="damaged"):
        open_program(tmp_path / "m.pt2")
