from .scenarios import Part

POSTGRES = Part("postgres", "Postgres", (), ())
