from dataclasses import replace

import pytest
import torch

from paumer import PausingSegmenter, Predictor, build_model
from paumer.study.temperature import best_temperature, fit_temperatures


@pytest.mark.parametrize("wanted", [0.4, 1.0, 3.0])
def test_a_temperature_undoes_what_was_done_to_the_logits(wanted):
    dice = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(20_000, 4, generator=dice)
    truth = honest.softmax(-1).multinomial(1, generator=dice)[:, 0]
    assert best_temperature(wanted * honest, truth) == pytest.approx(wanted, rel=0.05)


def test_a_temperature_stays_within_bounds():
    truth = torch.tensor([0, 1, 2])
    assert 0.05 <= best_temperature(torch.eye(3), truth) < 0.2
    assert 5 < best_temperature(10 * torch.eye(3), truth.flip(0)) <= 20


@pytest.fixture
def predictor(lively):
    network = lively(build_model("test_vit", "mask", ("a", "b", "c"), image_size=32))
    return Predictor(network)


def test_each_head_is_fitted_on_the_patches_that_it_labels(predictor, pictures):
    fits = fit_temperatures(predictor, pictures(), range(3))
    assert [fit.block for fit in fits] == [1, 2, 3, 4, 5, 6, 0]
    # Three pictures of 2 x 3 patches, all with some label; half of them exit after each block.
    assert [fit.patches for fit in fits] == [9] * 6 + [6 * 9]
    assert all(fit.after <= fit.before for fit in fits)
    assert any(fit.after < fit.before - 0.1 for fit in fits)


def test_no_picture_gives_a_head_more_patches_than_it_may(predictor, pictures, monkeypatch):
    monkeypatch.setattr("paumer.study.temperature.MOST", 2)
    fits = fit_temperatures(predictor, pictures(), range(3))
    assert [fit.patches for fit in fits] == [3 * 2] * 6 + [6 * 3 * 2]


def test_fitting_again_says_the_same_and_changes_nothing(predictor, pictures):
    first = fit_temperatures(predictor, pictures(), range(2))
    network = predictor.network
    network.config = replace(network.config, temperatures=tuple(fit.temperature for fit in first))
    calibrated = Predictor(network)
    assert fit_temperatures(calibrated, pictures(), range(2)) == first
    assert network.config.temperatures == tuple(fit.temperature for fit in first)


def test_a_head_without_labelled_patches_stays_as_it_is(predictor, pictures):
    unlabelled = pictures()
    unlabelled.truths[:] = 255
    fits = fit_temperatures(predictor, unlabelled, range(2))
    assert {(fit.temperature, fit.patches) for fit in fits} == {(1.0, 0)}


def test_the_number_of_temperatures_is_checked(predictor, tmp_path):
    network = predictor.network
    network.config = replace(network.config, temperatures=(1.0, 2.0))
    network.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="2 temperatures for 6 blocks and the decoder: give 7"):
        PausingSegmenter.from_pretrained(tmp_path / "model")
