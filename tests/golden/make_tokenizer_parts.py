#!/usr/bin/env python3
"""Makes tests/golden/tokenizer_parts.json: what each part of a tokenizer.json does, by the package `tokenizers`.

    python3 tests/golden/make_tokenizer_parts.py [OUT]

Needs the packages tokenizers, sentencepiece and protobuf. Each entry has the part's JSON and its cases. Small models are
trained on the texts of make_tokenizers.py or written down here, so nothing is downloaded.
"""
import io
import json
import pathlib
import random
import re
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
TEXT = re.search(r'TEXT = """(.*?)"""', (HERE / "make_tokenizers.py").read_text(encoding="utf-8"), re.DOTALL)[1]

TEXTS = [
    "", " ", "  ", "\n\t ", "hello world", " hello  world ", "Hello, world!  How's it?", "don't DON'T we'll 'tis we're",
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f", "3.50, 1,000 and ½ ²³ Ⅷ ①", "naïve cafe\u0301 ÅÅ ẞ İ Σ ΟΔΟΣ", "我爱北京world東京",
    "😀😃 👩‍👩‍👧 🇩🇪", "ﬁne ﬂow ｆｕｌｌ ™", "नमस्ते हिन्दी ไทย 한국어", "a\u200bb\u200dc\u00add\ufffde\u0001f\u007fg\u009fh",
    "▁ already ▁▁ marked", "_snake_case-and-dashes", "x1y22z333 ٣٤٥", "\U00010d4a\U00010d40 \ua7cb \u1c89 \U0002ebf0",
    "tab\tnew\nline\r\nend", "!!! ??? ...", "   a", "a   ", "a\n\n b", "'s 't ''s", "``quoted'' \"x\"", "\u0300\u0301a\u0302",
    # Marks of Unicode 10 and 11, whose combining class `tokenizers` doesn't know, beside older ones.
    "a\u1df6\u0334 \u0301\u1df6\U00010f46\u0323 e\U00011a34\u0301",
    # Marks of Unicode 16 and 17, which join the letter before them.
    "\u017f\u0897x \u017f\u1acf \u017f\u1aeb\u017f", "\u0105\u1ada\u0105 \u017f\u0301",
]


def small_charsmap():
    """Returns the normalizer that SentencePiece compiles of three rules."""
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        print("17F\t73", "105\t61", "FB01\t66 69", sep="\n", file=rules, flush=True)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT.splitlines()), model_writer=model, vocab_size=100, num_threads=1, minloglevel=2,
            normalization_rule_tsv=rules.name)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)



NORMALIZERS = [
    normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(),
    normalizers.StripAccents(), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    normalizers.Strip(), normalizers.Strip(left=False), normalizers.Strip(right=False), normalizers.Nmt(),
    normalizers.Prepend("▁"), normalizers.Replace("a", "bb"), normalizers.Replace(" ", "▁"),
    normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex(r"[aeiou](?=[a-z])"), "*"),
    normalizers.Replace(Regex("(?i)HELLO|w(or)ld"), "<$1>"), normalizers.Replace(Regex("x*"), "-"),
    normalizers.BertNormalizer(lowercase=False), normalizers.BertNormalizer(), normalizers.ByteLevel(),
    small_charsmap(),
]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+")
PRE_TOKENIZERS = [
    pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel(add_prefix_space=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), pre_tokenizers.WhitespaceSplit(),
    pre_tokenizers.Whitespace(), pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(),
    pre_tokenizers.Digits(individual_digits=True), *[pre_tokenizers.Punctuation(b) for b in BEHAVIORS],
    *[pre_tokenizers.Split(" ", b, invert) for b in BEHAVIORS for invert in (False, True)],
    *[pre_tokenizers.Split(Regex(r"[a-m]+|\d"), b, invert) for b in BEHAVIORS for invert in (False, True)],
    pre_tokenizers.Split(Regex(GPT4), "isolated"), pre_tokenizers.Split(Regex("x*"), "isolated"),
    *[pre_tokenizers.Metaspace(prepend_scheme=p, split=s) for p in ("always", "first", "never") for s in (True, False)],
    pre_tokenizers.Metaspace(replacement="_"),
    pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
    pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
    pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Metaspace(
        prepend_scheme="first")]),
    pre_tokenizers.CharDelimiterSplit("-"), pre_tokenizers.CharDelimiterSplit("界"), pre_tokenizers.FixedLength(1),
    pre_tokenizers.FixedLength(3), pre_tokenizers.FixedLength(10**19), pre_tokenizers.UnicodeScripts(),
    pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit(" "), pre_tokenizers.Metaspace(prepend_scheme="first")]),
    pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.FixedLength(4)]),
]
# More texts for UnicodeScripts: neighbours of each two scripts, characters younger than Unicode 9, and those whose script
# has changed since.
SCRIPT_TEXTS = [
    "どこで生れ。Yes カーーbーa ー", " 界 a  b界-- c ", "aбαאبअ১ਅઅଅஅఅಅഅඅกກཀကაᄀአᎠᐁᚁᚠកᠠ⠁ꀀ", "a1б2α_ß", "аҥcс\ua78b\ua7caꭦ",
    "\u1c90a\u10d0 \u0860\u0710", "a\U0001f9c1b\U0001f600c \U00030000界\U00031350", "a\ue000б\U000f0000α\u0378",
    "\u0589a\u0531 \u061c\u0627 \u0953\u0904\u0954\u0301", "\U0001b000a\U0001b002b",
]


def trained(**options):
    """Returns a BPE model of 150 tokens, trained on TEXT."""
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(TEXT.splitlines(), trainers.BpeTrainer(
        vocab_size=150, show_progress=False, special_tokens=["<unk>"], limit_alphabet=40, **options))
    return json.loads(tokenizer.to_str())["model"]


def bpe_models():
    plain = trained()
    marked = trained(continuing_subword_prefix="##", end_of_word_suffix="</w>")
    yield plain
    yield marked
    for model in (plain, marked):
        for unk in (None, "<unk>"):
            for fuse in (False, True):
                yield {**model, "unk_token": unk, "fuse_unk": fuse}
    with_bytes = json.loads(json.dumps(plain))
    for byte in (0xC3, 0xA9, 0xE6, 0x88, 0x91, 0x5A):
        with_bytes["vocab"][f"<0x{byte:02X}>"] = len(with_bytes["vocab"])
    for unk in (None, "<unk>"):
        for fuse in (False, True):
            yield {**with_bytes, "byte_fallback": True, "unk_token": unk, "fuse_unk": fuse}
    whole = json.loads(json.dumps(plain))
    whole["vocab"]["lighthouse"] = len(whole["vocab"])
    yield whole
    yield {**whole, "ignore_merges": True}
    yield {**plain, "merges": [" ".join(merge) for merge in plain["merges"]]}


def unigram_models():
    pieces = [["<unk>", 0.0], ["▁", -2.0], ["▁the", -3.0], ["the", -4.0], ["t", -5.0], ["h", -5.0], ["e", -5.0],
              ["he", -4.5], ["<0xC3>", -9.0], ["<0xA9>", -9.0], ["<0x5A>", -9.0]]
    for fallback in (False, True):
        yield {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": fallback}
    # Unknown characters are errors, unless a longer piece that ends there scores better.
    letters = [[c, -5.0] for c in "nadsrio"]
    for fallback in (False, True):
        yield {"type": "Unigram", "unk_id": None, "vocab": [*pieces, *letters, ["hé", -4.0], ["ZéZ", -3.0]],
               "byte_fallback": fallback}


def word_level_models():
    vocab = {"the": 0, "a": 7, "é": 3, "<unk>": 2, "我": 4, "lighthouse": 5}
    yield {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
    yield {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}  # refuses what it doesn't know


def words():
    rng = random.Random(7)
    yield from ["", "a", "lighthouse", "the", "é", "ZéZé", "我", "ZZ我ZZ", "thé", "theZhe", "▁the", "we😀😀you", "é我é"]
    for _ in range(30):
        yield "".join(rng.choice("thenadsrioéZ我") for _ in range(rng.randint(1, 14)))
    for size in (64, 65, 200):
        yield "".join(rng.choice("thenadsrio") for _ in range(size))


def run_model(model):
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))

    def ids(word):
        """Returns the word's ids, or None if the model refuses it."""
        try:
            return [t.id for t in tokenizer.model.tokenize(word)]
        except Exception:
            return None

    return {"json": model, "cases": [[w, ids(w)] for w in words()]}


def whole_tokenizers():
    """Tokenizers with added tokens and post-processors, over a WordPiece model with a token for each character."""
    vocab = {"[UNK]": 0, **{c: i + 1 for i, c in enumerate("abcdefghij ▁<>/s")}}
    vocab = {**vocab, **{"##" + c: len(vocab) + i for i, c in enumerate("abcdefghij ▁<>/s")}}
    cls, sep = ("<s>", 100), ("</s>", 101)
    template = processors.TemplateProcessing(
        single="<s>:3 $A:1 </s>:4 </s>", pair="$B:2 <s>:0 $A:5 </s>:6", special_tokens=[cls, sep])
    tokens = [AddedToken("<s>", special=True), AddedToken("</s>", special=True),
              AddedToken("<l>", lstrip=True, special=True), AddedToken("<r>", rstrip=True, special=True),
              AddedToken("<both>", lstrip=True, rstrip=True, special=True), AddedToken("abc", single_word=True),
              AddedToken("ij", normalized=True), AddedToken("IJ", normalized=False), AddedToken("  ", normalized=False),
              AddedToken("   ", normalized=False)]
    processors_ = [None, template, processors.RobertaProcessing(sep, cls), processors.BertProcessing(sep, cls),
                   processors.ByteLevel(), processors.Sequence([processors.ByteLevel(), template])]
    for number, processor in enumerate(processors_):
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.Lowercase()
        if number % 2:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.add_tokens(tokens)
        if processor is not None:
            tokenizer.post_processor = processor
        yield run_tokenizer(tokenizer, SENTENCES)
    for normalizer in STARTS:
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.add_tokens(tokens)
        yield run_tokenizer(tokenizer, START_SENTENCES)


SENTENCES = [
    ("", None), ("abc", None), ("abcd abc", None), ("a <l> b <r> c <both> d", None), ("<both>", None), ("ij IJ iJ Ij", None),
    ("a  b   c    d     e", None), ("<s>a</s>", None), (" abc, éabc abcé", None), ("a  <l>  <r>  b", None),
    ("abc abc<l>abc", None), ("a b", "c d"), ("a <r>  b", "<l> abc"), ("zz", "ij"),
]


# Normalizers that may drop, replace or move a text's first character. Metaspace marks a text if it is left.
STARTS = [
    normalizers.Strip(right=False), normalizers.Nmt(), normalizers.Replace("\x1f", ""), normalizers.Replace(Regex("^ +"), ""),
    normalizers.Replace(Regex(" {2,}"), "g"), normalizers.Replace("hi", "g"), normalizers.Replace("h", "gg"),
    normalizers.BertNormalizer(), normalizers.StripAccents(), normalizers.NFC(),
    normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), normalizers.Prepend("ab"), small_charsmap(),
    normalizers.Sequence([normalizers.Strip(), normalizers.Prepend("ab")]),
    normalizers.Sequence([normalizers.Prepend("ab"), normalizers.Replace("a", ""), normalizers.Replace(Regex("^b"), "")]),
]
START_SENTENCES = [(text, None) for text in (
    "hi a", "\x1fhi a", " hi", "  hi", "\u0301hi", "e\u0301hi", "\u00e9hi", "\u017fhi", "\x1fhi<s>a", "<s>\x1fhi",
    "\x1f<s>hi", "\x1fij a", "\x01 ")]


def run_tokenizer(tokenizer, sentences):
    cases = []
    for text, pair in sentences:
        e = tokenizer.encode(text, pair)
        cases.append([text, pair, e.ids, e.type_ids])
    return {"json": json.loads(tokenizer.to_str()), "cases": cases}


def of_part(kind, part):
    """Returns the part's JSON in a tokenizer.json."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    setattr(tokenizer, kind, part)
    return json.loads(tokenizer.to_str())[kind]


def run_pre_tokenizer(part):
    texts = TEXTS + (SCRIPT_TEXTS if isinstance(part, pre_tokenizers.UnicodeScripts) else [])
    return {"json": of_part("pre_tokenizer", part),
            "cases": [[t, [w for w, _ in part.pre_tokenize_str(t)]] for t in texts]}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "tokenizer_parts.json"
    entries = {
        "normalizers": [{"json": of_part("normalizer", n), "cases": [[t, n.normalize_str(t)] for t in TEXTS]}
                        for n in NORMALIZERS],
        "pre_tokenizers": [run_pre_tokenizer(p) for p in PRE_TOKENIZERS],
        "models": [run_model(model) for model in [*bpe_models(), *unigram_models(), *word_level_models()]],
        "tokenizers": list(whole_tokenizers()),
    }
    with open(out, "w", encoding="utf-8", newline="\n") as f:
        f.write("{")
        for i, (kind, parts) in enumerate(entries.items()):
            f.write((",\n" if i else "") + json.dumps(kind) + ": [\n")
            f.write(",\n".join(json.dumps(p, ensure_ascii=False, separators=(",", ":")) for p in parts) + "]")
        f.write("}\n")


main()
