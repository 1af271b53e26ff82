"""Evaluation of a policy on held-out tasks: the plan, its episodes, their record, and the run directory."""
