"""`paumer export`: one mode, or all ratios of its stages, in one verified file."""

from paumer.cli.console import call, say
from paumer.cli.options import ExportOptions


def export(options: ExportOptions) -> None:
    """Write the model as ONNX or as a torch.export program, and verify that it agrees.

    Without --mode, or with --dial, how many patches continue after each block is an input.
    """
    from paumer import api

    file = call(api.export, options)
    megabytes, (height, width) = file.path.stat().st_size / 1e6, file.size
    say(f"wrote {file.path}: {megabytes:.1f} MB, {width}x{height}, any batch")
    say(
        f"agrees with the network on {file.agreement:.3%} of the patches of {file.images} images "
        f"({', '.join(map(str, file.modes))})"
    )
    if file.script:
        say(f"use it as in {file.script}")
