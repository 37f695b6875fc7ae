"""What the adapters of several trainers share; none of it imports a trainer."""
