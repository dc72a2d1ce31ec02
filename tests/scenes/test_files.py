import numpy as np
import pytest

from paumer.data.checking import check_splits
from paumer.data.datasets import open_dataset
from paumer.scenes.files import write_scenes
from paumer.scenes.scene import scene, scene_seeds


def test_written_scenes_are_a_data_set_without_problems(tmp_path):
    seen = []
    out = tmp_path / "new" / "scenes"
    write_scenes(out, {"train": 2, "val": 1}, (64, 48), lambda *numbers: seen.append(numbers))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert {path.name for path in out.iterdir()} == {"images", "masks", "data.yaml", "sheet.png"}
    assert not any(report.problems for report in check_splits(str(out / "data.yaml")))
    sample = open_dataset(str(out / "data.yaml"), "val")[0]
    image, labels = scene(scene_seeds("val", 1)[0], (64, 48))
    assert np.array_equal(sample.image, image)
    assert np.array_equal(sample.labels, labels)


def test_an_existing_folder_is_refused_and_a_failure_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="exists"):
        write_scenes(tmp_path, {"train": 1}, (64, 48))

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr("paumer.scenes.files.mask_image", fail)
    with pytest.raises(OSError, match="no space"):
        write_scenes(tmp_path / "scenes", {"train": 1}, (64, 48))
    assert list(tmp_path.iterdir()) == []
