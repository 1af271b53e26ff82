"""Reports: the records that a viewer shows, and one static page that shows them.

`build` turns trajectories, samples and metrics into records, `from_run` gathers those of a run directory, and
`write_report` turns records into a page. This package knows nothing of policies and training.
"""
