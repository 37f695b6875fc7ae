"""Adapters to other packages; each module needs only its own package."""
