#!/bin/bash
# Root runs this, in a new container that has the agent's files in /srv/share.
if /usr/bin/python3 -I /tests/check.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
