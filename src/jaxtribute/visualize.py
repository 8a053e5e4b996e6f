"""Pictures of what is where: `strategy.visualize(...)` makes them."""

from jaxtribute._src.public import publish as _publish
from jaxtribute._src.tools.visualize.picture import Picture, visualize

__all__ = [
    "Picture",
    "visualize",
]

_publish(__name__)
