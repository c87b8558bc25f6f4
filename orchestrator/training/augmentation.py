"""Random changes of training images, as batched tensor operations, with numbers that belong to the sample.

What happens to a sample is a pure function of (seed, epoch, sample id): not of the batch it is in, the rank that
computes it, or the samples before it.

basic    shift by up to an eighth of the size (He et al. 2016, section 4.2: pad and crop), mirror
strong   also a rotation by up to 15 degrees and a zoom by up to 10 percent, and erasing a rectangle
         (Zhong et al. 2020, "Random Erasing Data Augmentation") in half of the images
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

from orchestrator.training.order import key

_DRAWS = 8
_SHIFT_Y, _SHIFT_X, _MIRROR, _ANGLE, _ZOOM, _ERASE, _ERASE_Y, _ERASE_X = range(_DRAWS)
_MAX_ANGLE = math.radians(15)
_MAX_ZOOM = 0.1


def sample_draws(seed: int, epoch: int, ids: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in [0, 1) for each sample, float32 of shape (n, 8), from (seed, epoch, id) alone.

    SplitMix64 (Steele, Lea, Flood 2014) in counter mode on a hashed key: one vectorised pass instead of a generator
    per sample.
    """
    state = np.uint64(key(seed, "augment", epoch))
    counter = ids.numpy().astype(np.uint64)[:, None] * np.uint64(_DRAWS) + np.arange(_DRAWS, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z: np.ndarray = state + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    # 24 bits fill the mantissa of a float32 exactly, so no draw rounds up to 1.
    mantissa: np.ndarray = z >> np.uint64(40)
    return torch.from_numpy(mantissa.astype(np.float32) * np.float32(2**-24))


class Augmentation:
    """Moves pixels before normalisation and erases rectangles after it, where 0 is the mean colour."""

    def __init__(self, seed: int, *, strong: bool, mirror: bool) -> None:
        self._seed = seed
        self._strong = strong
        self._mirror = mirror

    def draw(self, ids: torch.Tensor, epoch: int) -> torch.Tensor:
        """The numbers of the samples `ids` in `epoch`, for `move` and `erase`."""
        return sample_draws(self._seed, epoch, ids)

    def move(self, pixels: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Shift, mirror and, if strong, rotate images (n, H, W, C) uint8; what comes in from outside is black."""
        if self._strong:
            pixels = _rotate_and_zoom(pixels, draws)
        return _shift_and_mirror(pixels, draws, self._mirror)

    def erase(self, images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """If strong, set a rectangle of a third of each side to 0 in half of the images (n, H, W, C) float32."""
        if not self._strong:
            return images
        rows = _inside(draws[:, _ERASE_Y], images.shape[1])
        columns = _inside(draws[:, _ERASE_X], images.shape[2])
        erased = rows[:, :, None] & columns[:, None, :] & (draws[:, _ERASE] < 0.5)[:, None, None]
        return images.masked_fill_(erased[..., None], 0.0)


def _shift_and_mirror(pixels: torch.Tensor, draws: torch.Tensor, mirror: bool) -> torch.Tensor:
    n, height, width, _ = pixels.shape
    y, x = max(height // 8, 1), max(width // 8, 1)
    rows = torch.arange(height, device=pixels.device) + (draws[:, _SHIFT_Y, None] * (2 * y + 1)).long()
    columns = torch.arange(width, device=pixels.device)
    if mirror:
        columns = torch.where(draws[:, _MIRROR, None] < 0.5, columns.flip(0), columns)
    columns = columns + (draws[:, _SHIFT_X, None] * (2 * x + 1)).long()
    padded = functional.pad(pixels, (0, 0, x, x, y, y))
    return padded[torch.arange(n, device=pixels.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _rotate_and_zoom(pixels: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    angle = (draws[:, _ANGLE] * 2 - 1) * _MAX_ANGLE
    zoom = 1 + (draws[:, _ZOOM] * 2 - 1) * _MAX_ZOOM
    cos, sin, zero = angle.cos() * zoom, angle.sin() * zoom, torch.zeros_like(angle)
    theta = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    images = pixels.permute(0, 3, 1, 2).to(torch.float32)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def _inside(draw: torch.Tensor, size: int) -> torch.Tensor:
    length = max(size // 3, 1)
    start = (draw * (size - length + 1)).long()
    position = torch.arange(size, device=draw.device) - start[:, None]
    return (position >= 0) & (position < length)
