"""The drawn texts as TensorRT-LLM's quantize.py reads them, in a container without network.

It reads `load_dataset(FOLDER, split="train")["text"][:calib_size]` of a local folder that isn't named like a data set
that it knows (tensorrt_llm/quantization/quantize_by_modelopt.py, `get_calib_dataloader`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from builder.errors import disk_errors

_FILE = "train.jsonl"
_KNOWN_TO_THE_SCRIPT = ("cnn_dailymail", "scienceqa", "science_qa", "pileval")


def write_dataset(texts: Sequence[str], folder: Path) -> None:
    """Exactly these texts, in this order; the same texts give the same bytes.

    ValueError for a folder whose name the script would understand in its own way, or that has something else in it,
    which `datasets` would read too. HostError where the disk refuses.
    """
    if taken := [word for word in _KNOWN_TO_THE_SCRIPT if word in folder.name.lower()]:
        raise ValueError(f"quantize.py would take {folder.name} for {taken[0]}")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if others := sorted(file.name for file in folder.iterdir() if file.name != _FILE):
            raise ValueError(f"{folder} has {others[0]} in it")
        with open(folder / _FILE, "w", encoding="ascii", newline="\n") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
