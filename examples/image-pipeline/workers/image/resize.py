"""Halves a picture until it is at most `width` wide: work for a processor, so it runs in a child process."""

from pathlib import Path

queue = "image-resize"
config = {
    "flow": {
        "id": "image-pipeline",
        "role": "main",
        "step": "resize",
        "emits": ["resize.requested", "resize.progress", "resize.completed"],
    },
    "runner": "process",
}


def handle(input, ctx):
    source = Path(input["file"])
    ctx.emit({"kind": "resize.requested", "data": {"file": str(source)}})
    width, height, pixels = read_ppm(source.read_bytes())
    while width > input["width"]:
        width, height, pixels = halve(width, height, pixels)
        ctx.emit({"type": "progress", "data": {"width": width}})
    target = source.with_suffix(".resized.ppm")
    target.write_bytes(b"P6\n%d %d\n255\n" % (width, height) + pixels)
    ctx.emit({"kind": "resize.completed", "data": {"file": str(target), "width": width, "height": height}})
    return {"ok": True}


def read_ppm(data):
    """Read a picture in the format PPM: width, height, and three bytes for each pixel."""
    magic, size, most, pixels = data.split(b"\n", 3)
    if magic != b"P6" or most != b"255":
        raise ValueError(f"not a binary PPM picture with 255 levels: {data[:20]!r}")
    width, height = map(int, size.split())
    return width, height, pixels


def halve(width, height, pixels):
    """Take every second pixel of every second row."""
    rows = (pixels[3 * width * y : 3 * width * (y + 1)] for y in range(0, height - height % 2, 2))
    kept = b"".join(row[x : x + 3] for row in rows for x in range(0, 3 * (width - width % 2), 6))
    return width // 2, height // 2, kept
