"""Processes of a run on the nodes of a Ray cluster: Ray places, starts and kills them, and nothing else.

    run (starter.py)  <- lines of JSON ->  driver.py, the one process that speaks with Ray  <->  actor.py, one a process

Ray is not loaded into the run's own process: its handlers of signals, its output and its end stay out of there.
"""
