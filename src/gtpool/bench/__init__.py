"""Benchmarks of gtpool and PyG networks on the same machine, in the same run."""
