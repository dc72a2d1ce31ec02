"""What an exported file says of itself, and files that say nothing of the kind."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paumer.inference.exported import ExportInfo, check_exportable, need, open_onnx
from paumer.mode import Mode
from paumer.pause_config import PauseConfig
from paumer.pausing import keep_count

INFO = ExportInfo({"classes": ["a", "b"]}, (48, 64), Mode.parse("2:0.5,4:0.5 exit"), True, 12)


@pytest.mark.parametrize("mode", ["none", "2:0.5,4:0.5", "2:0.4 exit by=neighbours protect=a%20b"])
@pytest.mark.parametrize("dial", [False, True])
def test_it_survives_json(mode, dial):
    info = ExportInfo({"classes": ["a"]}, (48, 64), Mode.parse(mode), dial, 12)
    assert ExportInfo.from_json(info.to_json()) == info
    assert json.loads(info.to_json())["mode"] == mode
    assert json.loads(info.to_json())["blocks"] == list(info.mode.pause.blocks)


def test_a_file_of_another_version_is_refused():
    old = json.dumps({**json.loads(INFO.to_json()), "format": "paumer 1"})
    with pytest.raises(ValueError, match="exported by another version of paumer: export it again"):
        ExportInfo.from_json(old)


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_each_block_keeps_what_pausing_keeps(first, second):
    kept = INFO.kept(PauseConfig(((2, first), (4, second))))
    assert kept == [keep_count(12, first), keep_count(kept[0], second)]
    assert INFO.kept(PauseConfig(((4, second),))) == [12, keep_count(12, second)]
    assert INFO.kept(PauseConfig()) == [12, 12]


def test_what_the_file_cannot_do_is_said():
    with pytest.raises(
        ValueError, match=r'pause after block 3 \("3:0\.5"\): it was exported for 2, 4'
    ):
        INFO.kept(PauseConfig.parse("3:0.5"))
    with pytest.raises(ValueError, match="takes ratios, not thresholds"):
        INFO.kept(PauseConfig.parse("2:<0.5"))


def test_a_file_runs_shares_by_criteria_that_need_no_labels():
    check_exportable(Mode.parse("2:0.5 exit by=neighbours"))
    with pytest.raises(ValueError, match=r'takes ratios, not thresholds \("2:0\.1,4:<0\.5"\)'):
        check_exportable(Mode.parse("2:0.1,4:<0.5"))
    with pytest.raises(ValueError, match="by=oracle is for evaluate and sweep alone"):
        check_exportable(Mode.parse("2:0.5 by=oracle"))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="paumer export"):
        open_onnx(tmp_path / "nothing.onnx")
    onnx = pytest.importorskip("onnx", reason="exported files are ONNX")
    pytest.importorskip("onnxruntime", reason="exported files run in onnxruntime")
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    with pytest.raises(ValueError, match="cannot read"):
        open_onnx(tmp_path / "bad.onnx")
    graph = onnx.helper.make_graph([], "empty", [], [])
    proto = onnx.helper.make_model(graph)
    onnx.save(proto, tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match="was not made by paumer export"):
        open_onnx(tmp_path / "foreign.onnx")
    entry = proto.metadata_props.add()
    entry.key, entry.value = "paumer", '{"format": "paumer 1"}'
    onnx.save(proto, tmp_path / "old.onnx")
    with pytest.raises(ValueError, match=r'cannot use ".*old\.onnx": it was exported by another'):
        open_onnx(tmp_path / "old.onnx")


def test_a_missing_library_is_named_with_what_to_install():
    with pytest.raises(
        ImportError, match=r"this needs no_such_runtime: pip install 'paumer\[onnx\]'"
    ):
        need("no_such_runtime", "onnx")
