"""Other systems' queues, joined at the edge."""
