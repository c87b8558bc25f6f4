"""One picture, stored in many ways, comes out as the same pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from orchestrator.data.decode import BadPictureError, Look, Shape, decode, look_at
from orchestrator.data.source import Missing, Picture
from tests.data.pictures import encoded, grey, red_and_blue

COLOUR, GREY = Shape(4, 6, 3), Shape(4, 6, 1)


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def with_alpha(image: Image.Image) -> Image.Image:
    copy = image.copy()
    copy.putalpha(255)
    return copy


@pytest.mark.parametrize(
    "image",
    [
        red_and_blue(),
        red_and_blue().convert("P", palette=Image.Palette.ADAPTIVE, colors=2),
        with_alpha(red_and_blue()),
    ],
    ids=["rgb", "palette", "alpha"],
)
def test_lossless_forms_are_exact(tmp_path: Path, image: Image.Image) -> None:
    pixels = decode(saved(tmp_path / "a.png", image), COLOUR)
    assert (pixels[:, :3] == (255, 0, 0)).all()
    assert (pixels[:, 3:] == (0, 0, 255)).all()


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_jpeg_is_close(tmp_path: Path, mode: str) -> None:
    file = saved(tmp_path / "a.jpg", red_and_blue().convert(mode), quality=100, subsampling=0)
    assert np.abs(decode(file, COLOUR).astype(int) - np.asarray(red_and_blue()).astype(int)).max() <= 12


def test_orientation_is_applied_to_size_and_pixels(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    turned = red_and_blue().rotate(-90, expand=True)
    file = saved(tmp_path / "a.jpg", turned, quality=100, subsampling=0, exif=exif.tobytes())
    assert look_at(file) == Look(width=6, height=4, grey=False)
    assert np.abs(decode(file, COLOUR).astype(int) - np.asarray(red_and_blue()).astype(int)).max() <= 12


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
def test_every_orientation_in_every_format_is_as_pillow_has_it(tmp_path: Path, orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "a.img"
    red_and_blue().save(file, kind, exif=exif)
    with Image.open(file) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    look = look_at(file)
    assert (look.height, look.width) == expected.shape[:2]
    assert np.array_equal(decode(file, Shape(look.height, look.width, 3)), expected)


def test_looking_at_a_png_does_not_decode_it() -> None:
    content = encoded(Image.effect_noise((64, 64), 90))
    assert look_at(content[: len(content) // 2]) == Look(width=64, height=64, grey=True)


def test_colour_in_a_grey_dataset_is_luma_and_grey_in_a_colour_one_is_threefold(tmp_path: Path) -> None:
    pixels = decode(encoded(red_and_blue()), GREY)
    assert (pixels[:, 0, 0].tolist(), pixels[:, 5, 0].tolist()) == ([76] * 4, [29] * 4)
    assert (decode(encoded(grey(90, (6, 4))), COLOUR) == 90).all()


def test_sixteen_bits_lose_their_lower_byte() -> None:
    image = Image.fromarray(np.full((4, 6), 0x1234, np.uint16))
    assert look_at(encoded(image)).grey
    assert (decode(encoded(image), GREY) == 0x12).all()


def test_one_bit_and_gif(tmp_path: Path) -> None:
    assert (decode(encoded(Image.new("1", (6, 4), 1)), GREY) == 255).all()
    assert decode(saved(tmp_path / "a.gif", red_and_blue()), COLOUR)[0, 0].tolist() == [255, 0, 0]


def test_what_is_transparent_shows_white() -> None:
    image = red_and_blue()
    image.putalpha(0)
    assert (decode(encoded(image), COLOUR) == 255).all()
    assert (decode(encoded(Image.new("LA", (6, 4), (10, 0))), GREY) == 255).all()


def test_another_size_is_scaled_by_its_shorter_side_and_cut_in_the_middle() -> None:
    wide = Image.new("L", (40, 10), 0)
    wide.paste(200, (15, 0, 25, 10))
    assert (decode(encoded(wide), Shape(10, 10, 1)) == 200).all()
    assert decode(np.full((4, 4), 7, np.uint8), Shape(8, 8, 1)).tolist() == np.full((8, 8, 1), 7).tolist()


def test_pixels_of_the_right_shape_are_passed_on() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    assert np.array_equal(decode(pixels, GREY)[..., 0], pixels)
    assert look_at(pixels) == Look(width=6, height=4, grey=True)


@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        (Missing("there is no image"), "there is no image"),
        (b"", "empty"),
        (b"<html>404</html>", "not an image"),
        (encoded(red_and_blue().resize((60, 40)))[:90], "truncated|not an image|broken"),
        (encoded(Image.fromarray(np.zeros((4, 6), np.float32)), "TIFF"), "floating-point"),
    ],
    ids=["missing", "empty", "html", "cut", "float"],
)
def test_what_cannot_be_read_has_a_reason(picture: Picture, reason: str) -> None:
    with pytest.raises(BadPictureError, match=reason):
        decode(picture, COLOUR)
