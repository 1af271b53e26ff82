"""Doors to other projects: their environments and tools in, ours out, over protocols and plain Python.

A door needs the environment contract alone: no policy, no trainer. Environments are named by id and made by the
registry. Packages of other projects are imported where they are first used.
"""
