"""How a network is built: one value, whose JSON also says what this version no longer runs."""

import json
from dataclasses import replace

import pytest

from paumer.model.config import ModelConfig
from paumer.model.segmenter import PausingSegmenter

CONFIG = ModelConfig("test_vit", "mask", ("a", "b"), (32, 32))


def test_a_configuration_is_a_value():
    assert replace(CONFIG) == CONFIG
    assert ModelConfig.from_json(json.loads(json.dumps(CONFIG.to_json()))) == CONFIG
    assert replace(CONFIG, norm_eps=1e-3) != CONFIG
    assert replace(CONFIG, context=True) != CONFIG


def test_a_context_is_named_only_where_there_is_one():
    assert "context" not in CONFIG.to_json()
    own = replace(CONFIG, context=True)
    assert own.to_json()["context"] is True
    assert ModelConfig.from_json(own.to_json()) == own


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_a_context_is_true_or_false(value):
    with pytest.raises(ValueError, match=r"context: .* is not true or false"):
        ModelConfig.from_json({**CONFIG.to_json(), "context": value})


@pytest.mark.parametrize("name", ["short_side", "window", "stride", "trained_side"])
@pytest.mark.parametrize("value", [0, -1, 64.5, 64.0, "64", True, 65537])
def test_a_side_is_a_whole_number_of_pixels(name, value):
    with pytest.raises(ValueError, match=f"^{name}: .* is (not a whole number|out of range)"):
        ModelConfig.from_json({**CONFIG.to_json(), name: value})


@pytest.mark.parametrize(
    "changes", [{"image_size": [32.5, 32]}, {"colours": [[0.5, 0, 0], [1, 1, 1]]}]
)
def test_sizes_and_colours_are_whole_numbers(changes):
    with pytest.raises(ValueError, match=f"^{next(iter(changes))}: .*5 is not a whole number"):
        ModelConfig.from_json({**CONFIG.to_json(), **changes})


def test_equal_class_names_are_refused():
    with pytest.raises(ValueError, match='2 classes are called "road": give each its own name'):
        replace(CONFIG, classes=("sky", "road", "car", "road"))


def test_there_are_only_so_many_classes():
    names = [str(i) for i in range(10_001)]
    assert len(replace(CONFIG, classes=tuple(names[:-1])).classes) == 10_000
    with pytest.raises(ValueError, match="10001 classes are out of range: give from 1 to 10000"):
        ModelConfig.from_json({**CONFIG.to_json(), "classes": names})


def test_unknown_and_missing_entries_are_named():
    values = CONFIG.to_json()
    with pytest.raises(ValueError, match="unknown entries: colour, widht"):
        ModelConfig.from_json({**values, "widht": 3, "colour": 4})
    del values["classes"], values["decoder"]
    with pytest.raises(ValueError, match="missing entries: classes, decoder"):
        ModelConfig.from_json(values)


REMOVED = {"rejoin": (None, 5), "aux_norm": (False, True), "temperatures": ([], [1.5] * 7)}
"""Entries of 0.1, each with the value that left it out and one that used it."""


@pytest.mark.parametrize("name", REMOVED)
def test_an_entry_that_was_removed_is_refused_by_its_name(name, make, tmp_path):
    usual, used = REMOVED[name]
    values = CONFIG.to_json()
    assert ModelConfig.from_json({**values, name: usual}) == CONFIG
    with pytest.raises(ValueError, match=f"^{name} was removed in 0.2, .* use paumer 0.1"):
        ModelConfig.from_json({**values, name: used})
    model = make()
    model.save_pretrained(tmp_path / "model")
    file = tmp_path / "model/config.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, name: usual}))
    assert PausingSegmenter.from_pretrained(tmp_path / "model").config == model.config
    file.write_text(json.dumps({**values, name: used}))
    with pytest.raises(ValueError, match=rf"cannot read .*config\.json.*: {name} was removed"):
        PausingSegmenter.from_pretrained(tmp_path / "model")


def test_a_configuration_of_0_1_that_says_everything_is_read():
    usual = {name: values[0] for name, values in REMOVED.items()}
    assert ModelConfig.from_json({**CONFIG.to_json(), "context": False, **usual}) == CONFIG


def test_the_side_of_training_is_named_only_where_it_is_known():
    assert "trained_side" not in CONFIG.to_json()
    own = replace(CONFIG, trained_side=360)
    assert own.to_json()["trained_side"] == 360
    assert ModelConfig.from_json(own.to_json()) == own
