#!/bin/bash
set -e
cd /app
most() { sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }'; }
{
  echo "address: $(awk '$5 >= 500 { print $2 }' access.txt | most)"
  echo "day: $(awk '$5 >= 500 { print substr($1, 1, 10) }' access.txt | most)"
  echo "path: $(awk '{ path = $4; sub(/"$/, "", path); n[path]++; sum[path] += $6 } END { for (p in n) print sum[p] / n[p], p }' access.txt | sort -rn | awk 'NR == 1 { print $2 }')"
} > findings.txt
