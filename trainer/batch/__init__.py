"""From credits to the rows, value targets and micro-batches that the learner reads."""
