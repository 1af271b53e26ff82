"""Annotators: what gives a finished group's nodes, turns and episodes named values, such as a judge or a scorer."""
