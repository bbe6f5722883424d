"""The paper's experiments, each a function of a `Setting` that gives a `Result`."""
