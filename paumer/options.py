"""One dataclass per command. The command line is derived from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Several = Parameter(consume_multiple=True, negative=())


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What `paumer bench` measures, and how."""

    pause: Annotated[tuple[str, ...], Several] = ("paper",)
    """Configurations such as none 3:0.4 3:0.2,5:0.4, or paper for the 13 of the paper."""

    model: str | None = None
    """A model directory or hub id. Without it, fresh weights: speed does not depend on them."""

    backbone: str = "vit_tiny_patch16_384"
    """timm name of the backbone when no model is given."""

    decoder: Literal["mask", "linear", "pup"] = "mask"
    """Decoder when no model is given."""

    classes: int = 19
    """Number of classes when no model is given."""

    size: str = "512"
    """Picture size: 512 for 512x512, or WIDTHxHEIGHT."""

    batch: int | Literal["auto"] = 1
    """Pictures per batch, or auto for the size with the best throughput."""

    images: Path | None = None
    """A folder of pictures to run on instead of noise."""

    rounds: int = 15
    """Rounds. Each runs every configuration once; the fastest round counts."""

    warmup: int = 2
    """Rounds run before and not counted."""

    threads: int | None = None
    """CPU threads (default: torch's)."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """Number format; bf16 by autocast."""

    upsample: bool = True
    """Include the final upsampling of the logits to the picture's size."""

    compile: bool = False
    """Compile each configuration first (slow to start)."""

    early_exit: bool = False
    """Paused patches take the auxiliary head's label and skip the decoder."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    json: Path | None = None
    """Write hardware, versions and measurements here."""

    csv: Path | None = None
    """Write the table here."""

    plot: Path | None = None
    """Draw the table here (PNG, SVG or PDF)."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What `paumer import` reads and writes."""

    out: Path
    """Model directory to write; it must not exist."""
