"""Trainers that are not installed beside the others: ``make test-trainers`` runs these tests."""
