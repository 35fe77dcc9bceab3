"""Texts for compare_tokenizers.py: package descriptions, data sets, and random ones of all scripts."""
import glob
import os
import random
import re
import subprocess
import unicodedata

# Blocks that random texts take any character from, assigned or not: controls, spaces, marks, symbols, private use.
BLOCKS = [(0x01, 0x1F), (0x20, 0x7E), (0x7F, 0xA0), (0xA1, 0xFF), (0x2B0, 0x36F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF),
          (0x2000, 0x206F), (0x2070, 0x20FF), (0x2100, 0x218B), (0x2190, 0x27BF), (0x2460, 0x24FF), (0x2E00, 0x2E7F),
          (0x3000, 0x303F), (0x3300, 0x33FF), (0xA640, 0xA7FF), (0xE000, 0xF8FF), (0xFE00, 0xFE6F), (0xFF00, 0xFFFF),
          (0x1D000, 0x1D7FF), (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x2F800, 0x2FA1F), (0x30000, 0x323AF),
          (0xE0000, 0xE01EF), (0xF0000, 0x10FFFF)]
SPACES = [" "] * 12 + ["  ", "   ", "     ", "\t", "\n", "\n\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u2028",
                       "\u0085", "\u200b", "\u000b", "\u001c"]
PIECES = ["'s", "'re", "don't", "DON'T", "\u2581", "\u2581\u2581", "``", "''", "9,", "1,000.50", "3.14159", "##s", "e\u0301",
          "q\u0307\u0323", "\ufb01", "\uff21\uff22", "\u0130", "\u03a3", "\u1e9e", "\u01c5", "\u212b", "\u00bd", "\u2168",
          "\u1112\u1161\u11ab", "\u0e19\u0e49\u0e33", "\u304b\u3099", "\U0001F469\u200D\U0001F469\u200D\U0001F467",
          "\U0001F1E9\U0001F1EA", "\U0001F44D\U0001F3FD", "1\ufe0f\u20e3", "\u2764\ufe0f", "https://a.b/c?d=e#f",
          "the", "film", "...", "!!!", "\ufffd", "\ufffe", "\u0000"]
SPECIALS = ["[MASK]", "[SEP]", "[CLS]", "[UNK]", "[PAD]", "<mask>", "<s>", "</s>", "<unk>", "<pad>", "<0x41>", "[mask]"]


def letters_of_scripts():
    """Returns lists of letters, marks and digits, one for each script: the first word of a character's name."""
    scripts = {}
    for c in range(0x80, 0x110000):
        if unicodedata.category(chr(c))[0] in "LMN":
            scripts.setdefault(unicodedata.name(chr(c), "OTHER").split()[0], []).append(chr(c))
    return [letters for letters in scripts.values() if len(letters) > 4]


class RandomTexts:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.scripts = letters_of_scripts()
        self.latin = [c for c in map(chr, range(0x21, 0x180)) if c.isalpha()]

    def word(self, letters, longest):
        return "".join(self.rng.choice(letters) for _ in range(self.rng.randint(1, longest)))

    def part(self, letters, specials):
        kind = self.rng.random()
        if kind < 0.55:
            return self.word(letters, 9)
        if kind < 0.7:
            return self.word("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", 9)
        if kind < 0.8:
            return self.rng.choice(PIECES)
        if kind < 0.83:
            return self.rng.choice(specials)
        if kind < 0.86:
            return self.rng.choice(letters) + self.word("\u0300\u0301\u0323\u0327\u0345\u05b0\u064b\u093c\u0f39", 4)
        first, last = self.rng.choice(BLOCKS)
        return "".join(chr(self.rng.randint(first, last)) for _ in range(self.rng.choice((1, 1, 2, 5))))

    def text(self):
        """Returns a text of a few scripts. Every hundredth one has a word of up to 3,000 letters."""
        letters = sum((self.rng.choice(self.scripts) for _ in range(self.rng.choice((1, 1, 2)))), [])
        if self.rng.random() < 0.3:
            letters = self.latin
        specials = SPECIALS if self.rng.random() < 0.3 else PIECES
        parts = []
        for _ in range(self.rng.randint(0, 16)):
            parts.append(self.part(letters, specials))
            if self.rng.random() < 0.7:
                parts.append(self.rng.choice(SPACES))
        if self.rng.random() < 0.01:
            parts.append(self.word(letters[:self.rng.randint(1, len(letters))], 3000))
        return "".join(parts)

    def huge_words(self):
        """Returns texts with words of 100,000 letters: of one letter, of two, of a script."""
        for letters in ("a", "ab", "\u00e9", self.latin, self.scripts[self.rng.randrange(len(self.scripts))]):
            yield "x " + "".join(self.rng.choice(letters) for _ in range(100_000)) + " y"


def package_descriptions(lists):
    """Returns the distinct descriptions of Debian's packages, in English and in all languages that apt's `lists` have."""
    texts = set()
    said = subprocess.run(["apt-cache", "dumpavail"], stdout=subprocess.PIPE, check=True).stdout.decode("utf-8", "replace")
    sources = [said]
    for path in sorted(glob.glob(os.path.join(lists, "*_i18n_Translation-*"))):
        said = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", path], stdout=subprocess.PIPE, check=True).stdout
        sources.append(said.decode("utf-8", "replace"))
    for source in sources:
        # The first line is the short description; those of the long one follow, each with a space in front.
        for short, long in re.findall(r"^Description(?:-\w\w(?:_\w\w)?)?: (.*)\n((?: .*\n)*)", source, re.M):
            texts.add(short.strip())
            paragraphs = " ".join(line.strip() for line in long.split("\n")).split(" . ")
            texts.update(paragraph.strip() for paragraph in paragraphs)
    return sorted(texts)


def columns(path, *names):
    """Returns the rows of a .tsv with a header: the texts of these columns."""
    with open(path, encoding="utf-8", newline="") as file:
        header, *lines = file.read().rstrip("\n").split("\n")
    places = [header.rstrip("\r").split("\t").index(name) for name in names]
    return [[line.rstrip("\r").split("\t")[place] for place in places] for line in lines]


def all_texts(count, seed, lists, sst2, stsb):
    """Returns `count` pairs (text, second text or None): the data sets, as many descriptions as random texts, and pairs
    of both. `lists` is the folder of apt's lists. `sst2` and `stsb` are folders of train.tsv, dev.tsv and test.tsv, or None.
    """
    rng = random.Random(seed)
    texts = []
    for name in ("train", "dev", "test"):
        if sst2:
            texts += [(text, None) for (text,) in columns(os.path.join(sst2, name + ".tsv"), "sentence")]
        if stsb:
            texts += map(tuple, columns(os.path.join(stsb, name + ".tsv"), "sentence1", "sentence2"))
    made = RandomTexts(seed)
    texts += [(text, None) for text in made.huge_words()]
    descriptions = package_descriptions(lists)
    rng.shuffle(descriptions)
    print(f"{len(descriptions):,} descriptions of packages, {len(texts):,} texts of data sets", flush=True)
    known = len(texts)
    while len(texts) < count:
        place = len(texts) - known
        # Every fifth is a pair. Descriptions come to an end; random texts don't.
        draw = (lambda: rng.choice(descriptions) if rng.random() < 0.5 else made.text())
        if place % 5 == 4:
            texts.append((draw(), draw()))
        elif place % 2 == 0 and place // 2 < len(descriptions):
            texts.append((descriptions[place // 2], None))
        else:
            texts.append((made.text(), None))
    return texts[:count]
