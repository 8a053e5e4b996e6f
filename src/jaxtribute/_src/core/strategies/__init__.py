"""One file a strategy: what it places where."""
