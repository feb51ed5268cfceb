"""The CUDA device: static shapes, nothing that waits for the device, Triton kernels beside their forms in torch."""
