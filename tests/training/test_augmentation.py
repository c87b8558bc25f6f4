"""Augmentation belongs to the sample: not to its batch, its rank or what came before."""

from __future__ import annotations

import pytest
import torch

from orchestrator.training.augmentation import Augmentation, sample_draws


def pictures(count: int, size: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(1, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)


def test_draws_are_uniform_and_differ_between_samples_and_epochs() -> None:
    draws = sample_draws(0, 1, torch.arange(20_000))
    assert draws.shape == (20_000, 8)
    assert 0 <= float(draws.min()) < 0.001
    assert 0.999 < float(draws.max()) < 1
    assert torch.allclose(draws.double().mean(0), torch.full((8,), 0.5, dtype=torch.float64), atol=0.01)
    correlation = torch.corrcoef(draws.double().T) - torch.eye(8, dtype=torch.float64)
    assert float(correlation.abs().max()) < 0.03
    assert len(torch.unique(draws[:, 0])) > 19_900
    assert not torch.equal(draws, sample_draws(0, 2, torch.arange(20_000)))
    assert not torch.equal(draws, sample_draws(1, 1, torch.arange(20_000)))


@pytest.mark.parametrize("strong", [False, True])
def test_a_sample_looks_the_same_in_any_batch(strong: bool) -> None:
    augmentation = Augmentation(7, strong=strong, mirror=True)
    images, ids = pictures(6), torch.tensor([4, 90, 13, 2, 55, 31])

    def apply(chosen: list[int]) -> torch.Tensor:
        draws = augmentation.draw(ids[chosen], epoch=3)
        return augmentation.erase(augmentation.move(images[chosen], draws).float(), draws)

    together = apply([0, 1, 2, 3, 4, 5])
    assert torch.equal(together[[5, 1]], apply([5, 1]))
    assert torch.equal(together[[2]], apply([2]))


def test_eight_equal_samples_are_changed_in_eight_ways_and_otherwise_in_the_next_epoch() -> None:
    augmentation = Augmentation(0, strong=True, mirror=True)
    same = pictures(1).expand(8, -1, -1, -1).contiguous()
    first = augmentation.move(same, augmentation.draw(torch.arange(8), epoch=1))
    second = augmentation.move(same, augmentation.draw(torch.arange(8), epoch=2))
    distinct = {image.numpy().tobytes() for image in torch.cat([first, second])}
    assert len(distinct) == 16


def test_basic_shifts_whole_pixels_and_fills_with_black() -> None:
    augmentation = Augmentation(1, strong=False, mirror=False)
    image = torch.zeros(200, 16, 16, 1, dtype=torch.uint8)
    image[:, 8, 8] = 200
    moved = augmentation.move(image, augmentation.draw(torch.arange(200), epoch=1))
    assert moved.dtype == torch.uint8
    assert (moved == 200).flatten(1).sum(1).tolist() == [1] * 200
    places = {tuple(p) for p in (moved[..., 0] == 200).nonzero()[:, 1:].tolist()}
    assert places == {(y, x) for y in range(6, 11) for x in range(6, 11)}


def test_mirroring_is_left_out_where_it_would_change_the_class() -> None:
    ramp = torch.arange(16, dtype=torch.uint8).mul(10).add(50).view(1, 1, 16, 1).expand(64, 16, 16, 1).contiguous()

    def descending(mirror: bool) -> int:
        augmentation = Augmentation(0, strong=False, mirror=mirror)
        moved = augmentation.move(ramp, augmentation.draw(torch.arange(64), epoch=1))
        middle = moved[:, 8, 4:12, 0].int()
        return int((middle.diff(dim=1) < 0).all(1).sum())

    assert descending(mirror=False) == 0
    assert 16 <= descending(mirror=True) <= 48


def test_erasing_sets_one_rectangle_in_half_of_the_images() -> None:
    augmentation = Augmentation(0, strong=True, mirror=False)
    erased = augmentation.erase(torch.ones(1000, 9, 9, 1), augmentation.draw(torch.arange(1000), epoch=1))
    zeros = (erased == 0).flatten(1).sum(1)
    assert set(zeros.tolist()) == {0, 9}
    assert 440 <= int((zeros == 9).sum()) <= 560
