"""Trainers that are not installed beside the others: ``make test-trainers-apart`` runs these."""
