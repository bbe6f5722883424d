"""The paper's experiments, each a function of a `Conditions` that gives a `Result`."""
