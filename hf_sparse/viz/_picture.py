"""A matplotlib figure that notebooks show, whether or not pyplot runs there. Importing this needs matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure with a picture of itself as PNG, which is what notebooks ask an object for."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=100, bbox_inches="tight")
        return content.getvalue()
