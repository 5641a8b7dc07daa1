"""`ctx`: what a handler uses while it runs."""
