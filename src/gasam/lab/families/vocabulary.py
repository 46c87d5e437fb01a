"""A vocabulary: the most frequent words of a training text, and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

UNKNOWN = "<unk>"


class Vocabulary:
    """Numbers the words, `specials` first. Other words become <unk>, which must be one of the words."""

    def __init__(self, words: Iterable[str], specials: Sequence[str] = ()) -> None:
        self.words = list(dict.fromkeys([*specials, *words]))
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.unknown = self.numbers[UNKNOWN]

    @classmethod
    def most_frequent(
        cls, texts: Iterable[Sequence[str]], size: int, specials: Sequence[str] = (UNKNOWN,)
    ) -> Vocabulary:
        """Make a vocabulary of the most frequent words; equally frequent words are in alphabetical order.

        Args:
            texts: The words of each text.
            size: Maximum number of entries, including `specials`.
            specials: The entries with the first numbers.
        """
        counts: Counter[str] = Counter()
        for words in texts:
            counts.update(words)
        for special in specials:
            counts.pop(special, None)
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls((word for word, _ in ranked[: max(0, size - len(specials))]), specials)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.numbers.get(word, self.unknown) for word in words]
