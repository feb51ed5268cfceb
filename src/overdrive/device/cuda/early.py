"""Whether kernels are set up while those before them still run (programmatic dependent launch, Hopper and later)."""

EARLY = False
"""Alone, the decoder's small kernels gain by it: 6.0 us become 4.0 us for the three of a layer at one row. Between the
products of a whole step that gain was not seen, so it is off until it is; `benchmarks/gpu.py --early` turns it on."""
