"""Names for other libraries: `jaxtribute.integrations.keras` and `jaxtribute.integrations.safetensors`."""
