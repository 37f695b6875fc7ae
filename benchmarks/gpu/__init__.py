"""The parts of bench_gpu and of gpu_check."""
