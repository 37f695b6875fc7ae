"""Which requests a pass is made of, and where it stands after each delivery."""
