"""Hostile checkpoints of other projects: their tensors, pickles, archives and settings change."""

import contextlib
import io
import pickle
import random
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fuzz_bytes import damage, odd_number
from fuzz_models import odd_value, safetensors_file, yaml_text
from safetensors.torch import save

from paumer import build_model
from paumer.cli.main import import_

_THEIRS = {
    "rstrudel": {
        "backbone.vit.": "encoder.",
        "decoder.project_patches.weight": "decoder.proj_patch",
        "decoder.project_classes.weight": "decoder.proj_classes",
        "decoder.class_embedding": "decoder.cls_emb",
        "decoder.project.": "decoder.proj_dec.",
        "decoder.norm.": "decoder.decoder_norm.",
    },
    "mmseg": {
        "backbone.vit.norm.": "backbone.ln1.",
        "backbone.vit.blocks.": "backbone.layers.",
        "backbone.vit.patch_embed.proj.": "backbone.patch_embed.projection.",
        "backbone.vit.": "backbone.",
        "decoder.blocks.": "decode_head.layers.",
        "decoder.project_patches.": "decode_head.patch_proj.",
        "decoder.project_classes.": "decode_head.classes_proj.",
        "decoder.class_embedding": "decode_head.cls_emb",
        "decoder.project.": "decode_head.dec_proj.",
        "decoder.norm.": "decode_head.decoder_norm.",
        "decoder.mask_norm.": "decode_head.mask_norm.",
        ".norm1.": ".ln1.",
        ".norm2.": ".ln2.",
        ".attn.qkv.": ".attn.attn.in_proj_",
        ".attn.proj.": ".attn.attn.out_proj.",
        ".mlp.fc1.": ".ffn.layers.0.0.",
        ".mlp.fc2.": ".ffn.layers.1.",
    },
}
"""What the parts of our names are called by others."""

_VARIANT = """\
dataset_kwargs: {dataset: ade20k, image_size: 64, crop_size: 64}
inference_kwargs: {im_size: 64, window_size: 64, window_stride: 32}
net_kwargs:
  backbone: vit_tiny_patch16_384
  decoder: {drop_path_rate: 0.0, dropout: 0.1, n_cls: 5, n_layers: 1, name: mask_transformer}
  image_size: [64, 64]
  normalization: vit
"""
_PICKLES = (
    b"cos\nsystem\n(S'ls'\ntR.", b"\x80\x02]q\0" + b"(" * 50_000 + b".", b"\x80\x02K\1.", b"",
    b"\x80\x02\x8b\xff\xff\xff\x7f1.", b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", b"\x80\x022.",
    b"\x80\x02r\xff\xff\xff\xff.", b"\x80\x02]" + b"]a" * 50_000 + b".", b"\x80\x02}q\0h\0.",
    b"\x80\x02j\xff\xff\xff\x7f.", b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".", b"\x80\x02N.",
    b"\x80\x02ccollections\nOrderedDict\nq\0)Rq\1.", b"\x80\x02(" + b"K\1" * 10**5 + b"l.",
    b"\x80\x02X\xff\xff\xff\x7fabc.", b"\x80\xff.",
    b"\x80\x02cbuiltins\nbytearray\nJ\0\0\0\x30\x85R.",
    b"\x80\x02ctorch\nDoubleTensor\nJ\0\0\0\x30\x85R.",
    b"\x80\x02ctorch\nload\n(S'x'\ntR.", b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(ttR.",
)  # fmt: skip


class Import:
    """Does what `paumer import` does; files of tensors alone start a backbone."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        options = {"depth": 1}
        model = build_model("vit_tiny_patch16_384", "mask", 5, 64, decoder_options=options)
        state = {n: t for n, t in model.state_dict().items() if not n.startswith("aux_head.")}
        # All share their values, so that files stay small.
        values = torch.randn(max(t.numel() for t in state.values())).half()
        self.states: dict[str, dict[str, Any]] = {}
        for project, names in _THEIRS.items():
            self.states[project] = {}
            for name, tensor in state.items():
                theirs = name
                for ours, other in names.items():
                    theirs = theirs.replace(ours, other)
                self.states[project][theirs] = values[: tensor.numel()].view(tensor.shape)
        backbone = build_model("test_vit", "linear", 5).backbone.vit
        self.backbone = save({n: t.contiguous() for n, t in backbone.state_dict().items()})

    def make(self, rng: random.Random, number: int) -> dict[str, bytes]:
        """A checkpoint, where need be with its settings."""
        if number % 5 == 0:
            return {"weights.safetensors": safetensors_file(rng, self.backbone)}
        project = rng.choice(list(self.states))
        content: dict[Any, Any] = {
            "state_dict": dict(self.states[project]),
            "meta": {"CLASSES": None},
        }
        if project == "rstrudel":
            content = {"model": dict(self.states[project]), "epoch": 3}
        choice = rng.randrange(6)
        if choice < 3:
            self._change(rng, content)
        file = to_file(content, legacy=choice > 2 and rng.random() < 0.3)
        if choice == 3:
            file = change_archive(rng, file)
        elif choice == 4:
            file = damage(rng, file, self.backbone)
        files = {"checkpoint.pth": file}
        if project == "rstrudel":
            good = choice < 5 and rng.random() < 0.7
            files["variant.yml"] = _VARIANT.encode() if good else yaml_text(rng, _VARIANT)
        return files

    def _change(self, rng: random.Random, content: dict[Any, Any]) -> None:
        """Faults in what a checkpoint holds."""
        key = next(iter(content))
        state = content[key]
        for _ in range(rng.choice((1, 1, 2, 4))):
            name, choice = rng.choice(list(state)), rng.randrange(8)
            if choice == 0:
                del state[name]
            elif choice == 1:
                text = str(name)  # A name may be a number since an earlier fault.
                other = rng.choice((text + "x", text.replace(".0.", ".999."), "é", 7, "x" * 9000))
                state[other] = state[name]
            elif choice == 2:
                state[name] = odd_value(rng)
            elif choice == 3:
                content[rng.choice((key, "meta", "epoch", "model", "state_dict"))] = odd_value(rng)
            elif choice == 4:
                names = odd_value(rng)
                content["meta"] = {rng.choice(("CLASSES", "dataset_meta")): names}
            else:
                important = [
                    n for n in state if str(n).endswith(("embed", "cls_emb", "proj.weight"))
                ]
                name = rng.choice((name, rng.choice(important or [name])))
                state[name] = odd_tensor(rng, state[name])
            if not state:
                return

    def run(self, case: Path, number: int) -> bool:
        """Import it."""
        if number % 5 == 0:
            build_model("test_vit", "linear", 5, weights=case / "weights.safetensors")
            return True
        out = case.with_name("imported")
        shutil.rmtree(out, ignore_errors=True)
        import_(case / "checkpoint.pth", out=out)
        return True

    def bounded(self, number: int) -> bool:
        """Always."""
        return True


def odd_tensor(rng: random.Random, tensor: Any) -> Any:
    """A tensor like the given one of another shape, type or layout."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        return odd_value(rng)
    few = tensor.flatten()[:6]
    kinds = (torch.float64, torch.bool, torch.int64, torch.complex64, torch.uint8, torch.bfloat16)
    large = (2**31, 2**20, 1) if rng.random() < 0.5 else (1, odd_number(rng, 40), 192)
    change: Callable[[], Any] = rng.choice(
        (
            lambda: tensor.to(rng.choice(kinds)),
            lambda: tensor[..., None],
            lambda: tensor.flatten(),
            lambda: tensor[:0],
            lambda: few[0] if len(few) else few,
            lambda: few[:1].expand(*large),
            lambda: torch.empty(large, device="meta"),
            lambda: few.to_sparse(),
            lambda: few.float().view(1, -1).to_sparse_csr(),
            lambda: torch.quantize_per_tensor(few.float(), 0.1, 0, torch.qint8),
            lambda: torch.full_like(tensor, float("nan")),
            lambda: tensor.mT if tensor.dim() > 1 else tensor,
            lambda: torch.nn.Parameter(tensor.float()),
            lambda: torch.zeros(1, rng.choice((1, 5, 17, 1000)), rng.choice((0, 1, 192, 384))),
        )
    )
    try:
        return change()
    except RuntimeError:  # One that was changed before may have no such variant.
        return tensor


def to_file(content: object, legacy: bool) -> bytes:
    """What torch writes; in its old format, where the content has one storage, which gets a name.

    There torch would name it by its address, which is never the same.
    """
    out = io.BytesIO()
    torch.save(content, out, _use_new_zipfile_serialization=not legacy)
    if not legacy:
        return out.getvalue()
    return re.sub(rb"X[\5-\x14]\0\0\0\d{5,20}(?=q|r)", b"X\5\0\0\x0012345", out.getvalue())


def change_archive(rng: random.Random, file: bytes) -> bytes:
    """The archive of a checkpoint with another pickle, entries, names, sizes or compression."""
    if not zipfile.is_zipfile(io.BytesIO(file)):
        return rng.choice((rng.choice(_PICKLES), damage(rng, file[:3000]) + file[3000:]))
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    main = next(name for name in entries if name.endswith("data.pkl"))
    choice, compression = rng.randrange(7), zipfile.ZIP_STORED
    if choice < 3:
        entries[main] = damage(rng, entries[main], pickle.dumps(list(range(300))))
    elif choice == 3:
        entries[main] = rng.choice(_PICKLES)
    elif choice == 4:
        name = rng.choice(list(entries))
        entries[name] = damage(rng, entries[name])
    elif choice == 5:
        entries[rng.choice((main + "x", "../../x", "archive/constants.pkl", "é"))] = b"\x80\x02N."
        entries.pop(rng.choice(list(entries)))
    else:
        compression = zipfile.ZIP_DEFLATED
        if rng.random() < 0.5:
            entries[rng.choice(list(entries))] = bytes(2**25)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive, contextlib.suppress(ValueError):
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return out.getvalue()
