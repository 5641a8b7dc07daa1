"""What the outside sees of the inside: logging and redaction."""
