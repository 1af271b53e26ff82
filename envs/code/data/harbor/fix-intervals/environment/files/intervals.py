"""Merge intervals of whole numbers."""

import sys


def read(lines):
    """Return the intervals of the lines that are not empty."""
    return [tuple(int(word) for word in line.split()) for line in lines if line.strip()]


def merge(intervals):
    """Return the intervals with those joined that overlap or are adjacent."""
    merged = []
    for first, last in intervals:
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged


if __name__ == "__main__":
    for first, last in merge(read(sys.stdin)):
        print(first, last)
