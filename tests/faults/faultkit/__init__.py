"""What the fault suites are made of: backends, worker processes, virtual time, the simulation, the mutants."""
