#!/usr/bin/env bash
# Installs each file of a folder (a wheel, an sdist) into a clean environment and uses it there: an
# image loader is interrupted and resumed in another process, and the command line is called.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/train.py" <<'PYTHON'
import json, sys
from pathlib import Path

import torch
from torchvision.io import write_jpeg

from stateful_gpu_loader import FolderSource, StatefulGPULoader
from stateful_gpu_loader import transforms as T

data, saved = Path("pictures"), Path("state.json")


def make_loader():
    transform = [T.RandomResizedCrop(32), T.RandomHorizontalFlip()]
    return StatefulGPULoader(
        FolderSource(data), batch_size=4, shuffle=True, seed=1, num_workers=2, transform=transform
    )


if __name__ == "__main__":
    if not data.exists():
        for i in range(20):
            folder = data / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            picture = torch.randint(256, (3, 48, 64), dtype=torch.uint8)
            write_jpeg(picture, str(folder / f"{i}.jpg"))
        loader = make_loader()
        batches = iter(loader)
        next(batches)
        saved.write_text(json.dumps(loader.state_dict()))
        torch.save(list(batches), "expected.pt")
        sys.exit()
    loader = make_loader()
    loader.load_state_dict(json.loads(saved.read_text()))
    for batch, expected in zip(loader, torch.load("expected.pt"), strict=True):
        for one, other in zip(batch, expected, strict=True):
            assert torch.equal(one, other)
PYTHON
for file in "$1"/*.whl "$1"/*.tar.gz; do
	file=$(realpath "$file")
	rm -rf "$work/venv" "$work/pictures"
	python -m venv --without-pip "$work/venv"
	uv pip install --quiet --python "$work/venv/bin/python" "$file[cli]"
	(
		cd "$work"
		venv/bin/python train.py
		venv/bin/python train.py
		venv/bin/stateful-gpu-loader --help > /dev/null
		echo "$(basename "$file") works: $(venv/bin/python -c \
			'import stateful_gpu_loader as s; print(s.__version__, s.__file__)')"
	)
done
