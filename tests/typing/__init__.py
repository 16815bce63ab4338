"""Never run, only type-checked: what the public surface promises to type checkers."""
