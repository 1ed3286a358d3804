"""Figures as PNG, and PNG as an image of HTML that holds its own pixels."""

import base64
import html
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def as_png(figure: "Figure", dpi: int = 110) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def image_tag(png: bytes, alt: str, attributes: str = "") -> str:
    """An image of HTML; `attributes` are further ones, as HTML."""
    code = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(alt, quote=True)}"{attributes} src="data:image/png;base64,{code}">'
