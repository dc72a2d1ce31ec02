"""The docs are true: their commands are accepted, their Python runs, their links lead somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import paumer
from paumer.classes import CAMVID
from paumer.cli.main import app, check_tokens
from paumer.drawing import write_image
from paumer.inference.points import write_points
from paumer.measurement import Measurement
from paumer.scenes.files import write_scenes
from paumer.scenes.scene import scene

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}


def blocks(text, language):
    return [
        code for name, code in re.findall(r"```(\w*)\n(.*?)```", text, re.S) if name == language
    ]


COMMANDS = [
    (page, line.split("paumer ", 1)[1])
    for page, text in PAGES.items()
    for block in blocks(text, "bash")
    for line in re.split(r"(?<!\\)\n", block)
    if re.match(r"(paumer|torchrun .*-m paumer) ", line)
]
MENTIONS = [
    (page, mention)
    for page, text in PAGES.items()
    for mention in re.findall(r"`paumer ([a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.S))
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_the_command_line_takes_the_command(page, command):
    tokens = shlex.split(command.replace("\\\n", " "), comments=True)
    check_tokens(tokens)
    app.parse_args(tokens, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(("page", "mention"), MENTIONS)
def test_commands_and_options_named_in_the_text_exist(page, mention):
    command, *rest = mention.split()
    place = app[command]
    if command == "study" and rest and rest[0] in place:
        place = place[rest[0]]
    options = re.findall(r"(?<!\S)--[a-z-]+", mention)
    if options:
        known = {name for one in place.assemble_argument_collection() for name in one.names}
        assert set(options) <= known | {"--help"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = PAGES[page]
    headings = re.findall(r"^#+ (.*)", text, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        assert (ROOT / "docs" / target).exists(), target
        assert not anchor or target or anchor in anchors, anchor


@pytest.mark.parametrize("page", sorted(PAGES))
def test_prose_has_no_line_above_120_characters(page):
    prose = re.sub(r"```.*?```", "", PAGES[page], flags=re.S)
    assert [line for line in prose.splitlines() if len(line) > 120 and line[0] not in "|!"] == []


def test_the_results_stay_short():
    assert len(PAGES["results.md"].splitlines()) <= 250


def test_the_index_has_every_page():
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", PAGES["README.md"]))
    assert listed == set(PAGES) - {"README.md"}


def test_the_reference_has_every_public_name():
    described = re.findall(r"^::: paumer\.(\w+)$", PAGES["reference.md"], re.M)
    assert sorted(described) == sorted(set(paumer.__all__) - {"__version__"})


@pytest.mark.slow
def test_the_site_is_whole_without_a_network(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*command, "--site-dir", tmp_path], cwd=ROOT, env=environment, check=True)
    pages = sorted(tmp_path.rglob("*.html"))
    assert {path.stem for path in pages} > {path.removesuffix(".md") for path in PAGES} - {"README"}
    for page in set(pages) - {tmp_path / "404.html"}:  # Its links start at a server's root.
        text = page.read_text("utf-8")
        assert not re.findall(r"<(?:script|link|img|iframe)[^>]*=\"?(?:https?:)?//", text), page
        for target in re.findall(r"(?:href|src)=\"(?![a-z]+:)([^\"#]+)", text):
            assert (page.parent / target).exists(), (page, target)


@pytest.mark.parametrize("name", paumer.__all__)
def test_every_public_name_is_in_the_python_api_and_in_its_examples(name):
    page = PAGES["python-api.md"]
    assert re.search(rf"^\| \[?`{name}`", page, re.M)
    assert any(re.search(rf"\b{name}\b", code) for code in blocks(page, "python"))


PYTHON = {page: blocks(text, "python") for page, text in PAGES.items() if blocks(text, "python")}
RUN_ALL = """
import json, sys, traceback
found = {}
for page, codes in json.load(sys.stdin).items():
    names = {}
    try:
        for code in codes:
            exec(compile(code, page, "exec"), names)
        found[page] = ""
    except Exception:
        found[page] = traceback.format_exc()
with open("found.json", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What went wrong in each page's Python, run in one process of its own.

    The folder it runs in has what the pages speak of. Shapes are not checked there, because
    exports look inside every function they meet.
    """
    place = tmp_path_factory.mktemp("docs")
    torch.manual_seed(0)
    model = paumer.build_model("test_vit2", "mask", CAMVID.names, image_size=96)
    model.save_pretrained(place / "runs/mine")
    balanced = Measurement(mode=paumer.Mode.parse("3:0.4"))
    write_points(place / "runs/mine", {"balanced": balanced})
    rows = [
        {"pause": "none", "miou": 0.6, "images_per_second": 4.0, "speed_up": 1.0},
        {"pause": "3:0.4", "miou": 0.5, "images_per_second": 7.0, "speed_up": 1.75},
    ]
    (place / "runs/sweep").mkdir()
    (place / "runs/sweep/sweep.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_image(place / "street.jpg", scene(7, (128, 96))[0])
    write_scenes(place / "scenes", {"train": 1, "val": 1}, (64, 48))
    for path in (place / "scenes").iterdir():
        path.rename(place / path.name)
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(place), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(PYTHON),
        cwd=place,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((place / "found.json").read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON)
def test_the_python_runs(page, outcomes):
    assert not outcomes[page], outcomes[page]
