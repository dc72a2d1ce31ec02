"""Every command: options -> one public call -> a printed result.

Heavy modules are imported inside the commands, so that help answers at once.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.config import Dict

from paumer import __version__
from paumer.arguments import at_least_one
from paumer.cli.console import complain, errors, progress_bar, say, training_progress
from paumer.cli.data import check_data, data
from paumer.cli.demo import demo
from paumer.cli.export import export
from paumer.cli.measure import bench, evaluate, sweep, tune
from paumer.cli.options import TuneOptions
from paumer.cli.predict import predict
from paumer.cli.serve import serve
from paumer.cli.study import study
from paumer.training.options import TrainOptions, parse_size, read_recipe

app = App(
    name="paumer",
    help="Segmentation with a vision transformer that stops processing easy patches early.",
    version=__version__,
    suppress_keyboard_interrupt=False,
)
for command in (demo, predict, bench, evaluate, sweep, tune, study, export, serve):
    app.command(command)
app.command(data)
app.command(check_data)


def main() -> None:
    """Run the command line; a user's mistake ends with one clear line and exit code 2."""
    try:
        check_tokens(sys.argv[1:])
        app(_with_recipe(sys.argv[1:]))
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
    except (ValueError, OSError, ImportError) as error:
        complain(_in_words(error))
        sys.exit(2)


_IN_A_MODE = {
    "--pause": "--mode 3:0.4,5:0.4",
    "--early-exit": '--mode "3:0.4 exit"',
    "--criterion": '--mode "3:0.4 by=neighbours"',
    "--protect": '--mode "3:0.4 protect=pedestrian+bicyclist"',
    "--short-side": '--mode "3:0.4 size=288"',
}
_RENAMED = {
    "--val-pause": "--val-mode",
    "--val-pictures": "--val-images",
    "--pictures": "--limit",
    "--skyline": "--pareto",
    "--share": "--fraction (study entropy) or --ratio (study blocks)",
}
_REMOVED = {"--adaptive", "--rejoin", "--distil", "--exits", "--stages", "--aux-norm"}


def check_tokens(tokens: Sequence[str]) -> None:
    """Raise for an option of 0.1, with its replacement."""
    command = tokens[0] if tokens else ""
    for token in tokens:
        name = token.split("=", 1)[0]
        if name in _IN_A_MODE and command != "train":
            raise ValueError(f"{name} is now part of the mode: write {_IN_A_MODE[name]}")
        if name == "--size" and command in ("bench", "export", "study"):
            raise ValueError("--size is now --input (a mode's size=288 scales images)")
        if name in _RENAMED:
            raise ValueError(f"{name} is now {_RENAMED[name]}")
        if name in _REMOVED or token == "calibrate" == command:
            raise ValueError(f"{name} was removed in 0.2: see docs/negative-results.md")


def _in_words(error: Exception) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename:
        return f'"{error.filename}": a file is where a folder should be'
    return str(error)


def _with_recipe(tokens: list[str]) -> list[str]:
    """The tokens without ``--config FILE``; the tokens win over the settings of that file."""
    tokens = [part for token in tokens for part in _split_config(token)]
    if tokens[:1] != ["train"] or "--config" not in tokens:
        return tokens
    index = tokens.index("--config")
    if index + 1 == len(tokens):
        raise ValueError("--config needs a recipe, such as recipes/scenes.yaml")
    path = Path(tokens[index + 1])
    app["train"].config = (Dict({"train": read_recipe(path)}, source=str(path)),)
    return tokens[:index] + tokens[index + 2 :]


def _split_config(token: str) -> list[str]:
    return token.split("=", 1) if token.startswith("--config=") else [token]


@app.command(name="import")
def import_(checkpoint: Path, /, *, out: Path) -> None:
    """Turn a Segmenter checkpoint of rstrudel/segmenter or mmsegmentation into a model directory.

    Args:
        checkpoint: The .pth file. For rstrudel/segmenter with variant.yml in the same folder.
        out: Model directory to write; it must not exist.
    """
    from paumer.model.directory import load_tensors
    from paumer.model.foreign import read_checkpoint
    from paumer.model.segmenter import PausingSegmenter

    if out.exists():
        raise ValueError(f'"{out}" exists: name a directory that does not')
    found = read_checkpoint(checkpoint)
    model = PausingSegmenter.from_config(found.config)
    load_tensors(model, found.tensors, checkpoint, fresh="aux_head.")
    model.save_pretrained(out)
    config = found.config
    say(
        f"{found.source}: {config.backbone}, {config.decoder} decoder, "
        f"{len(config.classes)} classes, {config.image_size[1]}x{config.image_size[0]}"
    )
    say(f"read {len(found.tensors)} tensors into {out}")
    if found.unused:
        say(f"not used: {', '.join(found.unused)}")
    say("the auxiliary head is untrained: train it before pausing (it decides which patches pause)")


@app.command
def scenes(*, out: Path, count: int = 200, size: str = "384x288") -> None:
    """Make synthetic street scenes with labels, as a data set that every command can read.

    Args:
        out: Folder to write; it must not exist.
        count: Images for training; validation and test get a tenth each, at least one.
        size: Image size: WIDTHxHEIGHT, or one side for a square.
    """
    from paumer.scenes.files import write_scenes

    counts = {"train": at_least_one(count, "count")}
    counts |= dict.fromkeys(("val", "test"), max(1, count // 10))
    with progress_bar("rendering") as update:
        write_scenes(out, counts, parse_size(size), update)
    say(f"wrote {sum(counts.values())} scenes; look at {out / 'sheet.png'}")
    say(f"check them with: paumer check-data {out / 'data.yaml'}")


_DEFAULTS = TrainOptions()


@app.command
def train(  # noqa: D417
    *,
    config: Path | None = None,
    resume: Path | None = None,
    tune: Annotated[bool, Parameter(negative=())] = False,
    options: TrainOptions = _DEFAULTS,
) -> None:
    """Train a segmenter once for many modes.

    Args:
        config: A recipe: a YAML file of the options below; options on the command line win.
        resume: A run directory to resume, exactly as if it had not stopped; with --steps to extend.
        tune: Find the operating points accurate, balanced and fast at the end (also with --resume).
    """
    assert config is None  # Taken off by _with_recipe before.
    if resume and replace(options, steps=_DEFAULTS.steps) != _DEFAULTS:
        raise ValueError("--resume takes the options of the run: give no others but --steps")
    from paumer.api import training_module

    run = training_module()
    try:
        with training_progress() as progress:
            if resume:
                steps = None if options is _DEFAULTS else options.steps
                directory = run.resume(resume, say, progress, steps)
            else:
                directory = run.train(options, say, progress)
    except run.StoppedError as error:
        complain(str(error))
        sys.exit(128 + error.number)
    if not run.is_first():
        return
    data = run.read_options(directory).data
    say(f"done: {directory}/model is the last model, best/ that of the best validation")
    if tune:
        _find_points(directory, data)
    else:
        say(f"next: paumer tune --model {directory} --data {data} --speed-up 1.5")


def _find_points(run: Path, data: str) -> None:
    """Tune a run for a budget that can always be met: little loss."""
    options = TuneOptions(
        model=str(run), data=data, max_drop=1.0, name="balanced", procedure="filter"
    )
    tune(options)
    say(f"next: paumer predict IMAGES --model {run} --mode balanced --out out/")
