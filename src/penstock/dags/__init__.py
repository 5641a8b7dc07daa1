"""The engine of dags: graphs of nodes as data."""
