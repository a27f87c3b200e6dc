def cases(round_):
    return iter(())
