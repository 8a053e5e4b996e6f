"""Pictures of what is where: `strategy.visualize(...)` makes them."""

from jaxtribute._src.addons.visualize.picture import Picture, visualize
from jaxtribute._src.public import publish as _publish

__all__ = [
    "Picture",
    "visualize",
]

_publish(__name__)
