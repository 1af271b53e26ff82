"""Methods: one plug-in point per folder, one method per file; `protocols` says what each point is given and returns."""
