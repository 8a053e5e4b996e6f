"""The library itself; users meet its names in the public modules of `jaxtribute`."""
