"""Speed and memory beside the peers: each benchmark writes JSON, from which all else is drawn."""
