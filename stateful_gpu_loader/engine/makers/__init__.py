"""Makers make the batch of a request, in any worker and at any time."""
