"""The questions, the answers and the stateful APIs of `tools/bfcl-v0`."""
