"""The learner over several processes: each holds a shard of the model and computes a share of the rows."""
