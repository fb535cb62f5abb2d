"""Triton kernels over the paged arena, one idea a file.

They run on NVIDIA cards from compute capability 8.0 on, in at most 99 KB of shared memory a block,
and on a CPU under ``TRITON_INTERPRET=1``, where they are checked against float64.
"""
