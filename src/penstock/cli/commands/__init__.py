"""The commands, one module each. `command_table` lists them."""
