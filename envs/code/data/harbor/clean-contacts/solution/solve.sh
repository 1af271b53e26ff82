#!/bin/bash
set -e
cd /app
python3 - <<'CODE'
import csv
import re

rows = {}
for row in csv.DictReader(open("contacts.csv")):
    row = {key: value.strip() for key, value in row.items()}
    email = row["email"].lower()
    if "@" not in email or email in rows:
        continue
    numbers = re.split(r"[./-]", row["joined"])
    joined = "-".join(numbers if len(numbers[0]) == 4 else numbers[::-1])
    rows[email] = [row["name"].title(), email, re.sub(r"\D", "", row["phone"]), joined]
with open("clean.csv", "w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["name", "email", "phone", "joined"])
    writer.writerows(rows[email] for email in sorted(rows))
CODE
