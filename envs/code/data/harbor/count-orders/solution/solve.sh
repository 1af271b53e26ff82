#!/bin/bash
set -e
cd /app
awk -F';' '$4 == "paid" { n[$3]++; sum[$3] += $5 } END { for (c in n) print c, n[c], sum[c] }' orders.txt | sort -k3,3nr > totals.txt
