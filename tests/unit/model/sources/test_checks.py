from __future__ import annotations

import pytest

from builder.model.sources.checks import Progress


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([4, 6], [4, 6]),
        ([10, 10], [10]),  # downloaded, then hashed
        ([4, -4, 10], [4, 6]),  # a download that started anew
        ([7, 7], [7, 3]),
        ([0], []),
    ],
)
def test_progress_tells_the_total_once_however_often_bytes_pass(counts, told):
    reported: list[int] = []
    progress = Progress(reported.append, 10)
    for count in counts:
        progress(count)
    assert reported == told
