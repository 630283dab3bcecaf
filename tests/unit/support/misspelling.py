"""Words as people misspell them."""


def misspelt(word: str) -> set[str]:
    """With a letter lost, one doubled, or two swapped."""
    found = set()
    for i in range(len(word)):
        found |= {word[:i] + word[i + 1 :], word[: i + 1] + word[i:]}
        if i:
            found.add(word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :])
    return found - {word, ""}


def rewritten(word: str) -> set[str]:
    """In capitals, as one word, with other dashes, with letters of other alphabets."""
    first, *rest = word.split("_")
    found = {word.upper(), word.title(), first + "".join(each.title() for each in rest), f"{word}\u200b"}
    found |= {word.replace("_", "-"), word.replace("_", ""), word.replace("_", " "), word.replace("-", "_")}
    found |= {word.translate(str.maketrans("aceopxy", "\u0430\u0441\u0435\u043e\u0440\u0445\u0443"))}
    return found - {word}
