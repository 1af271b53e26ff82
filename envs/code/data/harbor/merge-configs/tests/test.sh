#!/bin/bash
# Root runs this; it writes reward.json. The agent's file is read as the agent's user.
exec /usr/bin/python3 -I /tests/check.py
