"""The networks of the package: their size, what they give, what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orchestrator.errors import ConfigError
from orchestrator.models.build import check_model, parameter_counts
from orchestrator.models.cnn import Cnn, CnnBn


def test_cnn_has_the_parameters_of_the_guide() -> None:
    assert parameter_counts(Cnn(channels=1, height=28, width=28, num_classes=10)) == (824_458, 824_458)


@pytest.mark.parametrize("network", [Cnn, CnnBn])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (1, 4, 4), (3, 17, 30)])
def test_takes_any_shape(network: type[Cnn] | type[CnnBn], shape: tuple[int, int, int]) -> None:
    channels, height, width = shape
    model = network(channels=channels, height=height, width=width, num_classes=7)
    check_model(model, channels, height, width, 7)
    model.train()
    assert model(torch.rand(5, channels, height, width)).shape == (5, 7)


@pytest.mark.parametrize("network", [Cnn, CnnBn])
def test_refuses_images_under_four_pixels(network: type[Cnn] | type[CnnBn]) -> None:
    with pytest.raises(ConfigError, match=r"at least 4x4 pixels, these are 28x3.*--image-size"):
        network(channels=1, height=28, width=3, num_classes=10)


def test_batch_norm_follows_every_convolution_and_replaces_its_bias() -> None:
    model = CnnBn(channels=3, height=32, width=32, num_classes=10)
    modules = list(model.modules())
    convolutions = [i for i, module in enumerate(modules) if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 5
    for i in convolutions:
        following = modules[i + 1]
        assert isinstance(following, nn.BatchNorm2d)
        assert getattr(modules[i], "bias") is None  # noqa: B009


def test_no_layer_without_a_deterministic_kernel_on_a_gpu() -> None:
    for network in (Cnn, CnnBn):
        model = network(channels=1, height=28, width=28, num_classes=10)
        assert not any("Adaptive" in type(module).__name__ for module in model.modules())
