"""Commands that look at, plan and measure programs."""
