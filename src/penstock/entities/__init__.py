"""The engine of entities: things with a urn and a status, moved by a state machine."""
