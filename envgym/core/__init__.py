"""The records everything else is built on: messages, tasks, rewards, segments, turns, the tree and its rows."""
