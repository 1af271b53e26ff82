"""Environments behind HTTP: a server that holds sessions, and the env that a client makes in place of the local one."""
