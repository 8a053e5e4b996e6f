"""Names for other libraries: `jaxtribute.integrations.safetensors`."""
