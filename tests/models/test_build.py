"""From `--model` to a network: torchvision's, the user's own, and what is refused before training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError
from orchestrator.models.build import build_model, check_model, has_unused_parameters, parameter_counts


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def build(name: str, shape: tuple[int, int, int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    channels, height, width = shape
    config = TrainConfig(model=name)
    model = build_model(config, channels=channels, height=height, width=width, num_classes=num_classes)
    check_model(model, channels, height, width, num_classes, name)
    return model


@pytest.mark.parametrize("name", ["cnn", "cnn-bn", "torchvision/mobilenet_v3_small"])
def test_same_seed_same_weights(name: str) -> None:
    torch.manual_seed(5)
    first = build(name).state_dict()
    torch.manual_seed(5)
    again = build(name).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in first.items())


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "googlenet", "shufflenet_v2_x0_5"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_torchvision(name: str, shape: tuple[int, int, int]) -> None:
    model = build(f"torchvision/{name}", shape, num_classes=7)
    model.train()
    images = torch.rand(4, *shape)
    loss = nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2, 6]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_torchvision_with_three_channels_is_torchvisions_own() -> None:
    import torchvision.models

    torch.manual_seed(3)
    expected = torchvision.models.resnet18(num_classes=10).state_dict()
    torch.manual_seed(3)
    actual = build("torchvision/resnet18", (3, 32, 32)).state_dict()
    assert list(actual) == list(expected)
    assert all(torch.equal(value, actual[key]) for key, value in expected.items())


def test_one_channel_gives_what_the_network_gives_for_grey_as_rgb() -> None:
    torch.manual_seed(3)
    rgb = build("torchvision/resnet18", (3, 32, 32)).eval()
    torch.manual_seed(3)
    grey = build("torchvision/resnet18", (1, 32, 32)).eval()
    first = grey.get_submodule("conv1")
    assert repr(first) == "Conv2d(1, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)"
    images = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(grey(images), rgb(images.repeat(1, 3, 1, 1)), rtol=1e-4, atol=1e-5)


def test_vision_transformer_is_built_for_the_size_of_the_images() -> None:
    model = build("torchvision/vit_b_32", (3, 64, 64), num_classes=3)
    assert model.get_parameter("encoder.pos_embedding").shape == (1, 5, 768)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("torchvision/resnet19", (1, 28, 28), r"no classification network 'resnet19'.*torchvision/resnet18"),
        ("torchvision/ResNet50", (1, 28, 28), r"torchvision/resnet50"),
        ("torchvision/fcn_resnet50", (1, 28, 28), r"no classification network"),
        ("torchvision/alexnet", (1, 28, 28), r"alexnet on 1x28x28 images.*fails: RuntimeError: .*too small"),
        ("torchvision/vit_b_16", (1, 28, 28), r"multiple of 16 pixels, these are 28x28; give --image-size 32"),
        ("torchvision/vit_b_16", (3, 32, 48), r"square images.*32x48"),
        ("torchvision/maxvit_t", (3, 32, 32), r"maxvit_t cannot be built for images of 32x32.*divisible"),
        ("resnet18", (1, 28, 28), r"no such network \(did you mean torchvision/resnet18\?\)"),
        ("nonsense", (1, 28, 28), r"--model nonsense: there is no such network; give cnn, cnn-bn, torchvision/NAME"),
        ("cnn", (1, 3, 3), r"at least 4x4"),
    ],
)
def test_refused(name: str, shape: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        build(name, shape)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("--model ")


OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, in_channels, image_size):
        super().__init__()
        height, width = image_size
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(in_channels * height * width, num_classes))
    def forward(self, images):
        return self.layers(images)

def only_classes(num_classes):
    return Net(num_classes, 1, (28, 28))

def everything(**options):
    return Net(**options)

def takes_more(num_classes, depth):
    return Net(num_classes, 1, (28, 28))

def ten_classes():
    return Net(10, 1, (28, 28))

def a_string():
    return "network"

class Pair(Net):
    def forward(self, images):
        return self.layers(images), images

class Integers(Net):
    def forward(self, images):
        return self.layers(images).long()

def lazy(num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

NUMBER = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    package = tmp_path / "own_networks"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(OWN)
    (package / "broken.py").write_text("import a_package_that_is_not_there\n")
    (package / "syntax.py").write_text("def (:\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_networks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return "own_networks.nets"


@pytest.mark.parametrize("function", ["Net", "only_classes", "everything", "ten_classes"])
def test_own_function(own_module: str, function: str) -> None:
    assert parameter_counts(build(f"{own_module}:{function}")) == (7850, 7850)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("own_networks.nets:nothing", r"own_networks/nets.py has no 'nothing'"),
        ("own_networks.nets:NUMBER", r"'NUMBER' is int, but a function"),
        ("own_networks.nets:a_string", r"returned str, but a torch.nn.Module is needed"),
        ("own_networks.nets:takes_more", r"the call with \(num_classes=4\) failed: TypeError: .*depth"),
        ("own_networks.nets:Pair", r"returns tuple, but one tensor of logits"),
        ("own_networks.nets:Integers", r"returns torch.int64 of shape \(2, 4\)"),
        ("own_networks.nets:ten_classes", r"shape \(2, 10\) for 2 images, but logits of shape \(2, 4\).*4 classes"),
        ("own_networks.nets:lazy", r"lazy layers"),
        ("own_networks.broken:Net", r"import of own_networks.broken failed: .*a_package_that_is_not_there"),
        ("own_networks.syntax:Net", r"import of own_networks.syntax failed: SyntaxError"),
        ("own_networks.missing:Net", r"no module 'own_networks.missing' in the current directory \(.+\)"),
        ("not_there_at_all.deep:Net", r"no module 'not_there_at_all' in the current directory"),
        (":Net", r"package.module:function"),
        ("own_networks.nets:", r"package.module:function"),
    ],
)
@pytest.mark.usefixtures("own_module")
def test_own_function_refused(reference: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        build(reference, num_classes=4)
    assert refused.value.__cause__ is None or not isinstance(refused.value.__cause__, ConfigError)


def test_check_leaves_the_network_and_the_generator_alone() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(72, 3))
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.random.get_rng_state()
    check_model(model, 1, 8, 8, 3)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), generator)


def test_check_names_the_class_without_a_name() -> None:
    with pytest.raises(ConfigError, match="--model Linear on 1x8x8 images"):
        check_model(nn.Linear(5, 3), 1, 8, 8, 3)


def test_parameter_counts_tells_the_frozen_ones() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    assert parameter_counts(model) == (23, 8)


def test_a_parameter_that_takes_no_part_is_found_and_nothing_is_changed() -> None:
    config = TrainConfig(model="mine:net")
    used = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3))
    spare = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    spare.register_parameter("spare", nn.Parameter(torch.zeros(1)))
    before = {name: value.clone() for name, value in used.state_dict().items()}
    assert not has_unused_parameters(used, config, 1, 4, 4)
    assert has_unused_parameters(spare, config, 1, 4, 4)
    assert all(torch.equal(before[name], value) for name, value in used.state_dict().items())
    assert all(p.grad is None for p in used.parameters())
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    frozen[1].bias.requires_grad_(False)
    assert not has_unused_parameters(frozen, config, 1, 4, 4)
