"""The rows of one file, one after the other; never more of it in memory than a few of them."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from builder.checkpoint.calibration.json_array import elements
from builder.checkpoint.calibration.stream import LONGEST_LINE, MOST_UNPACKED_BYTES, Stream, too_large
from builder.checkpoint.calibration.text import CHAT, COLUMNS
from builder.errors import HostError, SourceError
from builder.lock.local_files import TEXT_NAMES, TEXT_SUFFIXES
from builder.model.files import opened

Row = tuple[int, object]
"""The line where it begins (its last one in CSV, its number in Parquet), and what it is; see `text_of`."""

_PARQUET_ROWS = 64
_PARQUET_BUFFER_BYTES = 1 << 20


def rows_of(file: Path) -> Iterator[Row]:
    """SourceError TEXT_FORMAT, TEXT_ENCODING, TEXT_SIZE, LFS_POINTER or UNREADABLE; HostError PYARROW_MISSING."""
    if not file.name.endswith(TEXT_SUFFIXES):
        raise SourceError(
            f"{file.suffix or 'a file without a suffix'} can't be read as calibration texts",
            where=file,
            why=TEXT_NAMES,
            code="TEXT_FORMAT",
        )
    with opened(file) as content:
        if file.name.endswith(".parquet"):
            yield from _parquet(content, file)
        elif file.name.endswith(".csv"):
            yield from _csv(Stream(content, file))
        elif file.name.endswith(".txt"):
            yield from _paragraphs(Stream(content, file))
        elif file.name.endswith(".gz"):
            with gzip.GzipFile(fileobj=content) as unpacked:
                yield from _json(Stream(unpacked, file, MOST_UNPACKED_BYTES))
        else:
            yield from _json(Stream(content, file))


def _json(stream: Stream) -> Iterator[Row]:
    """JSON lines, or one array of objects, whichever the first character says."""
    if stream.begins_with("["):
        yield from elements(stream)
        return
    for number, line in stream.lines():
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SourceError(
                    "this line isn't JSON",
                    where=f"{stream.file}:{number}",
                    why=str(error),
                    hint="write one object per line (JSON lines), or one array of objects",
                    code="TEXT_FORMAT",
                ) from error
            yield number, row


def _csv(stream: Stream) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # there is only this one, of the whole process
    reader = csv.DictReader((line for _, line in stream.lines()), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise csv.Error(
                    f"this row has another number of fields than the header's {len(reader.fieldnames or ())}"
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise SourceError(
            "this isn't CSV",
            where=f"{stream.file}:{reader.reader.line_num}",
            why=str(error),
            hint='the first line names the columns; a text with commas, quotes or line breaks stands in "…"',
            code="TEXT_FORMAT",
        ) from error


def _paragraphs(stream: Stream) -> Iterator[Row]:
    begin, paragraph, size = 0, list[str](), 0
    for number, line in stream.lines():
        if line.strip():
            begin = begin or number
            paragraph.append(line.replace("\r\n", "\n"))
            size += len(line)
            if size > LONGEST_LINE:
                raise too_large(stream.file, begin, f"a paragraph has more than {LONGEST_LINE} characters")
        elif paragraph:
            yield begin, {"text": "".join(paragraph)}
            begin, paragraph, size = 0, [], 0
    if paragraph:
        yield begin, {"text": "".join(paragraph)}


def _parquet(content: IO[bytes], file: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:  # a newer one asks for NumPy 2
        raise HostError(
            "reading Parquet needs pyarrow",
            where=file,
            why=str(error),
            hint="pip install 'engine-builder[modelopt]', or name JSON lines",
            code="PYARROW_MISSING",
        ) from error
    try:
        table = pyarrow.parquet.ParquetFile(content, buffer_size=_PARQUET_BUFFER_BYTES)
        names = table.schema_arrow.names
        known = next((name for name in (*COLUMNS, CHAT) if name in names), None)
        if known is None:  # nothing is read of columns that nobody asks for
            yield 1, dict.fromkeys(names)
            return
        number, size = 0, 0
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS, columns=[known]):
            size += batch.nbytes
            if size > MOST_UNPACKED_BYTES:
                raise too_large(file, number, f"it holds more than {MOST_UNPACKED_BYTES} bytes")
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SourceError("this isn't Parquet", where=file, why=str(error), code="TEXT_FORMAT") from error
