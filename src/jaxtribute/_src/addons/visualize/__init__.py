"""Pictures of what is where: `strategy.visualize(...)` makes them."""
