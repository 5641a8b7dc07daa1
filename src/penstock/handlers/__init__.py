"""Functions marked with `@flow`, `@step` and `@job`: their options, how files are discovered, what was found."""
