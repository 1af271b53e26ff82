"""What starts, finds, asks, watches and ends: processes, HTTP, membership of servers, Ray, event loops, progress, logs.

It must not know environments, agents or training.
"""
