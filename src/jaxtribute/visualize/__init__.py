"""Pictures of what is where: `strategy.visualize(...)` makes them."""

from jaxtribute.visualize.picture import Picture as Picture
from jaxtribute.visualize.picture import visualize as visualize

__all__ = ["Picture", "visualize"]
