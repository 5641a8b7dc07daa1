"""From decisions to committed units: group commit, and deciding again after a conflict."""
