"""What tests are made with: a clock that stands still, waiting without sleeping, contracts for stores."""
