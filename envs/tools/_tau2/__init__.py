"""The domains, the phone and the scripted user of `tools/tau2-v0`."""
