"""The tree of shared prefixes as nested bars: tokens to the right, prompts upwards, colour by how often found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.queries.plotting import Axes, Figure, Frame, label, new_figure

if TYPE_CHECKING:
    from matplotlib.cm import ScalarMappable

_UNKNOWN = "0.85"


def plot(frame: Frame) -> Figure:
    """A bar a node: as long as its tokens, as high as the prompts that have it, beside the prefix it goes on from."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable

    engines = sorted(frame.engine_id.unique())
    figure = new_figure("Shared prefixes of prompts", source="block_lookup", rows=max(1, len(engines)))
    scale = ScalarMappable(cmap=colormaps["cividis"])
    scale.set_clim(0, 1)
    for axes, engine in zip(figure.axes, engines, strict=False):
        _draw(axes, frame[frame.engine_id == engine], scale)
        label(
            axes, x="position in the prompt (tokens)", y="prompts" if len(engines) == 1 else f"engine {engine}: prompts"
        )
    if len(frame):
        figure.colorbar(scale, ax=figure.axes, label="share found in the GPU prefix cache")
    return figure


def _draw(axes: Axes, rows: Frame, scale: ScalarMappable) -> None:
    """Draw the nodes, which come depth first; the children of a node fill its height from below."""
    filled: dict[int | None, int] = {None: 0}
    for row in rows.to_dict("records"):
        parent = int(row["parent"]) if row["depth"] else None
        bottom = filled[parent]
        filled[parent] += row["lookups"]
        filled[row["node"]] = bottom
        axes.barh(
            bottom,
            row["tokens"],
            height=row["lookups"],
            left=row["first_token"],
            align="edge",
            color=scale.to_rgba(row["hit_ratio"]) if row["hit_ratio"] >= 0 else _UNKNOWN,
            edgecolor="white",
            linewidth=0.5,
        )
