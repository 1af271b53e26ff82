#!/bin/bash
set -e
cd /app
sed -i 's/in intervals:$/in sorted(intervals):/' intervals.py
sed -i 's/first <= merged\[-1\]\[1\]:/first <= merged[-1][1] + 1:/' intervals.py
sed -i 's/(merged\[-1\]\[0\], last)/(merged[-1][0], max(last, merged[-1][1]))/' intervals.py
