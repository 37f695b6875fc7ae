"""Loaders of other projects and this one: one adapter for each, as its documents recommend."""
