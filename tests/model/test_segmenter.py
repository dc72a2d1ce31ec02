"""The segmenter: parity with the plain model and with the paper's loop, and nothing in between."""

import copy
import itertools
import shutil
import threading

import paper_loop
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.vision_transformer import VisionTransformer
from torch.utils.flop_counter import FlopCounterMode

from paumer import Mode, criteria
from paumer.model.build import build_model
from paumer.model.config import ModelConfig
from paumer.model.segmenter import pad_to_patches
from paumer.pause_config import PAPER_CONFIGS

KINDS = ("plain", "distilled", "registers", "no prefix", "rotary", "rotary only")
DECODERS = (
    ("linear", {}),
    ("mask", {"depth": 1}),
    ("mask", {"depth": 2}),
    ("pup", {"channels": 16}),
    ("pup", {"channels": 64, "depth": 2, "scale": 4}),
)


def pictures(batch=2, height=40, width=56, seed=1, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, height, width, generator=rng, dtype=torch.float64).to(dtype)


def spelled(text):
    """A mode's stages as the paper's loop takes them, and whether it exits early."""
    mode = Mode.parse(text)
    stages = [(block, a if isinstance(a, float) else str(a)) for block, a in mode.pause.stages]
    return stages, mode.early_exit


def configured(model, **options):
    """The same weights in a network whose classes have names, and of other options."""
    other = copy.copy(model)
    other.config = ModelConfig("by hand", "mask", tuple("abcde"), (48, 48), **options)
    return other


def agree(model, images, text, score=paper_loop.entropy, **options):
    stages, early_exit = spelled(text)
    with torch.inference_mode():
        got = model(images, text, **options)
        logits, after = paper_loop.segment(model, images, stages, score, early_exit)
    assert got.paused_after().flatten(1).tolist() == after
    assert torch.allclose(got.logits, logits, rtol=0, atol=1e-9)
    return after


# The paper's loop


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["none", "2:0.4", "1:0.3,2:0.3,5:0.5", "2:<1.2", "1:0.2,3:<1.1"])
def test_it_does_what_the_paper_says(small_model, kind, text):
    model = small_model(kind, "mask", depth=1, double=True)
    after = agree(model, pictures(3, dtype=torch.float64), text)
    assert text == "none" or any(itertools.chain(*after))


@pytest.mark.parametrize(("decoder", "options"), DECODERS)
@pytest.mark.parametrize("text", ["3:0.4", "2:0.5,4:0.5", "3:<1.2"])
def test_it_does_so_with_every_decoder(small_model, decoder, options, text):
    model = small_model("plain", decoder, double=True, **options)
    agree(model, pictures(2, dtype=torch.float64), text)


@pytest.mark.parametrize("kind", ["plain", "registers", "rotary"])
@pytest.mark.parametrize("decoder", ["linear", "mask"])
@pytest.mark.parametrize("text", ["none", "3:0.4", "1:0.3,4:0.3,6:0.5", "6:0.9", "2:<1.2,4:<1.3"])
def test_early_exit_does_what_the_paper_says(small_model, kind, decoder, text):
    model = small_model(kind, decoder, double=True)
    agree(model, pictures(3, dtype=torch.float64), f"{text} exit")


@pytest.mark.parametrize("text", ["2:0.4,4:0.4", "2:<0.5,4:<0.3"])
def test_it_follows_any_criterion(small_model, text):
    """Also one that looks up what it knows by place, after a first pause."""
    model = small_model("rotary", double=True)
    known = torch.rand(3, 35, generator=torch.Generator().manual_seed(0))
    agree(
        model,
        pictures(3, dtype=torch.float64),
        text,
        score=lambda logits, place: known[place].item(),
        criterion=lambda logits, patch_index: known.flatten()[patch_index],
    )


def test_the_oracle_finds_the_right_labels(small_model):
    model = small_model("plain", double=True)
    images = pictures(2, dtype=torch.float64)
    labels = torch.randint(0, 5, (2, 40, 56), generator=torch.Generator().manual_seed(3))
    truth = criteria.patch_labels(labels, (8, 8), 5)

    def score(logits, place):
        p = torch.tensor(logits).softmax(-1)[truth[place]].item()
        return (logits.index(max(logits)) != truth[place]) + 1 - p

    agree(model, images, "1:0.3,3:0.4", score=score, criterion=criteria.oracle(truth))


@pytest.mark.parametrize("size", [(40, 56), (33, 20)])
@pytest.mark.parametrize("text", ["1:0.3,3:0.4", "2:0.5 exit"])
def test_a_named_criterion_is_that_of_the_images_grid(small_model, size, text):
    model = configured(small_model("plain", double=True))
    images = pictures(3, *size, dtype=torch.float64)
    known = criteria.neighbours((-(-size[0] // 8), -(-size[1] // 8)))
    plain = model(images, text, full_size=False)
    for words, same in (
        ("by=neighbours", known),
        ("by=neighbours protect=c", criteria.protecting(known, [2])),
        ("protect=c", criteria.protecting(criteria.entropy, [2])),
    ):
        found = model(images, f"{text} {words}", full_size=False)
        expected = model(images, text, same, full_size=False)
        assert torch.equal(found.paused_after(), expected.paused_after())
        assert torch.equal(found.logits, expected.logits)
        assert not torch.equal(found.paused_after(), plain.paused_after())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vit_tiny_patch16_384", "3:0.4,5:0.4,7:0.4"),
        ("deit_tiny_distilled_patch16_224", "3:0.3,5:0.3"),
        pytest.param("vit_small_patch14_reg4_dinov2", "3:0.2,5:0.2", marks=pytest.mark.slow),
        ("eva02_tiny_patch14_224", "3:0.4,9:0.5"),
    ],
)
def test_the_real_backbones_do_what_the_paper_says(lively, name, text):
    model = lively(build_model(name, classes=7)).double().eval()
    agree(model, pictures(2, 60, 70, dtype=torch.float64), text)


# The mean of the paused patches continues


@pytest.mark.parametrize("kind", ["plain", "no prefix", "registers", "rotary", "rotary only"])
@pytest.mark.parametrize("text", ["2:0.4", "1:0.3,2:0.3,5:0.5", "1:0.3,2:0,4:0.5", "1:<1.1,3:<1.3"])
def test_active_patches_see_the_mean_of_those_that_paused(small_model, kind, text):
    without = small_model(kind, "mask", depth=1, double=True)
    model = configured(without, context=True)
    images = pictures(3, dtype=torch.float64)
    agree(model, images, text)
    assert not torch.allclose(model(images, text).logits, without(images, text).logits)


@pytest.mark.parametrize("text", ["none", "2:0"])
def test_where_nobody_pauses_there_is_no_mean(small_model, text):
    plain = small_model("plain", "mask")
    own = configured(plain, context=True)(pictures(), text).logits
    assert torch.equal(own, plain(pictures(), text).logits)


def test_means_leave_before_an_early_exit(small_model):
    model = configured(small_model("rotary", "mask", double=True), context=True)
    agree(model, pictures(2, dtype=torch.float64), "1:0.3,4:0.3,6:0.5 exit")


@pytest.mark.parametrize("text", ["2:0.4", "1:0.3,2:0,4:0.5 exit"])
def test_means_are_counted_and_pass_gradients(small_model, text):
    model = configured(small_model("rotary", "mask", depth=1), context=True)
    _check_gradients(model, text)
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        model(pictures(1), text)
    assert 2 * model.macs((40, 56), text) == counter.get_total_flops()


# Sizes


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (8, 8), (9, 7), (16, 24), (33, 47)])
@pytest.mark.parametrize("text", ["none", "2:0.5"])
def test_images_of_any_size_give_logits_of_that_size(small_model, size, text):
    model = small_model("plain", "mask", double=True)
    images = pictures(2, *size, dtype=torch.float64)
    agree(model, images, text)
    got = model(images, text)
    assert got.logits.shape == (2, 5, *size)
    assert got.grid == (-(-size[0] // 8), -(-size[1] // 8))
    assert model(images, full_size=False).logits.shape[2:] == got.grid


def test_padding_adds_zeros_right_and_below():
    images = pictures(1, 5, 9)
    padded = pad_to_patches(images, (4, 6))
    assert padded.shape == (1, 3, 8, 12)
    assert torch.equal(padded[..., :5, :9], images)
    assert padded[..., 5:, :].abs().sum() + padded[..., 9:].abs().sum() == 0
    assert pad_to_patches(padded, (4, 6)) is padded


# Companions, gradients, threads


@settings(max_examples=25)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from(["none", "2:0.4", "1:0.5,3:0.5", "2:<1.2", "1:<1.1,3:<1.3", "2:0.3,4:<1.2"]),
    st.sampled_from([("plain", ""), ("plain", " exit"), ("rotary", ""), ("registers", " exit")]),
)
def test_an_image_does_not_feel_its_companions(small_model, seed, batch, text, make):
    kind, words = make
    text += words
    model = small_model(kind, "mask", depth=1, double=True)
    images = pictures(batch, 24, 40, seed, torch.float64)
    with torch.inference_mode():
        together = model(images, text)
        alone = [model(image[None], text) for image in images]
    assert torch.allclose(
        together.logits, torch.cat([one.logits for one in alone]), rtol=0, atol=1e-10
    )
    assert torch.equal(together.paused_after(), torch.cat([one.paused_after() for one in alone]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["3:0.4", "1:0.3,4:0.5", "2:<1.2"])
def test_every_parameter_gets_a_gradient(small_model, kind, text):
    _check_gradients(small_model(kind, "mask", depth=1), text)


@pytest.mark.parametrize(("decoder", "options"), DECODERS)
@pytest.mark.parametrize("text", ["2:0.4,4:0.4", "2:0.4,4:0.4 exit"])
def test_every_parameter_of_every_decoder_gets_a_gradient(small_model, decoder, options, text):
    if not ("exit" in text and decoder == "pup"):
        _check_gradients(small_model("plain", decoder, **options), text)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("deit3_small_patch16_224", marks=pytest.mark.slow),
        pytest.param("vit_small_patch16_dinov3", marks=pytest.mark.slow),
        "eva02_tiny_patch14_224",
    ],
)
def test_every_parameter_of_the_real_families_gets_a_gradient(lively, name):
    _check_gradients(lively(build_model(name, "linear", classes=4)), "3:0.4,5:0.4")


def _check_gradients(model, text):
    """The auxiliary head learns from its own loss, everything else from the main one too."""
    model.zero_grad()
    got = model(pictures(2), text)
    loss = got.logits.square().mean() + sum(s.logits.square().mean() for s in got.stages)
    loss.backward()
    unmoved = [
        name
        for name, value in model.named_parameters()
        if value.requires_grad and (value.grad is None or not value.grad.abs().sum() > 0)
    ]
    model.zero_grad()
    assert unmoved == []


@pytest.mark.parametrize("kind", ["plain", "rotary"])
@pytest.mark.parametrize("text", ["1:0.3,4:0.5", "2:<1.2,4:0.4 exit"])
def test_its_gradients_are_those_of_the_papers_loop(small_model, kind, text):
    model = copy.deepcopy(small_model(kind, "mask", depth=1, double=True))
    images = pictures(2, dtype=torch.float64)
    stages, early_exit = spelled(text)
    loop = paper_loop.segment(model, images, stages, early_exit=early_exit)[0]
    ours = model(images, text).logits
    weights = list(model.parameters())
    wanted, got = (
        torch.autograd.grad(logits.square().sum(), weights, allow_unused=True)
        for logits in (loop, ours)
    )
    for one, other in zip(wanted, got, strict=True):
        assert (one is None) == (other is None)
        # Positions are resized in single precision, hence no closer.
        assert one is None or (one - other).norm() <= 1e-6 * one.norm() + 1e-9


def test_a_paused_patch_still_learns_through_the_decoder(small_model):
    """The gradient at block 6 is for those who continued only, at block 1 for everyone."""
    model = small_model("plain")
    images = pictures(1).requires_grad_()
    model(images, "2:0.9", full_size=False).logits.sum().backward()
    by_patch = images.grad.unfold(2, 8, 8).unfold(3, 8, 8).abs().sum((1, 4, 5))
    assert (by_patch > 0).all()


@pytest.mark.slow
def test_threads_with_modes_of_their_own_do_not_meet(small_model):
    model = small_model("rotary", "mask")
    jobs = ["1:0.5,3:0.5", "none", "2:<1.2", "4:0.4 exit"]
    images = [pictures(2, 24, 40, seed) for seed in range(len(jobs))]

    def run(number):
        with torch.inference_mode():
            return model(images[number], jobs[number]).logits

    alone = [run(number) for number in range(len(jobs))]
    wrong = []

    def repeat(number):
        try:
            for _ in range(40):
                if not torch.equal(run(number), alone[number]):
                    wrong.append(number)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=repeat, args=(n,)) for n in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forward_pass_leaves_no_trace(small_model):
    model = small_model("rotary only", "mask")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {name: sorted(vars(module)) for name, module in model.named_modules()}
    with torch.inference_mode():
        first = model(pictures(), "2:0.4")
        model(pictures(1, 64, 64), "1:0.9,3:0.2")
        again = model(pictures(), "2:0.4")
    assert torch.equal(first.logits, again.logits)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert attributes == {name: sorted(vars(module)) for name, module in model.named_modules()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", ["", " exit"])
def test_it_runs_in_mixed_precision(small_model, kind, words):
    model = small_model(kind, "mask")
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        logits = model(pictures(), f"2:0.4,4:<1.2{words}").logits
    assert logits.isfinite().all()


def test_in_training_only_what_comes_after_dropout_differs(small_model):
    model = copy.deepcopy(small_model("plain", "mask", depth=1))
    calm = model(pictures(), "2:0.4")
    torch.manual_seed(0)
    wild = model.train()(pictures(), "2:0.4")
    assert torch.equal(calm.stages[0].kept, wild.stages[0].kept)
    assert not torch.equal(calm.logits, wild.logits)


# Refusals


def test_pup_refuses_early_exit_with_the_reason(small_model):
    with pytest.raises(ValueError, match=r"PUPDecoder.*full grid"):
        small_model("plain", "pup", channels=16)(pictures(), "3:0.4 exit")


def test_pausing_after_the_last_block_needs_early_exit(small_model):
    model = small_model()
    with pytest.raises(ValueError, match="the last one"):
        model(pictures(), "6:0.4")
    with pytest.raises(ValueError, match="cannot pause after block 7: this backbone has 6 blocks"):
        model(pictures(), "7:0.4 exit")
    with pytest.raises(ValueError, match="the last one"):
        model.macs((40, 56), "6:0.4")
    model(pictures(), "6:0.4 exit")


def test_a_network_takes_images_as_they_are(small_model):
    with pytest.raises(ValueError, match=r'images as they are \("2:0\.4 size=32"\)'):
        small_model()(pictures(), "2:0.4 size=32")


def test_what_a_criterion_needs_has_to_be_there(small_model):
    model = configured(small_model())
    with pytest.raises(ValueError, match=r'no class "tree" to protect: the model knows a, b, c'):
        model(pictures(), "2:0.4 protect=tree")
    with pytest.raises(ValueError, match="the model knows no names"):
        small_model()(pictures(), "2:0.4 protect=a")
    for name in ("random", "oracle"):
        with pytest.raises(ValueError, match=f'what "{name}" knows: give the criterion itself'):
            model(pictures(), f"2:0.4 by={name}")
    model(pictures(), "2:0.4 by=random", criteria.random(0))


@pytest.mark.parametrize("what", [0.4, None, ("2:0.4",)])
def test_what_is_not_a_mode_is_refused(fixed, what):
    with pytest.raises(TypeError, match="is not a mode: give a Mode or its text"):
        fixed("none").model(pictures(), what)


# Counting


COUNTED = [
    (kind, *decoder, text)
    for kind in ("plain", "distilled", "registers", "rotary", "rotary only")
    for decoder in DECODERS
    for text in ("none", "2:0.3,4:0.5", "3:0.4,6:0.5 exit")
    if (kind == "plain" or decoder[0] == "mask") and not ("exit" in text and decoder[0] == "pup")
]


@pytest.mark.parametrize(("kind", "decoder", "options", "text"), COUNTED)
def test_macs_are_what_a_counter_counts(small_model, kind, decoder, options, text):
    model = small_model(kind, decoder, **options)
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        model(pictures(1), text)
    assert 2 * model.macs((40, 56), text) == counter.get_total_flops()


@pytest.mark.parametrize(
    "name",
    [
        "vit_pwee_patch16_reg1_gap_256",
        pytest.param("vit_small_patch16_18x2_224", marks=pytest.mark.slow),
    ],
)
def test_macs_of_unusual_blocks_are_what_a_counter_counts(name):
    with torch.device("meta"):
        model = build_model(name, "linear").eval()
        counter = FlopCounterMode(display=False)
        with counter:
            model(torch.zeros(1, 3, 64, 64), "3:0.4")
    assert 2 * model.macs((64, 64), "3:0.4") == counter.get_total_flops()


RATIOS = {
    ("tiny", 512, 150): "12.64 1.20 1.45 1.76 1.15 1.32 1.51 1.70 1.34 1.53 1.73 1.43 1.65 1.85",
    ("tiny", 512, 19): "12.27 1.21 1.47 1.81 1.15 1.33 1.53 1.75 1.36 1.57 1.77 1.46 1.69 1.91",
    ("tiny", 768, 19): "43.44 1.24 1.55 1.93 1.18 1.38 1.60 1.81 1.42 1.65 1.89 1.53 1.79 2.02",
    ("small", 512, 150): "38.40 1.18 1.41 1.70 1.13 1.29 1.47 1.68 1.31 1.49 1.67 1.39 1.60 1.80",
    ("small", 512, 19): "37.42 1.19 1.42 1.74 1.14 1.30 1.49 1.71 1.32 1.51 1.71 1.41 1.63 1.84",
    ("small", 768, 19): "115.8 1.22 1.49 1.84 1.16 1.34 1.55 1.77 1.38 1.59 1.80 1.47 1.72 1.94",
}
"""Billions of MACs without pausing, and how many times fewer each of the 13 needs."""


@pytest.mark.parametrize(("size", "side", "classes"), RATIOS)
def test_macs_fall_as_the_published_networks_do(size, side, classes):
    with torch.device("meta"):
        model = build_model(f"vit_{size}_patch16_384", "mask", classes, image_size=side)
    base, *ratios = map(float, RATIOS[size, side, classes].split())
    whole = model.macs((side, side))
    assert whole / 1e9 == pytest.approx(base, rel=0.02)
    for config, ratio in zip(PAPER_CONFIGS, ratios, strict=True):
        assert whole / model.macs((side, side), config) == pytest.approx(ratio, rel=0.01)


def test_the_cost_of_a_threshold_is_not_known_beforehand(small_model):
    with pytest.raises(ValueError, match="depends on the image"):
        small_model().macs((40, 56), "3:<0.5")


# Export and compilation


FIXED = ("none", "3:0.4", "1:0.4,2:0.4,3:0.4", "2:0.4,4:0.5 exit")


@pytest.fixture
def fixed(unchecked, lively):
    """A function: a small model in one mode, images in, logits out, no shape checks."""
    decoders = unchecked("paumer.model.decoders")
    segmenter = unchecked("paumer.model.segmenter")

    class Fixed(torch.nn.Module):
        def __init__(self, text, depth=4, decoder="linear", **options):
            super().__init__()
            shape = {"img_size": 48, "patch_size": 8, "embed_dim": 64, "num_heads": 2}
            vit = VisionTransformer(**shape, num_classes=0, depth=depth, dynamic_img_size=True)
            backbone = unchecked("paumer.model.backbone").Backbone(vit)
            parts = decoders.create_decoder(decoder, 64, 5), decoders.AuxHead(64, 5)
            self.model = configured(lively(segmenter.PausingSegmenter(backbone, *parts)), **options)
            self.mode = unchecked("paumer.mode").Mode.parse(text)

        def forward(self, images):
            return self.model(images, self.mode).logits

    return lambda *args, **options: Fixed(*args, **options).eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "options"),
    [
        *((text, {}) for text in FIXED),
        ("1:0.4,2:0,3:0.4", {"context": True}),
        ("1:0.4,2:0.4 exit", {"context": True}),
        ("1:0.4,2:0.4 by=neighbours protect=b+d", {}),
    ],
)
def test_it_exports_and_says_the_same(fixed, text, options):
    model, images = fixed(text, 4, "mask", **options), pictures(2)
    exported = torch.export.export(model, (images,)).module()
    with torch.no_grad():
        assert torch.allclose(exported(images), model(images), rtol=0, atol=1e-6)
        assert torch.allclose(exported(-images), model(-images), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("text", FIXED[-2:])
def test_it_compiles_without_a_graph_break(fixed, text):
    _compare_compiled(fixed(text), "aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on PATH")
def test_it_compiles_to_machine_code(fixed):
    _compare_compiled(fixed("1:0.4", 2), "inductor")


def _compare_compiled(model, backend):
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.inference_mode():
        for seed in (1, 2):
            images = pictures(2, seed=seed)
            assert torch.allclose(compiled(images), model(images), rtol=0, atol=1e-5)
