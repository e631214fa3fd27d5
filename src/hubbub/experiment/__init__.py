"""From settings to a run: the config file, the plan, what else would do, sweeps, and the engines."""
