"""Arithmetic on a CPU: quantised products, paged attention and elementwise operations in explicit vector lanes."""
