"""Built-in tasks. Nothing imports them: the configuration names them. Each imports torch only when it is used."""
