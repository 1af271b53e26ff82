"""Methods of self-training: what each of its rounds searches, fits and learns."""
