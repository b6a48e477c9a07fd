"""Calibration texts: which rows of which files, drawn so that every machine draws the same.

Read are JSON lines (.jsonl, .json; also .gz), CSV, Parquet (with pyarrow) and plain text (.txt: paragraphs between
blank lines). A row has `text`, or else `article` or `content`, or `messages`: a chat, rendered by the model's template.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import heapq
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from builder.errors import HostError, SourceError, disk_errors
from builder.lock.local_files import TEXT_SUFFIXES, text_files

Render = Callable[[Sequence[Mapping[str, Any]]], str]
"""Makes text of the messages of a chat."""

_COLUMNS = ("text", "article", "content")
_LONGEST_LINE = 16 << 20
_MOST_BYTES = 16 << 30
_TRAIN = re.compile(r"(^|[^a-z])train([^a-z]|$)")
_KNOWN_TO_THE_SCRIPT = ("cnn_dailymail", "scienceqa", "science_qa", "pileval")
_DESCRIPTIONS = ("dataset_infos.json", "dataset_info.json", "state.json")


def read_texts(path: Path, *, samples: int, seed: int, render: Render | None = None) -> list[str]:
    """`samples` texts of a file, or of a folder (of the files of its split `train`, where they name one).

    Row n is drawn if SHA-256(seed, n) is among the smallest: the same on every machine, in one pass, and only the drawn
    texts are kept. They come in the order of the rows. Empty texts don't count.

    SourceError with file and line for rows that can't be read, and CALIBRATION_TOO_SMALL where there are fewer texts.
    """
    drawn: list[tuple[int, int, str]] = []  # a heap with the largest digest first
    count = 0
    for text in _texts(path, render):
        digest = int.from_bytes(hashlib.sha256(f"{seed}:{count}".encode()).digest()[:16], "big")
        entry = (-digest, count, text)
        if len(drawn) < samples:
            heapq.heappush(drawn, entry)
        elif entry > drawn[0]:
            heapq.heapreplace(drawn, entry)
        count += 1
    if count < samples:
        raise SourceError(
            f"there are {count} texts, and calibration.samples asks for {samples}",
            where=path,
            why="fewer texts would measure less than the recipe says, without a word",
            hint=f"set calibration.samples to {count} or less, or add texts" if count else "add texts",
            code="CALIBRATION_TOO_SMALL",
        )
    return [text for _, _, text in sorted(drawn, key=lambda entry: entry[1])]


def write_dataset(texts: Sequence[str], folder: Path) -> None:
    """What `datasets.load_dataset(folder, split="train")["text"]` reads, in this order: train.jsonl.

    The name of the folder must have nothing in it that TensorRT-LLM's quantize.py takes for one of its own data sets.
    """
    if taken := [
        word for word in ("cnn_dailymail", "scienceqa", "science_qa", "pileval") if word in str(folder).lower()
    ]:
        raise ValueError(f"quantize.py would take {folder} for {taken[0]}")
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.jsonl").write_text(lines, encoding="utf-8")


def _data_files(folder: Path) -> list[Path]:
    """The texts of a folder: those of its split `train`, where it has one."""
    files = [path for path in text_files(folder) if path.name not in _DESCRIPTIONS]
    train = [path for path in files if _TRAIN.search(path.relative_to(folder).as_posix().lower())]
    return train or files


def _texts(path: Path, render: Render | None) -> Iterator[str]:
    files = _data_files(path) if path.is_dir() else [path]
    if not files:
        raise SourceError(
            "the folder has no calibration texts",
            where=path,
            why=f"read are {', '.join(TEXT_SUFFIXES)}",
            code="TEXT_EMPTY",
        )
    for file in files:
        try:
            for place, row in _rows(file):
                text = _text(row, f"{file}:{place}" if place else str(file), render)
                if text.strip():
                    yield text
        except (OSError, EOFError) as error:
            raise SourceError("can't read calibration texts", where=file, why=str(error), code="UNREADABLE") from error
        except UnicodeDecodeError as error:
            raise SourceError("the file isn't UTF-8", where=file, why=str(error), code="TEXT_ENCODING") from error


def _rows(file: Path) -> Iterator[tuple[int, Any]]:
    """The rows of a file with their line (0 where it has none)."""
    name = file.name
    if name.endswith(".parquet"):
        yield from _parquet(file)
    elif name.endswith(".csv"):
        with open(file, newline="", encoding="utf-8") as lines:
            reader = csv.DictReader(_bounded(lines, file))
            for row in reader:
                yield reader.line_num, row
    elif name.endswith(".txt"):
        with open(file, encoding="utf-8") as lines:
            yield from _paragraphs(_bounded(lines, file))
    elif name.endswith(TEXT_SUFFIXES):
        with gzip.open(file, "rt", encoding="utf-8") if name.endswith(".gz") else open(file, encoding="utf-8") as lines:
            for number, line in enumerate(_bounded(lines, file), 1):
                if line.strip():
                    yield from _json_line(line, file, number)
    else:
        raise SourceError(
            f"{file.suffix or 'a file without a suffix'} can't be read as calibration texts",
            where=file,
            why=f"read are {', '.join(TEXT_SUFFIXES)}",
            code="TEXT_FORMAT",
        )


def _json_line(line: str, file: Path, number: int) -> Iterator[tuple[int, Any]]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            "this line isn't JSON",
            where=f"{file}:{number}",
            why=str(error),
            hint="write one object per line (JSON lines)",
            code="TEXT_FORMAT",
        ) from error
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):  # a whole file in one array
        yield from ((number, item) for item in value)
    else:
        yield number, value


def _paragraphs(lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    paragraph: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield number, {"text": "".join(paragraph)}
            paragraph = []
    if paragraph:
        yield 0, {"text": "".join(paragraph)}


def _bounded(lines: Any, file: Path) -> Iterator[str]:
    """Lines of bounded length, of bounded size together: a small archive can hold any amount of them."""
    total = 0
    while line := lines.readline(_LONGEST_LINE):
        total += len(line)
        if len(line) == _LONGEST_LINE or total > _MOST_BYTES:
            what = "a line" if len(line) == _LONGEST_LINE else "it"
            raise SourceError(
                "the file is too large for calibration texts", where=file, why=f"{what} has no end", code="TEXT_SIZE"
            )
        yield line


def _parquet(file: Path) -> Iterator[tuple[int, Any]]:
    if find_spec("pyarrow") is None:
        raise HostError(
            "reading Parquet needs pyarrow",
            where=file,
            hint="pip install pyarrow, or name JSON lines",
            code="PYARROW_MISSING",
        )
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        known = [name for name in (*_COLUMNS, "messages") if name in table.schema_arrow.names]
        columns = known[:1] or table.schema_arrow.names
        for batch in table.iter_batches(batch_size=256, columns=columns):
            yield from ((0, row) for row in batch.to_pylist())
    except pyarrow.ArrowException as error:
        raise SourceError("this isn't Parquet", where=file, why=str(error), code="TEXT_FORMAT") from error


def _text(row: Any, where: str, render: Render | None) -> str:
    if isinstance(row, dict):
        for column in _COLUMNS:
            if isinstance(row.get(column), str):
                return str(row[column])
        if isinstance(messages := row.get("messages"), list) and all(isinstance(one, dict) for one in messages):
            if render is None:
                raise SourceError(
                    "this row is a chat, and the model has no chat template",
                    where=where,
                    hint="name a serving.chat_template, or texts",
                    code="CHAT_TEMPLATE",
                )
            return render(messages)
    found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
    raise SourceError(
        "this row has no text",
        where=where,
        why=f"it has {found or 'nothing'}; wanted is one of {', '.join(_COLUMNS)}, or messages",
        code="TEXT_FORMAT",
    )
