"""A plan to configuration files, and what each daemon version accepts. Pure."""
