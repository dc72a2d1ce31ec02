"""`paumer export`: a model as one verified file, for any image size and mode."""

from paumer.cli.console import call, print_table, progress_bar, say
from paumer.cli.options import ExportOptions


def export(options: ExportOptions) -> None:
    """Write the model as ONNX or as a torch.export program, and verify its labels.

    One file takes any image size and runs in any mode.
    """
    from paumer import api

    with progress_bar("verifying") as update:
        file = call(api.export, options, progress=update)
    say(f"wrote {file.path}: {file.path.stat().st_size / 1e6:.1f} MB")
    tried = f"{file.images} images ({', '.join(map(str, file.modes))})"
    say(f"{file.agreement:.3%} of the pixels have the model's label, of {tried}")
    rows = [
        (str(r.mode), f"{100 * r.before:.2f}", f"{100 * r.after:.2f}", f"{r.speed_up:.2f}x")
        for r in file.rounded
    ]
    if rows:
        print_table(("mode", "mIoU of the model", "in 8 bits", "speed-up"), rows)
    say(f"use it: paumer predict street.jpg --model {file.path}")
    if file.script:
        say(f"without paumer: python {file.script} street.jpg ({file.script_agreement:.3%})")
