"""Words and their numbers: the most frequent of a training text, after the special ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

UNKNOWN = "<unk>"


class Vocabulary:
    """Numbers `specials` first, then `words`; what is not listed becomes <unk>, which must be among them."""

    def __init__(self, words: Iterable[str], specials: Sequence[str] = ()) -> None:
        self.words = list(dict.fromkeys([*specials, *words]))
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.unknown = self.numbers[UNKNOWN]

    @classmethod
    def most_frequent(
        cls, texts: Iterable[Sequence[str]], size: int, specials: Sequence[str] = (UNKNOWN,)
    ) -> Vocabulary:
        """At most `size` entries, specials included; of equally frequent words the alphabetically first."""
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
