"""Other packages' interfaces over trigraph's operators: one module for each family."""
