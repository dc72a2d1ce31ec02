import colorsys
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paumer.data import transforms
from paumer.data.samples import Sample
from paumer.data.transforms import TrainTransform, normalise

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
PLAIN = {"colour": 0.0, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def encoded(height=90, width=120, seed=0, block=10):
    """An image whose red is ten times its label, in blocks of random classes with some void."""
    rng = np.random.default_rng(seed)
    coarse = rng.choice([*range(11), 255], (-(-height // block), -(-width // block)))
    labels = coarse.repeat(block, 0).repeat(block, 1)[:height, :width].astype(np.uint8)
    image = np.stack([np.where(labels == 255, 250, labels * 10), labels, 255 - labels], 2)
    return Sample("encoded", image.astype(np.uint8), labels)


def decoded(pixels):
    """The label each pixel's colour stands for."""
    red = (pixels[0] * 255).round().long()
    return torch.where(red == 250, 255, red // 10), red % 10 == 0


class TestAlignment:
    @pytest.mark.parametrize("seed", range(20))
    def test_crop_and_flip_are_exact(self, seed):
        change = TrainTransform((40, 56), scale=(1.0, 1.0), **PLAIN)
        pixels, labels = change(encoded(), seed)
        found, clean = decoded(pixels)
        assert clean.all()
        assert torch.equal(found, labels)

    @pytest.mark.parametrize("seed", range(40))
    def test_scaling_disagrees_at_borders_only(self, seed):
        change = TrainTransform((64, 80), **PLAIN)
        sample = encoded(seed=seed, block=16)
        pixels, labels = change(sample, seed)
        found, _ = decoded(pixels)
        # A pixel is inside if everything within two pixels has its label.
        spread = labels[None, None].float()
        high = torch.nn.functional.max_pool2d(spread, 5, 1, 2)[0, 0]
        low = -torch.nn.functional.max_pool2d(-spread, 5, 1, 2)[0, 0]
        inside = ((high == low) & (pixels != 0).any(0))[2:-2, 2:-2]
        assert inside.sum() > 20
        assert torch.equal(found[2:-2, 2:-2][inside], labels[2:-2, 2:-2][inside])

    @given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 70), st.integers(1, 70),
           st.integers(0, 2**40))  # fmt: skip
    def test_any_size_gives_the_crop(self, height, width, down, across, seed):
        rng = np.random.default_rng(seed)
        image = rng.integers(0, 256, (height, width, 3), np.uint8)
        sample = Sample("noise", image, image[..., 0] % 5)
        pixels, labels = TrainTransform((down, across), MEAN, STD)(sample, seed)
        assert pixels.shape == (3, down, across)
        assert pixels.dtype == torch.float32
        assert pixels.isfinite().all()
        assert labels.shape == (down, across)
        assert labels.dtype == torch.int64
        assert set(labels.unique().tolist()) <= {0, 1, 2, 3, 4, 255}

    def test_padding_is_zero_and_ignored(self):
        sample = Sample("white", np.full((20, 30, 3), 255, np.uint8), np.zeros((20, 30), np.uint8))
        change = TrainTransform((50, 40), MEAN, STD, scale=(1.0, 1.0), colour=0.0)
        pixels, labels = change(sample, 0)
        assert (labels[:20, :30] == 0).all()
        assert (pixels[:, :20, :30] > 0).all()
        labels[:20, :30], pixels[:, :20, :30] = 255, 0
        assert (labels == 255).all()
        assert (pixels == 0).all()


class TestScale:
    def test_fits_long_and_short_side(self):
        assert transforms.scaled_size((480, 640), (2048, 512)) == (512, 683)
        assert transforms.scaled_size((100, 1000), (2048, 512)) == (205, 2048)
        assert transforms.scaled_size((1024, 2048), (2048, 1024), 0.5) == (512, 1024)
        assert transforms.scaled_size((360, 480), None, 1.5) == (540, 720)
        assert transforms.scaled_size((1, 5000), None, 0.5) == (1, 2500)

    def test_scales_are_drawn_from_the_range(self):
        sample = encoded(60, 60)
        change = TrainTransform((200, 200), **PLAIN)
        heights = [int((change(sample, s)[0] != 0).any(0).any(1).sum()) for s in range(200)]
        assert 30 <= min(heights) < 36
        assert 114 < max(heights) <= 120
        assert 70 < np.mean(heights) < 80


class TestCropRule:
    def test_crops_with_one_class_are_avoided(self):
        labels = np.zeros((100, 100), np.uint8)
        labels[:, 80:] = 1
        sample = Sample("black", np.zeros((100, 100, 3), np.uint8), labels)

        def share(most, seed):
            change = TrainTransform((30, 30), scale=(1.0, 1.0), most=most, **PLAIN)
            return float((change(sample, seed)[1] == 0).float().mean())

        free = [share(1.0, seed) for seed in range(200)]
        ruled = [share(0.75, seed) for seed in range(200)]
        good = [0.25 <= value <= 0.75 for value in ruled]
        # About one crop in five is good by chance, so ten tries find one nine times in ten.
        assert np.mean([0.25 <= value <= 0.75 for value in free]) < 0.4
        assert np.mean(good) > 0.8

    def test_void_does_not_count(self):
        labels = np.full((40, 40), 255, np.uint8)
        labels[:10, :20], labels[:10, 20:] = 3, 4
        sample = Sample("black", np.zeros((40, 40, 3), np.uint8), labels)
        change = TrainTransform((40, 40), scale=(1.0, 1.0), **PLAIN)
        calls = []

        class Counting(np.random.Generator):
            def integers(self, low, high):
                calls.append(high)
                return low

        rng = Counting(np.random.PCG64(0))
        change._choose_box(labels, (40, 40), [40, 40], rng)
        assert len(calls) == 2  # one crop, two numbers: each class fills half of what is labelled
        calls.clear()
        change._choose_box(np.full((40, 40), 255, np.uint8), (40, 40), [40, 40], rng)
        assert len(calls) == 20
        assert (change(sample, 0)[1] == 255).sum() == 1200


class TestSeed:
    def test_the_seed_decides(self):
        change, sample = TrainTransform((48, 48), MEAN, STD), encoded()
        first = [change(sample, seed) for seed in range(12)]
        with ThreadPoolExecutor(4) as pool:
            again = list(pool.map(lambda seed: change(sample, seed), reversed(range(12))))[::-1]
        for (a, b), (c, d) in zip(first, again, strict=True):
            assert torch.equal(a, c)
            assert torch.equal(b, d)
        assert len({float(pixels.sum()) for pixels, _ in first}) == 12

    @pytest.mark.slow
    def test_another_process_agrees_and_keeps_its_random_states(self):
        code = """
import numpy as np, random, torch
from paumer.data.samples import Sample
from paumer.data.transforms import TrainTransform

def states():
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

image = (np.arange(60 * 80 * 3) % 251).astype(np.uint8).reshape(60, 80, 3)
sample = Sample("waves", image, image[..., 0] % 7)
before = states()
found = [float(TrainTransform((32, 32))(sample, s)[0].sum()) for s in range(6)]
assert states() == before
"""
        here = {}
        exec(code.replace("assert states() == before", ""), here)
        command = [sys.executable, "-c", code + "print(found)"]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.stdout.strip() == str(here["found"]), run.stderr

    def test_the_sample_is_not_changed(self):
        sample = encoded()
        image, labels = sample.image.copy(), sample.labels.copy()
        for seed in range(8):
            pixels, target = TrainTransform((90, 120), scale=(1.0, 1.0))(sample, seed)
            pixels.fill_(7), target.fill_(7)
        np.testing.assert_array_equal(sample.image, image)
        np.testing.assert_array_equal(sample.labels, labels)

    def test_read_only_arrays_will_do(self):
        sample = encoded()
        sample.image.setflags(write=False)
        sample.labels.setflags(write=False)
        for seed in range(4):
            TrainTransform((90, 120), scale=(1.0, 1.0), colour=0.0)(sample, seed)


class TestColour:
    def test_each_change_happens_half_the_time_and_within_its_range(self):
        grey = torch.full((3, 1, 1), 100, dtype=torch.uint8)
        values = [
            transforms.distort(grey, np.random.default_rng(s))[:, 0, 0].numpy() for s in range(2000)
        ]
        values = np.array(values)
        assert (values == values[:, :1]).all()  # grey has no hue and no saturation
        assert 0.2 < (values[:, 0] == 100).mean() < 0.3  # neither brightness nor contrast
        assert values.min() >= (100 - 32) * 0.5
        assert values.max() <= (100 + 32) * 1.5
        assert values.min() < 45
        assert values.max() > 180

        red = torch.tensor([200, 100, 100], dtype=torch.uint8)[:, None, None]
        hues, depths = [], []
        for seed in range(2000):
            r, g, b = (
                transforms.distort(red, np.random.default_rng(seed)).flatten() / 255
            ).tolist()
            if 0 < max(r, g, b) < 1:  # not clipped
                hue, _, _ = colorsys.rgb_to_hsv(r, g, b)
                hues.append((hue + 0.5) % 1 - 0.5)
                depths.append(max(r, g, b) - min(r, g, b))
        assert 0.4 < np.mean(np.abs(hues) < 0.003) < 0.6
        assert 0.095 < np.max(np.abs(hues)) < 0.105

    def test_the_strength_scales_every_range(self):
        grey = torch.full((3, 1, 1), 100, dtype=torch.uint8)
        for strength in (0.25, 2.0):
            values = [
                int(transforms.distort(grey, np.random.default_rng(s), strength)[0])
                for s in range(500)
            ]
            low, high = 1 - 0.5 * strength, 1 + 0.5 * strength
            assert min(values) >= (100 - 32 * strength) * low - 1
            assert max(values) <= min(255, (100 + 32 * strength) * high + 1)
            assert min(values) < 100 - 20 * strength
            assert max(values) > 100 + 20 * strength


DAMAGE = {
    "blur": {"blur": 1.0},
    "noise": {"noise": 0.2},
    "compress": {"compress": 1.0},
    "cutout": {"cutout": 1.0},
    "balance": {"balance": 1.0},
}


class TestDamage:
    @pytest.mark.parametrize("name", DAMAGE)
    def test_the_seed_decides_and_no_global_state_is_used(self, name):
        sample = encoded()
        change, plain = (TrainTransform((48, 64), MEAN, STD, **kind) for kind in (DAMAGE[name], {}))
        before = torch.get_rng_state()
        first, second = change(sample, 5), change(sample, 5)
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])
        assert any(not torch.equal(change(sample, s)[0], plain(sample, s)[0]) for s in range(5))

    @pytest.mark.parametrize("name", [name for name in DAMAGE if name != "balance"])
    def test_what_rarely_happens_leaves_the_rest_as_it_is(self, name):
        """The draws of damage come after all others, so the crop, colours and flip stay."""
        rare = {field: min(value, 1e-9) for field, value in DAMAGE[name].items()}
        for seed in range(5):
            found = TrainTransform((48, 64), **rare)(encoded(), seed)
            expected = TrainTransform((48, 64))(encoded(), seed)
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])

    @given(st.integers(1, 12), st.integers(1, 12), st.floats(0.1, 2.0), st.integers(0, 99))
    def test_any_size_can_be_damaged(self, height, width, sigma, seed):
        image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        whole = {name: value for kind in DAMAGE.values() for name, value in kind.items()}
        pixels, labels = TrainTransform((12, 12), **whole)(
            Sample("noise", image, image[..., 0] % 3), seed
        )
        assert pixels.isfinite().all()
        assert labels.shape == (12, 12)
        flat = torch.full((3, height, width), 77, dtype=torch.uint8)
        assert torch.equal(transforms.blurred(flat, sigma), flat)

    def test_a_blur_is_a_gaussian(self):
        point = torch.zeros(3, 41, 41, dtype=torch.uint8)
        point[:, 20, 20] = 255
        found = transforms.blurred(point, 1.5)[0].double()
        away = torch.arange(41).double() - 20
        kernel = torch.exp(-(away**2) / (2 * 1.5**2))
        expected = 255 * torch.outer(kernel, kernel) / kernel.sum() ** 2
        assert (found - expected).abs().max() < 1

    def test_noise_is_up_to_as_strong_as_asked(self):
        grey = np.full((64, 64, 3), 128, np.uint8)
        sample = Sample("grey", grey, np.zeros((64, 64), np.uint8))
        change = TrainTransform((64, 64), scale=(1.0, 1.0), noise=0.1, **PLAIN)
        deviations = [float(change(sample, seed)[0].std()) for seed in range(60)]
        assert max(deviations) < 0.105
        assert max(deviations) > 0.09
        assert min(deviations) < 0.02

    def test_what_is_cut_out_has_the_mean_colour_and_no_labels(self):
        white = np.full((50, 60, 3), 255, np.uint8)
        sample = Sample("white", white, np.ones((50, 60), np.uint8))
        change = TrainTransform((50, 60), MEAN, STD, scale=(1.0, 1.0), colour=0.0, cutout=0.5)
        shares = []
        for seed in range(100):
            pixels, labels = change(sample, seed)
            hidden = labels == 255
            shares.append(float(hidden.float().mean()))
            assert pixels[:, hidden].abs().max() < 0.02 if hidden.any() else True
            assert (pixels[:, ~hidden] > 0.5).all()
            assert (labels[~hidden] == 1).all()
        assert 0.35 < np.mean(np.array(shares) > 0) < 0.65
        assert max(shares) <= 0.17

    def test_balanced_crops_show_rare_classes_as_often_as_common_ones(self):
        labels = np.zeros((200, 200), np.uint8)
        labels[3:6, 190:194], labels[:, 100:120] = 1, 255
        sample = Sample("black", np.zeros((200, 200, 3), np.uint8), labels)

        def seen(balance):
            change = TrainTransform((40, 40), scale=(1.0, 1.0), balance=balance, most=1.0, **PLAIN)
            return np.mean([bool((change(sample, s)[1] == 1).any()) for s in range(300)])

        assert seen(0.0) < 0.1
        assert 0.4 < seen(1.0) < 0.6
        assert 0.15 < seen(0.5) < 0.4
        rng = np.random.default_rng(0)
        pixels = [transforms.pixel_of_any_class(labels, rng) for _ in range(200)]
        assert {int(labels[pixel]) for pixel in pixels} == {0, 1}
        assert transforms.pixel_of_any_class(np.full((4, 4), 255, np.uint8), rng) is None


class TestNormalise:
    def test_arrays_and_tensors_agree_with_the_formula(self):
        array = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
        exact = ((array / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
        tensor = torch.from_numpy(array).permute(0, 3, 1, 2)
        for images in (array, array[:, :, ::-1][:, :, ::-1], tensor, tensor.contiguous()):
            found = normalise(images, MEAN, STD)
            assert found.is_contiguous()
            np.testing.assert_allclose(found, exact, atol=2e-6)
        np.testing.assert_allclose(normalise(array[0], MEAN, STD), exact[0], atol=2e-6)
        assert normalise(array[0], MEAN, STD).shape == (3, 5, 7)

    def test_the_input_is_not_changed(self):
        tensor = torch.full((1, 3, 2, 2), 9, dtype=torch.uint8)
        normalise(tensor, MEAN, STD).fill_(3)
        assert (tensor == 9).all()

    def test_anything_else_is_refused(self):
        with pytest.raises(ValueError, match=r"shape \(4, 5, 6\).*\(\.\.\., h, w, 3\)"):
            normalise(np.zeros((5, 6, 4), np.uint8), MEAN, STD)


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_an_image_without_pixels_is_refused(size):
    empty = np.zeros((*size, 3), np.uint8)
    shown = f"{size[1]}x{size[0]}"
    with pytest.raises(ValueError, match=f'"flat".*{shown}.*no pixels'):
        TrainTransform((8, 8))(Sample("flat", empty, empty[..., 0]), 0)
    for images in (empty, torch.zeros((2, 3, *size), dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"cannot normalise.*no pixels"):
            normalise(images, MEAN, STD)
