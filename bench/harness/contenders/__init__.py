"""Who takes part: `contender` holds the shared shape; then crowfly, fio, plain tools, Python wheels."""
