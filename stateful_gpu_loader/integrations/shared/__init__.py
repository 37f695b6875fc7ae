"""Common parts of several trainers' adapters; nothing here imports a trainer."""
