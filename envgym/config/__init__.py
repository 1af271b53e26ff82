"""From names and YAML to objects: settings, their reference, plug-ins and the files that settings name.

It imports no plug-in. `tables` lists the plug-ins of environments; agents and the trainer have tables of their own.
"""
