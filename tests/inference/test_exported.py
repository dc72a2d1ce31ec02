"""What an exported file says of itself, and files that say nothing of the kind."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paumer import load
from paumer.inference.exported import (
    ExportInfo,
    _read_info,
    check_exportable,
    is_exported,
    open_exported,
)
from paumer.inference.graphs import need
from paumer.measurement import Measurement
from paumer.mode import Mode

QUICK = Mode.parse("2:0.5,4:0.25 exit by=neighbours protect=b")
INFO = ExportInfo(
    config={"classes": ["a", "b"], "decoder": "mask", "trained_side": 96},
    mode=Mode(),
    depth=6,
    patch=(16, 16),
    points={"quick": Measurement(mode=QUICK).to_json()},
)


@pytest.mark.parametrize("mode", ["none", "2:0.5,4:0.5", "2:0.4 exit by=neighbours protect=a%20b"])
@pytest.mark.parametrize("size", [None, (48, 64)])
def test_it_survives_json(mode, size):
    info = replace(INFO, mode=Mode.parse(mode), size=size)
    assert ExportInfo.from_json(info.to_json()) == info
    values = json.loads(info.to_json())
    assert values["mode"] == mode
    assert (values["trained_side"], values["short_side"], len(values["colours"])) == (96, None, 2)
    assert list(values["modes"]) == (["none", "quick"] if size is None else [])


def test_a_file_of_another_version_is_refused():
    old = json.dumps({**json.loads(INFO.to_json()), "format": "paumer 2"})
    with pytest.raises(ValueError, match="exported by another version of paumer: export it again"):
        ExportInfo.from_json(old)


def test_a_mode_becomes_inputs():
    inputs = INFO.inputs(QUICK)
    assert inputs["ratios"].tolist() == [0, 0.5, 0, 0.25, 0, 0]
    assert inputs["ratios"].dtype == np.float64  # As Python counts, to the last patch.
    assert (inputs["exit"], inputs["neighbours"]) == (True, True)
    assert inputs["protect"].tolist() == [0, 1]
    pup = replace(INFO, config={**INFO.config, "decoder": "pup"})
    assert "exit" not in pup.inputs(Mode())
    merging = INFO.inputs(Mode.parse("2:~0.1,3:1 exit"))
    assert merging["merge_ratios"].tolist() == [0, 0.1, 0, 0, 0, 0]
    assert merging["ratios"].tolist() == [0, 0, 1, 0, 0, 0]


def test_a_mode_says_which_conditions_hold():
    mode = Mode.parse("2:~0.1,2:0.2,4:0.25")
    found = INFO.happening(mode, (64, 80))
    assert found == {"merges", "2/stage", "2/merge/some", "2/pause/some", "4/stage", "4/pause/some"}
    assert INFO.happening(mode, (16, 32)) == {"merges"}  # Two patches: none is gone.
    assert INFO.happening(mode, None) == found
    assert INFO.happening(Mode(), None) == set()


def test_what_a_file_cannot_run_is_refused_by_name():
    INFO.check(replace(QUICK, size=48))
    INFO.check(Mode.parse("2:~0.1,4:1 exit"))
    program = replace(INFO, runtime="program")
    for mode, what in (("2:~0.1", "merge"), ("4:1 exit", "let all patches leave")):
        with pytest.raises(ValueError, match=rf"a torch.export program cannot {what} \("):
            program.check(Mode.parse(mode))
    one = replace(INFO, runtime="openvino", mode=QUICK)
    one.check(replace(QUICK, size=48))
    with pytest.raises(ValueError, match=r'runs in mode "2:0\.5,4:0\.25 .* alone, not in "none"'):
        one.check(Mode())
    assert (INFO.modes, one.modes) == ({"quick": QUICK}, {"quick": QUICK})
    assert replace(one, mode=Mode()).modes == {}


def test_a_file_runs_ratios_by_criteria_that_need_no_labels():
    check_exportable(Mode.parse("2:0.5 exit by=neighbours"))
    with pytest.raises(ValueError, match=r'takes ratios, not thresholds \("2:0\.1,4:<0\.5"\)'):
        check_exportable(Mode.parse("2:0.1,4:<0.5"))
    with pytest.raises(ValueError, match="by=oracle is for evaluate and sweep alone"):
        check_exportable(Mode.parse("2:0.5 by=oracle"))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="paumer export"):
        open_exported(tmp_path / "nothing.onnx")
    assert not is_exported(tmp_path / "nothing.onnx")
    onnx = pytest.importorskip("onnx", reason="exported files are ONNX")
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    with pytest.raises(ValueError, match="cannot read"):
        load(tmp_path / "bad.onnx")
    proto = onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], []))
    onnx.save(proto, tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match="was not made by paumer export"):
        load(tmp_path / "foreign.onnx")
    entry = proto.metadata_props.add()
    entry.key, entry.value = "paumer", '{"format": "paumer 1"}'
    onnx.save(proto, tmp_path / "old.onnx")
    with pytest.raises(ValueError, match=r'cannot use ".*old\.onnx": it was exported by another'):
        load(tmp_path / "old.onnx")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config", None),
        ("points", []),
        ("depth", True),
        ("depth", 10**9),
        ("depth", 0),
        ("patch", [16, 0]),
        ("patch", None),
        ("size", [64]),
        ("size", [64, -64]),
        ("mode", "x" * 9999),
        ("runtime", None),
    ],
)
def test_what_a_file_says_of_itself_is_checked(name, value):
    values = {**json.loads(INFO.to_json()), name: value}
    with pytest.raises(ValueError, match=r'^cannot use "any\.onnx": .{9,700}$'):
        _read_info(Path("any.onnx"), json.dumps(values))
    del values[name]
    if name != "size":
        with pytest.raises(ValueError, match=f'^cannot use "any.onnx": its {name} cannot be None'):
            _read_info(Path("any.onnx"), json.dumps(values))


class Harm:
    """What a hostile pickle runs."""

    def __reduce__(self):
        return (open, ("harm", "w"))


def test_a_program_runs_no_pickle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(Harm(), "harm.pt2")
    with pytest.raises(ValueError, match="cannot read"):
        load("harm.pt2")
    assert not (tmp_path / "harm").exists()


def test_a_missing_library_is_named_with_what_to_install():
    with pytest.raises(
        ImportError, match=r"this needs no_such_runtime: pip install 'paumer\[onnx\]'"
    ):
        need("no_such_runtime", "onnx")
