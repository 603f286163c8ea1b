"""Facts to decision to roles to error budget, each explaining itself. Pure."""
