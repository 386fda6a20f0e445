"""Sizes by their names."""

from __future__ import annotations

from mpidec.bench import report


def test_sizes_have_names():
    assert [report.size_of(text) for text in ("8", "64K", "1m", "16MB", "1G")] == [
        8,
        1 << 16,
        1 << 20,
        1 << 24,
        1 << 30,
    ]
    assert [report.size_name(size) for size in (8, 1000, 1536, 1 << 16, 1 << 30)] == [
        "8 B",
        "1000 B",
        "1536 B",
        "64 KB",
        "1 GB",
    ]
