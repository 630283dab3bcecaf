"""Words as people misspell them."""


def misspelt(word: str) -> set[str]:
    """With a letter lost, one doubled, or two swapped."""
    found = set()
    for i in range(len(word)):
        found |= {word[:i] + word[i + 1 :], word[: i + 1] + word[i:]}
        if i:
            found.add(word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :])
    return found - {word, ""}
