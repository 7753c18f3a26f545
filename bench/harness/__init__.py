"""What the benchmark drivers under bench/ share: inputs, cache states, measurement, rounds, reports."""
