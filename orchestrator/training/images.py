"""From ids to normalised image batches on the device.

Every worker of a node maps the same file, so the images are in memory once per node, in the page cache. A batch is
one gather of rows on the host, one copy to the device, and everything else happens there.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch

from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import DatasetInfo, open_split
from orchestrator.training.augmentation import Augmentation


class ImageBatches:
    """The samples of one split as batches on `device`."""

    def __init__(self, path: str, info: DatasetInfo, device: torch.device, *, channels_last: bool) -> None:
        split = open_split(path)
        self._images = _as_tensor(split.images)
        self._labels = torch.from_numpy(np.array(split.labels, dtype=np.int64))
        self._device = device
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        # The pixels are 0..255, so mean and deviation are brought to the same range once.
        self._mean = torch.tensor(info.mean, device=device) * 255
        self._std = torch.tensor(info.std, device=device) * 255

    def __len__(self) -> int:
        return len(self._labels)

    def fetch(
        self, ids: torch.Tensor, augmentation: Augmentation | None = None, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (n, C, H, W) float32, normalised per channel, and targets (n,) int64 for `ids` (n,) int64."""
        pixels = self._to_device(self._images.index_select(0, ids))
        targets = self._to_device(self._labels.index_select(0, ids))
        if augmentation is None:
            images = self._normalise(pixels)
        else:
            draws = self._to_device(augmentation.draw(ids, epoch))
            images = augmentation.erase(self._normalise(augmentation.move(pixels, draws)), draws)
        return self._channels_first(images), targets

    def _normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.to(torch.float32).sub_(self._mean).div_(self._std)

    def _channels_first(self, images: torch.Tensor) -> torch.Tensor:
        n, height, width, channels = images.shape
        if channels == 1 and self._format is torch.contiguous_format:
            # With one channel both formats look contiguous to `permute`; the strides decide which kernels are taken.
            return images.view(n, 1, height, width)
        return images.permute(0, 3, 1, 2).contiguous(memory_format=self._format)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)


def _as_tensor(images: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        # The file is mapped read-only and torch has no read-only tensors; nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(images)


def build_augmentation(config: TrainConfig, info: DatasetInfo) -> Augmentation | None:
    if config.augment == "none":
        return None
    return Augmentation(config.seed, strong=config.augment == "strong", mirror=info.mirror_keeps_class)
