"""Named models of a run beside its policy: frozen or trained, in this process or served."""
