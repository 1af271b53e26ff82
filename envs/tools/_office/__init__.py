"""The office of `tools/office-v0`: its records, its apps, its people and its tasks."""
