"""Trackers: services and files that show a run while it trains. One module per tracker."""
