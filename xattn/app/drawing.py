"""Pictures that are clicked on, whose geometry is known to the pixel, and figures as HTML."""

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw
from torch import Tensor

from xattn._png import as_png, image_tag
from xattn.layout import TokenLayout

Pixels = npt.NDArray[np.uint8]

SIDE = 480
"""Longer side of a picture to click on, at least."""

CELL, LEFT, TOP = 60, 110, 60
"""Pixels of a cell of the table of heads, and of the room for its labels."""

_MARK = (255, 0, 200)
_SCALE = "cividis"


def token_picture(image: Tensor, layout: TokenLayout, token: int | None) -> Pixels:
    """The picture (3, H, W), enlarged, with the grid of its patches and a frame around one token."""
    height, width = shown_size(image)
    pixels = (image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    picture = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture, "RGBA")
    rows, columns = layout.grid or (1, 1)
    ys = [round(row * picture.height / rows) for row in range(rows + 1)]
    xs = [round(column * picture.width / columns) for column in range(columns + 1)]
    for y in ys[1:-1]:
        draw.line((0, y, picture.width, y), fill=(255, 255, 255, 60))
    for x in xs[1:-1]:
        draw.line((x, 0, x, picture.height), fill=(255, 255, 255, 60))
    if token is not None and token >= layout.num_prefix:
        row, column = divmod(token - layout.num_prefix, columns)
        box = (xs[column], ys[row], xs[column + 1], ys[row + 1])
        draw.rectangle((box[0] - 4, box[1] - 4, box[2] + 4, box[3] + 4), outline=(0, 0, 0), width=2)
        draw.rectangle((box[0] - 2, box[1] - 2, box[2] + 2, box[3] + 2), outline=_MARK, width=3)
    return np.asarray(picture)


def shown_size(image: Tensor) -> tuple[int, int]:
    """(height, width) of the `token_picture` of an image."""
    height, width = image.shape[-2:]
    scale = max(1, -(-SIDE // max(height, width)))
    return height * scale, width * scale


def token_clicked(x: int, y: int, shown: tuple[int, int], layout: TokenLayout) -> int:
    """The token at pixel (x, y) of a picture of size (height, width) made by `token_picture`."""
    height, width = shown
    return layout.token_at(min(max(y, 0), height - 1), min(max(x, 0), width - 1), (height, width))


def head_table(lambda2: Tensor, layer: int, head: int | None) -> Pixels:
    """Layers x heads (layers, heads), each cell coloured by its value, one of them (or a whole row) framed."""
    layers, heads = lambda2.shape
    size = (LEFT + heads * CELL + 10, TOP + layers * CELL + 10)
    figure = Figure(figsize=(size[0] / 100, size[1] / 100), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
    axes.set_axis_off()
    box = (LEFT, LEFT + heads * CELL, TOP + layers * CELL, TOP)
    axes.imshow(np.ma.masked_invalid(lambda2.numpy()), _SCALE, vmin=0, vmax=1, extent=box, aspect="auto")
    colours = colormaps[_SCALE]
    for row in range(layers):
        axes.text(LEFT - 12, TOP + (row + 0.5) * CELL, f"layer {row}", ha="right", va="center", fontsize=15)
        for column in range(heads):
            value = float(lambda2[row, column])
            if value == value:  # no NaN: that layer has this head
                colour = "black" if sum(colours(value)[:3]) > 1.5 else "white"
                at = (LEFT + (column + 0.5) * CELL, TOP + (row + 0.5) * CELL)
                axes.text(*at, f"{value:.2f}", ha="center", va="center", fontsize=15, color=colour)
    for column in range(heads):
        axes.text(LEFT + (column + 0.5) * CELL, TOP - 12, str(column), ha="center", va="bottom", fontsize=15)
    axes.text(LEFT - 12, TOP - 12, "head", ha="right", va="bottom", fontsize=15)
    across = (LEFT, heads * CELL) if head is None else (LEFT + head * CELL, CELL)
    corner = (across[0], TOP + (layer % layers) * CELL)
    axes.add_patch(Rectangle(corner, across[1], CELL, fill=False, edgecolor=_as_share(_MARK), linewidth=4))
    return _pixels(canvas)


def head_clicked(x: int, y: int, shape: tuple[int, int]) -> tuple[int, int | None] | None:
    """Layer and head of a pixel of `head_table`; None for the head where a layer's name was hit, None beside it."""
    row, column = (y - TOP) // CELL, (x - LEFT) // CELL
    if not 0 <= row < shape[0] or column >= shape[1]:
        return None
    return row, None if column < 0 else column


def as_html(figure: Figure, alt: str) -> str:
    """A figure as an image of HTML, with its pixels inside."""
    return image_tag(as_png(figure), alt, ' class="figure"')


def _as_share(colour: tuple[int, int, int]) -> tuple[float, float, float]:
    return colour[0] / 255, colour[1] / 255, colour[2] / 255


def _pixels(canvas: FigureCanvasAgg) -> Pixels:
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
