"""The README's commands are accepted and its Python runs."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from paumer.cli.main import app, check_tokens
from paumer.drawing import write_image
from paumer.scenes.scene import scene

ROOT = Path(__file__).parent.parent
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.S)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if line.startswith("paumer ")
]


@pytest.mark.parametrize("code", [block for language, block in BLOCKS if language == "python"])
def test_the_python_runs(code, tmp_path, monkeypatch):
    write_image(tmp_path / "street.jpg", scene(7, (128, 96))[0])
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_takes_the_command(command):
    check_tokens(shlex.split(command)[1:])
    app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


def test_it_is_short():
    lines = TEXT.splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_the_make_targets_exist():
    targets = re.findall(r"^make (\w+)", TEXT, re.M)
    assert {"demo", "test"} <= set(targets)
    assert set(targets) <= TARGETS


def test_the_workflow_makes_all_that_must_pass():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    made = set(workflow["jobs"]["make"]["strategy"]["matrix"]["target"])
    assert made == set(re.findall(r"^make (\w+)", (ROOT / ".ci/run").read_text("utf-8"), re.M))
    assert made <= TARGETS


@pytest.mark.parametrize("form", ["bug.yml", "idea.yml"])
def test_issue_forms_ask_something(form):
    template = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE" / form).read_text("utf-8"))
    assert template["name"]
    assert template["description"]
    assert all(item["attributes"]["label"] for item in template["body"])


def test_the_images_and_links_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", TEXT):
        assert (ROOT / target).exists(), target


def test_the_files_of_the_map_exist():
    listing = TEXT.split("## Where things are")[1]
    for name in re.findall(r"[├└]── ([\w/.]+)", listing):
        assert (ROOT / "paumer" / name).exists(), name
