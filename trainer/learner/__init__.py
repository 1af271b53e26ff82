"""The learner: forward passes, log-probs, objective, critic, optimizer, and the checkpoints of all of them."""
