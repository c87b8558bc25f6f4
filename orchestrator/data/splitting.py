"""A validation split made once from the seed."""

from __future__ import annotations

import hashlib

import numpy as np


def validation_count(samples: int, fraction: float) -> int:
    """Samples that are set aside: at least one, and at least one is left."""
    return min(max(round(samples * fraction), 1), samples - 1)


def split_mask(samples: int, seed: int, fraction: float) -> np.ndarray:
    """Which samples are set aside for validation: bool of shape (samples,), a function of its arguments alone."""
    digest = hashlib.blake2b(repr((seed, "validation split")).encode(), digest_size=8).digest()
    order = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little"))).permutation(samples)
    mask = np.zeros(samples, dtype=bool)
    mask[order[: validation_count(samples, fraction)]] = True
    return mask
