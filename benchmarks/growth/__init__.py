"""How the cost of a unit of work grows with use. See __main__.py."""
