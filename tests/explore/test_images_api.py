"""Uploaded images: which files are accepted, how they are turned upright, and how many are kept."""

import io
import socket
import struct
import time
import urllib.request
import zlib
from contextlib import ExitStack
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from serving import Uvicorn

from clearhead.explore import images
from clearhead.explore.app import make_app
from clearhead.explore.guard import BODY, UPLOADS
from clearhead.explore.images import ImageStore

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 9, 3), np.uint8)


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PNG = encoded(Image.fromarray(PIXELS))


def send(client, file, kind="image/png"):
    return client.post("/api/images", content=file, headers={"content-type": kind})


def shown(client, file, kind="image/png"):
    """The image as the page gets it back."""
    answer = send(client, file, kind)
    assert answer.status_code == 200, answer.text
    view = client.get("/api/images/one", params={"id": answer.json()["id"]})
    assert view.status_code == 200
    image = Image.open(io.BytesIO(view.content))
    assert view.headers["content-type"] == f"image/{image.format.lower()}"
    return np.asarray(image.convert("RGB"))


def test_a_small_image_comes_back_as_it_was(client):
    answer = send(client, PNG).json()
    assert (answer["width"], answer["height"], set(answer)) == (9, 6, {"id", "width", "height"})
    assert (shown(client, PNG) == PIXELS).all()


def test_an_image_is_turned_as_its_camera_says(client):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise
    file = encoded(Image.fromarray(PIXELS), "PNG", exif=exif)
    answer = send(client, file).json()
    assert (answer["width"], answer["height"]) == (6, 9)
    assert (shown(client, file) == np.rot90(PIXELS, -1)).all()


GREY = (np.arange(54, dtype=np.uint16).reshape(6, 9) * 1236).astype(np.uint16)
SEMI = np.concatenate([PIXELS, np.full((6, 9, 1), 51, np.uint8)], axis=2)
FRAMES = [Image.new("RGB", (9, 6), colour) for colour in ("red", "blue")]
UNUSUAL = {
    "palette": (encoded(Image.fromarray(PIXELS).quantize(4)),
                np.asarray(Image.fromarray(PIXELS).quantize(4).convert("RGB"))),
    "CMYK": (encoded(Image.new("CMYK", (9, 6), (0, 255, 255, 0)), "TIFF"), np.full((6, 9, 3), (255, 0, 0))),
    "16 bits": (encoded(Image.fromarray(GREY)), np.repeat((GREY // 257)[..., None], 3, axis=2)),
    "transparent": (encoded(Image.fromarray(SEMI)), np.round(255 - (255 - PIXELS.astype(float)) * 0.2)),
    "grey": (encoded(Image.fromarray(PIXELS[..., 0])), np.repeat(PIXELS[..., :1], 3, axis=2)),
    "one bit": (encoded(Image.new("1", (9, 6), 1)), np.full((6, 9, 3), 255)),
    "animated": (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), np.full((6, 9, 3), (255, 0, 0))),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_images_of_any_mode_become_rgb(client, name):
    file, want = UNUSUAL[name]
    assert np.abs(shown(client, file).astype(float) - want).max() <= 1


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PPM", "TIFF", "WEBP"])
def test_the_usual_formats_are_accepted(client, kind):
    assert shown(client, encoded(Image.fromarray(PIXELS), kind), "image/*").shape == (6, 9, 3)


def test_a_large_image_is_shown_smaller_and_kept_whole(client):
    file = encoded(Image.new("RGB", (3000, 100), "green"))
    answer = send(client, file).json()
    assert (answer["width"], answer["height"]) == (3000, 100)
    view = client.get("/api/images/one", params={"id": answer["id"]})
    assert Image.open(io.BytesIO(view.content)).size == (2048, 68)
    assert images.stored(encoded(Image.new("RGB", (600, 600)))).media_type == "image/webp"


def bomb(width, height):
    """A PNG file whose header promises so many pixels, and which has few bytes."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


WRONG = {
    "no bytes": (b"", "the file is empty"),
    "a text": (b"this is no image at all", "no image that can be read: expected one of BMP"),
    "a truncated file": (encoded(Image.fromarray(RNG.integers(0, 256, (90, 90, 3), np.uint8)))[:9000], "truncated"),
    "half a header": (PNG[:20], "image"),
    "a bomb": (bomb(60_000, 60_000), "too many pixels: expected at most 40,000,000"),
    "a smaller bomb": (bomb(10_000, 10_000), "pixels: expected at most 40,000,000"),
    "just too large": (bomb(8000, 5001), "8000 x 5001 pixels: expected at most 40,000,000"),
    "a web page": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "no image"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "no image"),
    "a zip file": (b"PK\x03\x04" + b"\0" * 60, "no image"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_image_is_a_sentence(client, name):
    file, sentence = WRONG[name]
    answer = send(client, file)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


def test_only_images_are_accepted_and_only_there_may_be_large(client):
    for kind in ("text/plain", "application/json", "", "multipart/form-data; boundary=x"):
        answer = send(client, PNG, kind)
        assert (answer.status_code, "expected an image file" in answer.json()["error"]) == (400, True)
        assert "content-type" not in answer.json()["error"]
    large = b"\0" * (BODY + 1)
    assert send(client, large).status_code == 400  # it is read, and is no image
    for path in ("/api/build", "/api/images/one", "/api/images/"):
        assert client.post(path, content=large, headers={"content-type": "image/png"}).status_code == 413
    answer = send(client, b"\0" * (UPLOADS["/api/images"] + 1))
    assert answer.status_code == 413
    assert "8,388,608" in answer.json()["error"]


def test_a_file_of_unknown_length_is_counted_while_it_arrives(client):
    def parts():
        for _ in range(9):
            yield b"\0" * (1 << 20)

    answer = client.post("/api/images", content=parts(), headers={"content-type": "image/png"})
    assert answer.status_code == 413


def test_an_unknown_image_is_a_sentence(client):
    answer = client.get("/api/images/one", params={"id": "gone"})
    assert (answer.status_code, "no longer kept" in answer.json()["error"]) == (404, True)
    assert client.get("/api/images/one", params={"id": "../x"}).status_code == 422
    assert client.get("/api/images/one").status_code == 422


def test_the_oldest_images_are_dropped():
    store = ImageStore(most=3)
    first, *others = [store.keep(PNG)["id"] for _ in range(3)]
    assert store[first].width == 9  # used again
    store.keep(PNG)
    assert len(store) == 3
    assert store[first].file == PNG
    with pytest.raises(LookupError, match="choose an image"):
        store[others[0]]
    small = ImageStore(memory=2 * store[first].size)
    for _ in range(5):
        small.keep(PNG)
    assert len(small) == 2


def test_slow_uploads_hold_up_nobody_else(tiny):
    app = make_app([tiny], device="cpu", active=1, waiting=1)
    with Uvicorn(app) as address, ExitStack() as stack:
        place = urlsplit(address)
        for _ in range(4):  # more than the queue has places
            one = stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=10))
            head = f"POST /api/images HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: IMAGE/PNG\r\n"
            one.sendall(f"{head}Content-Length: 1000\r\n\r\nx".encode())
        time.sleep(0.3)
        with urllib.request.urlopen(f"{address}/api/memory", timeout=20) as answer:
            assert answer.status == 200
