"""What tests of applications and of stores are made with: a clock that stands still, waiting without sleeping, contracts."""
