"""``python -m stateful_gpu_loader`` is the command ``stateful-gpu-loader``."""

from stateful_gpu_loader.cli import main

if __name__ == "__main__":
    main()
