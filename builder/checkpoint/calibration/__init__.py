"""Calibration texts: which rows of which files, drawn so that every machine draws the same.

    rows      the rows of a file: JSON lines and arrays (.jsonl, .json; also .gz), CSV, Parquet (with pyarrow), and
              plain text (.txt: paragraphs between blank lines)
    text      the text of a row: its `text`, or else `article` or `content`, or `messages`: a chat, rendered by the
              model's template
    draw      which of them, and of which files
    dataset   the drawn ones as TensorRT-LLM's quantize.py reads them

Files are other people's: what can't be read is a SourceError with the file and, where it has lines, the line.
"""

from builder.checkpoint.calibration.dataset import write_dataset
from builder.checkpoint.calibration.draw import read_texts
from builder.checkpoint.calibration.text import Render

__all__ = ["Render", "read_texts", "write_dataset"]
