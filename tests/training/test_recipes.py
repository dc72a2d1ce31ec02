"""Recipes: what they extend, what they set, and what is wrong with them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cyclopts import App
from cyclopts.config import Dict

from paumer.training.options import REMOVED, RENAMED, TrainOptions, read_recipe

DEFAULTS = TrainOptions()
ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/recipes.json").read_text("utf-8"))
"""The options of every recipe when each of them was complete in itself."""


def as_options(values):
    """The options that the command line makes of a recipe's values."""
    app = App()

    @app.command
    def train(options: TrainOptions = DEFAULTS):
        return options

    app["train"].config = (Dict({"train": values}, source="recipe"),)
    return app("train", exit_on_error=False, print_error=False, result_action="return_value")


def test_there_are_recipes_and_each_is_known():
    assert {path.stem for path in (ROOT / "recipes").glob("*.yaml")} == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_a_recipe_sets_what_it_set_when_it_was_complete_in_itself(name):
    merged = as_options(read_recipe(ROOT / f"recipes/{name}.yaml"))
    assert merged == as_options(GOLDEN[name])
    assert merged != DEFAULTS


@pytest.mark.parametrize("name", GOLDEN)
def test_a_recipe_repeats_nothing_of_the_one_it_extends(name):
    own = yaml.safe_load((ROOT / f"recipes/{name}.yaml").read_text("utf-8"))
    if parent := own.pop("extends", None):
        base = vars(DEFAULTS) | read_recipe(ROOT / "recipes" / parent)
        defaults = {"ranges", "aux_weight", "init"}  # Numbers of the paper stand in its recipes.
        assert [n for n, value in own.items() if base[n] == value and n not in defaults] == []


@pytest.fixture
def write(tmp_path):
    """A function that writes recipes by name, and gives the path of the first."""

    def write_files(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
        return tmp_path / f"{next(iter(texts))}.yaml"

    return write_files


def test_own_options_win_over_those_of_the_parent_and_its_parent(write):
    path = write(
        a="extends: b.yaml\nsteps: 1\n",
        b="extends: c.yaml\nsteps: 2\nlr: 0.2\n",
        c="steps: 3\nlr: 0.3\nbatch: 3\n",
    )
    assert read_recipe(path) == {"steps": 1, "lr": 0.2, "batch": 3}


def test_a_parent_is_found_from_the_file_and_not_from_where_one_stands(
    write, tmp_path, monkeypatch
):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/b.yaml").write_text("extends: ../c.yaml\nlr: 0.2\n")
    path = write(a="extends: deep/b.yaml\n", c="steps: 3\n")
    monkeypatch.chdir("/")
    assert read_recipe(path) == {"steps": 3, "lr": 0.2}


def test_null_takes_an_option_of_the_parent_back_to_its_default(write):
    path = write(a="extends: b.yaml\nfit: null\n", b="fit: 640x480\nsteps: 3\n")
    assert read_recipe(path) == {"steps": 3}


def test_options_may_be_spelled_as_on_the_command_line(write):
    path = write(a="extends: b.yaml\nval-mode: [none]\n", b="val_mode: [none, '3:0.4']\n")
    assert read_recipe(path) == {"val_mode": ["none"]}


def test_an_empty_recipe_sets_nothing(write):
    assert read_recipe(write(a="# nothing yet\n")) == {}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"a": "extends: a.yaml"}, r"in a circle: \S*a\.yaml -> \S*a\.yaml$"),
        (
            {"a": "extends: b.yaml", "b": "extends: ./c.yaml", "c": "extends: b.yaml"},
            r"in a circle: \S*a\.yaml -> \S*b\.yaml -> \S*c\.yaml -> \S*b\.yaml$",
        ),
        ({"a": "extends: [b.yaml]", "b": ""}, r'a\.yaml" extends \[.*\]: name one recipe'),
        ({"a": "steps: 3\nlr: [1"}, r'a\.yaml" is not valid YAML: line 2, '),
        ({"a": "steps: 3\nlr: 1: 2"}, r'a\.yaml" is not valid YAML: line 2, '),
        ({"a": "steps: 3\n\nlr: \a"}, r'a\.yaml" is not valid YAML: line 3, special characters'),
        ({"a": "- steps"}, r'a\.yaml" does not hold options'),
        ({"a": "stepps: 3"}, r'a\.yaml" .*not known: line 1, stepps \(did you mean "steps"\?\)'),
        ({"a": "quite_other: 3"}, r"not known: line 1, quite_other$"),
        ({"a": "1: 3"}, r"not known: line 1, 1$"),
        ({"a": "config: b.yaml"}, r"not known: line 1, config"),
        ({"a": "extends: b.yaml", "b": "stepps: 3"}, r'b\.yaml" names .*not known: line 1, stepps'),
        ({"a": "extends: b.yaml", "b": "lr: [1"}, r'b\.yaml" is not valid YAML: line 1, '),
    ],
)
def test_mistakes_are_named(write, texts, message):
    with pytest.raises(ValueError, match=message):
        read_recipe(write(**texts))


def test_what_is_missing_is_named_with_the_chain_that_leads_there(write, tmp_path):
    with pytest.raises(FileNotFoundError, match=r'^no recipe at "\S*none\.yaml"$'):
        read_recipe(tmp_path / "none.yaml")
    path = write(a="extends: b.yaml", b="extends: c.yaml")
    chain = r"\S*a\.yaml -> \S*b\.yaml -> \S*c\.yaml$"
    with pytest.raises(FileNotFoundError, match=rf'^no recipe at "\S*c\.yaml": {chain}'):
        read_recipe(path)


def test_options_of_0_1_are_refused_with_what_to_write_instead(write):
    for old, new in RENAMED.items():
        with pytest.raises(ValueError, match=rf'a\.yaml": {old} is now {new}'):
            read_recipe(write(a=f"{old}: 3"))
    for old, default in REMOVED.items():
        with pytest.raises(ValueError, match=rf"{old} was removed in 0\.2: see docs/negative"):
            read_recipe(write(a=json.dumps({old: default})))
    assert set(RENAMED.values()) <= vars(DEFAULTS).keys()
    assert not REMOVED.keys() & vars(DEFAULTS).keys()


def test_bytes_that_are_not_text_are_named_by_line(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"steps: 3\nlr: \xff\xfe\x80")
    with pytest.raises(ValueError, match=r'a\.yaml" is not valid YAML: line 2, '):
        read_recipe(tmp_path / "a.yaml")


def test_reading_a_recipe_needs_no_torch(write):
    path = write(a="steps: 3\n")
    code = "import sys; from pathlib import Path; from paumer.training.options import read_recipe\n"
    code += (
        f"assert read_recipe(Path({str(path)!r})) == {{'steps': 3}}; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
