"""Loaders of other projects beside this one: an adapter a file, each as its documents recommend."""
