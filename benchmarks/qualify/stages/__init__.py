"""The stages of a qualification, one module each."""
