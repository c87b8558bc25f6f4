"""The two networks of the package: `Cnn`, small and plain, and `CnnBn`, which reaches a better accuracy."""

from __future__ import annotations

from torch import Tensor, nn

from orchestrator.errors import ConfigError

MIN_SIZE = 4
"""Smallest height and width in pixels: both networks halve the image twice."""


def _check_size(name: str, height: int, width: int) -> None:
    if min(height, width) < MIN_SIZE:
        raise ConfigError(
            f"--model {name} needs images of at least {MIN_SIZE}x{MIN_SIZE} pixels, these are {height}x{width}; "
            f"give --image-size {MIN_SIZE} or more"
        )


class Cnn(nn.Module):
    """Two convolutions and two linear layers; 824,458 parameters for 28x28 grey images of 10 classes.

    Takes images of shape (N, channels, height, width), gives logits of shape (N, num_classes). Raises `ConfigError`
    for images under 4 pixels.
    """

    def __init__(self, *, channels: int, height: int, width: int, num_classes: int) -> None:
        _check_size("cnn", height, width)
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 256),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(256, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


class CnnBn(nn.Module):
    """Five convolutions with batch norm, a global mean and one linear layer; takes and gives what `Cnn` does.

    The number of parameters does not depend on the size of the images.
    """

    def __init__(self, *, channels: int, height: int, width: int, num_classes: int) -> None:
        _check_size("cnn-bn", height, width)
        super().__init__()
        self.features = nn.Sequential(
            _conv_block(channels, 32),
            _conv_block(32, 32),
            nn.MaxPool2d(2),
            _conv_block(32, 64),
            _conv_block(64, 64),
            nn.MaxPool2d(2),
            _conv_block(64, 128),
        )
        self.classifier = nn.Linear(128, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        # Not AdaptiveAvgPool2d: PyTorch lists its CUDA backward among those without a deterministic kernel.
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def _conv_block(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )
