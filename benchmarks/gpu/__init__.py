"""Parts of bench_gpu and gpu_check."""
