"""Code of others that is called by address: what it answers is checked before it is trusted."""
