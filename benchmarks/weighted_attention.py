"""Attention that counts a token as often as it stands for a patch: how long each way takes.

    python benchmarks/weighted_attention.py

On one thread, three heads of 64 channels; milliseconds, best of interleaved rounds.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from paumer.study.speed import time_interleaved

attention = F.scaled_dot_product_attention
SCALE = 64**-0.5


def ways(tokens: int) -> dict[str, Callable[[], Tensor]]:
    """Each way, on the same tokens; all but the first give the same."""
    q, k, v = torch.randn(1, tokens, 3, 3, 64).permute(2, 0, 3, 1, 4).unbind(0)
    sizes = torch.randint(1, 6, (1, 1, tokens)).float()
    mask = sizes.log()[:, None]

    def by_key(more: int) -> Tensor:
        longer, keys = F.pad(q, (0, more)), F.pad(k, (0, more))
        longer[..., 64], keys[..., 64] = 1 / SCALE, sizes.log()
        return attention(longer, keys, F.pad(v, (0, more)), scale=SCALE)[..., :64]

    def by_value() -> Tensor:
        values = torch.cat([v, torch.ones_like(v[..., :1])], -1) * sizes[..., None]
        both = attention(F.pad(q, (0, 1)), F.pad(k, (0, 1)), values, scale=SCALE)
        return both[..., :64] / both[..., 64:]

    def one_by_one() -> Tensor:
        return ((q * SCALE) @ k.transpose(-1, -2) + mask).softmax(-1) @ v

    return {
        "not at all": lambda: attention(q, k, v),
        "mask": lambda: attention(q, k, v, attn_mask=mask),
        "65th channel of the keys": lambda: by_key(1),
        "the same, padded to 80": lambda: by_key(16),
        "65th channel of the values": by_value,
        "one by one": one_by_one,
    }


@torch.inference_mode()
def main() -> None:
    """Print the times."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    for tokens in (562, 369):
        runs = ways(tokens)
        expected = runs["mask"]()
        for run in list(runs.values())[1:]:
            torch.testing.assert_close(run(), expected, rtol=0, atol=1e-5)
        seconds = time_interleaved(list(runs.values()), expected.device, 150, 5).min(0)
        for name, best in zip(runs, seconds, strict=True):
            print(f"{tokens} tokens, {name}: {1000 * best:.2f} ms")


if __name__ == "__main__":
    main()
