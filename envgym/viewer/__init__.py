"""The web app of `envgym view`: an index of recorded episodes, JSON routes over it, and static pages that draw them.

It reads run directories and never writes to them. It knows environments by their registered ids alone.
"""
