"""Compilers: g++ for the CPU platforms, NVRTC for CUDA, both behind one content-addressed cache."""
