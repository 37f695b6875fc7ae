"""Speed and memory compared with peers: each benchmark writes JSON, the source of all reports."""
