"""Who meets whom: put before the programs that need it."""


def tournament(count):
    """Rounds of disjoint pairs in which everybody meets everybody once."""
    places = [*range(count), *([None] if count % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        yield [pair for pair in zip(places[:half], reversed(places[half:]), strict=True) if None not in pair]
        places = [places[0], places[-1], *places[1:-1]]
