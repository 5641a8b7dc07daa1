"""Makes a picture at most `width` wide: work for a processor, so it runs in a child process."""

from pathlib import Path

from PIL import Image

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
    with Image.open(source) as picture:
        ctx.emit({"type": "progress", "data": {"width": picture.width, "height": picture.height}})
        resized = picture.convert("RGB")
    resized.thumbnail((input["width"], resized.height))  # it keeps the proportions
    target = source.with_suffix(".resized.ppm")  # the format that the TypeScript step reads without a library
    resized.save(target)
    size = {"width": resized.width, "height": resized.height}
    ctx.emit({"kind": "resize.completed", "data": {"file": str(target), **size}})
    return {"ok": True}
