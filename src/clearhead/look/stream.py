def serves(source, want, places):
    return False


def statistics(source, want, places):
    raise AssertionError
