#!/bin/bash
# Root runs this. Code and files of the agent are run and read as the agent's user.
if /usr/bin/python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
