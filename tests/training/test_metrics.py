"""metrics.csv: read back as it was written, cut where a run resumes, refused where damaged."""

import pytest

from paumer.training.metrics import MetricsFile


@pytest.fixture
def path(tmp_path):
    """A file of three rows."""
    metrics = MetricsFile(tmp_path / "metrics.csv", until=0)
    metrics.add(20, {"loss": 0.5, "lr": 1e-3})
    metrics.add(30, {"miou 3:0.4,5:0.4": 0.25})
    metrics.add(40, {"loss": float("nan"), "lr": 1e-4})
    metrics.add(40, {"miou 3:0.4,5:0.4": 0.3})
    metrics.write()
    return metrics.path


def test_rows_are_read_back_and_cut_where_a_run_resumes(path):
    before = path.read_text()
    again = MetricsFile(path, until=40)
    again.write()
    assert path.read_text() == before
    assert list(MetricsFile(path, until=39).rows) == [20, 30]
    assert again.columns()["miou 3:0.4,5:0.4"] == ([30, 40], [0.25, 0.3])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: "", "first line names no columns"),
        (lambda text: text[:-3], "last line is cut off"),
        (lambda text: text[:-10] + "\n", "line 4 has 3 columns and the first 4"),
        (lambda text: text.replace("step", "stop"), "first line names no columns"),
        (lambda text: text.replace("lr", "loss"), "first line names no columns"),
        (lambda text: text.replace("30,", "x,"), "line 3 holds something other than numbers"),
        (lambda text: text.replace("30,", ","), "line 3 holds something other than numbers"),
        (lambda text: text.replace("0.5", "half"), "line 2 holds something other than numbers"),
        (lambda text: text.replace("30,", "20,"), "line 3 is another row of step 20"),
        (lambda text: text + "50,1,1,1,1\n", "line 5 has 5 columns"),
        (lambda text: text.replace("0.5", '"0.5'), ""),
        (lambda text: text + "\x00\n", ""),
    ],
)
def test_damage_is_named(path, change, problem):
    path.write_text(change(path.read_text()))
    with pytest.raises(
        ValueError, match=rf'cannot read "\S*metrics\.csv" \(.*{problem}.*\): bring it back, or'
    ):
        MetricsFile(path, until=40)


def test_bytes_that_are_not_text_are_named(path):
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r'cannot read "\S*metrics\.csv" \(.*utf-8'):
        MetricsFile(path, until=40)
