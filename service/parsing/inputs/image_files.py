"""Images as PNG and JPEG files. The size in the header is checked before any pixel is decoded."""

import base64
import binascii
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from core.errors import Invalid, Location

FORMATS = ("PNG", "JPEG")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Modes of images by their number of channels."""
CODE = "image_invalid"


def decode_text(text: str, shape: tuple[int, ...], location: Location) -> NDArray[np.uint8]:
    """The pixels of a file in Base64, with or without the start of a data URL: (channels, height, width)."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        message = "expected channels of rows of pixels, or a PNG or JPEG file in Base64"
        raise Invalid.at(location, CODE, message) from None
    return decode_file(content, shape, location)


def decode_file(content: bytes, shape: tuple[int, ...], location: Location) -> NDArray[np.uint8]:
    """The pixels of a PNG or JPEG file: (channels, height, width). Colours are converted to the number of channels."""
    channels, height, width = shape
    if channels not in MODES:
        raise Invalid.at(location, CODE, f"files have 1, 3 or 4 channels, but this model has {channels}; send pixels")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            if file.size != (width, height):
                found = f"{file.size[0]} x {file.size[1]}"
                message = f"the image has {found} pixels (width x height); the model expects {width} x {height}"
                raise Invalid.at(location, CODE, message)
            pixels: NDArray[Any] = np.asarray(file.convert(MODES[channels]))
    except Invalid:
        raise
    except Exception:  # Pillow raises many types for damaged files
        raise Invalid.at(location, CODE, "expected a PNG or JPEG file") from None
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)
