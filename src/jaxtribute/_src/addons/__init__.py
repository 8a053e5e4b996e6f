"""Add-ons: each folder may be missing. They import the core by public names and `jaxtribute.extending`."""
