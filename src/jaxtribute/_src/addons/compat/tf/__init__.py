"""Parts of `jaxtribute.compat.tf`."""
