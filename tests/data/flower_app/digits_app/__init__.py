"""Three nodes learn digits in private."""
