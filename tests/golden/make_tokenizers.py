#!/usr/bin/env python3
"""Makes tests/golden/tokenizers: small tokenizers and the results of Transformers' AutoTokenizer with them.

    python3 tests/golden/make_tokenizers.py [OUT [CASE...]]

Needs the packages transformers (5 or later), tokenizers, sentencepiece and protobuf. The vocabularies are trained on
TEXT below, so nothing is downloaded.
"""
import io
import json
import pathlib
import sys

import sentencepiece
import transformers
from tokenizers import normalizers, pre_tokenizers, trainers, Tokenizer, models

TEXT = """
The ferry leaves the harbour at seven, and by eight the island is a grey line behind the rain.
My neighbour repairs old clocks; she says that a clock is a small engine which has nowhere to go.
We walked up to the lighthouse, counted one hundred and twelve steps, and found the door locked.
Fresh bread costs 3.50 in the village and 4.25 in town, but the town's baker opens earlier.
Nobody had watered the tomatoes, so they were small and split, and yet they tasted wonderful.
The film is slow, clumsy and far too long. I loved the music, though, and the final scene.
A café on the corner sells naïve paintings, crème brûlée and second-hand books about Zürich.
If the train is late again, call me: 555-0199. Otherwise I'll meet you under the station clock.
Is it true? Yes! Well... perhaps. (Ask the captain; he remembers every storm since 1987.)
Learning takes patience: measure, change one thing, and measure again before you believe it.
Our dog, who fears nothing else, hides from balloons. Cats ignore them. Parrots attack them.
The teacher wrote the word "unremarkable" on the board and asked for seven words inside it.
Das Wetter war schön, die Straße trocken. El niño comió una piña. Le garçon a mangé une pêche.
我爱北京 and 東京 are written without spaces; Москва and Αθήνα are not.
"""

TEXTS = [
    "The ferry leaves at seven.", "She repairs old clocks; slowly, patiently.", "", " ", "\n\t ",
    "hello world", "HELLO World", "unremarkable unremarkably unremarked", "3.50, 4.25 or 1,000,000?",
    "don't won't I'll", "a café, a cafe\u0301, a CAFÉ", "naïve—hi", "Straße STRASSE ẞ", "ΟΔΟΣ οδός Σ",
    "İstanbul ısrar I i", "我爱北京world東京", "\U0002b825 \U0002b920 \u4e00", "a\u0000b\ufffdc\u200bd\u00ade",
    "nbsp\u00a0line\u2028sep\u0085next\u3000wide", "[CLS] hello [SEP]", "a[MASK]b", " [MASK]  [MASK] ",
    "[mask] [Cls] <pad><unk> [UNK] [PAD]", "x" * 100, "x" * 101, "é" * 100, "😀😃 👩‍👩‍👧 🇩🇪 ❤️",
    "ﬁne ﬂow Ⅷ ① ½ ™ ｆｕｌｌ　ｗｉｄｔｈ", "नमस्ते हिन्दी", "ไทย", "한국어 한글", "\u0378 \ue000 \ufdd0 \U0010ffff",
    "``quoted'' and ''more''", "$1.25 €5 50% +1-555", "~!@#$%^&*()_+`-={}|[]\\:\";'<>?,./",
    "https://example.org/a?b=c#d", "▁ already ▁▁ marked", "##ing ## a##b", "9, 99, 9,5 (1987,)",
    "\u166d \u2e43 \u32ff \u08ca marks \u1c89 of many versions",
]
# Without a tokenizer.json Lathe uses the SentencePiece library, as Transformers 4 did. Transformers 5 makes its own
# model from the file. The two differ in white space other than " ", "▁" in a text, and pieces that score the same.
LIBRARY_DIFFERS = ("\n\t ", "nbsp", "▁ already", "$1.25", "ﬁne")
# For DeBERTa Transformers 5 composes accents, which this model doesn't. With split_by_punct it makes a token of a space
# before punctuation, which the library drops.
DEBERTA_DIFFERS = (*LIBRARY_DIFFERS, "a café, a cafe", "[mask] [Cls]", "``quoted", "##ing", "9, 99")
# Transformers 4's [MASK] takes the spaces before it.
MASK_DIFFERS = (" [MASK]",)
PAIRS = [("The ferry leaves", "at seven."), ("one", ""), ("", "two"), ("a [SEP] b", "c")]
CUTS = [(TEXTS[1], None, 6), (TEXTS[1], None, 2), (TEXTS[0], TEXTS[1], 9), (TEXTS[0], TEXTS[1], 10),
        (TEXTS[1], TEXTS[0], 12), (TEXTS[0], TEXTS[0], 8), (TEXTS[0], "two", 7), ("two", TEXTS[0], 7)]


def lines(tokenizer, leave_out=(), pairs=True):
    rows = [(t, None, None) for t in TEXTS] + [(a, b, None) for a, b in PAIRS] + CUTS
    for text, pair, length in rows:
        if leave_out and text.startswith(leave_out) or pair is not None and not pairs:
            continue
        cut = {"truncation": "longest_first", "max_length": length} if length else {}
        e = tokenizer(text, pair, **cut)
        yield {"kind": "own", "text": text, "text_pair": pair, "max_length": length,
               "input_ids": e["input_ids"], "token_type_ids": e.get("token_type_ids"),
               "tokens": tokenizer.convert_ids_to_tokens(e["input_ids"])}


def train_wordpiece(folder, lower):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(TEXT.splitlines(), trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(token + "\n" for token, _ in vocab), encoding="utf-8")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower, "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


ALBERT = dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece="<pad>", control_symbols="[CLS],[SEP],[MASK]",
              normalization_rule_name="identity")


def train_sentencepiece(path, text, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()), model_writer=model, vocab_size=220,
        model_type="unigram", num_threads=1, minloglevel=2, **options)
    path.write_bytes(model.getvalue())
    return model.getvalue()


def train_bare(folder, model_type, file, text, **options):
    """Makes a folder like an old checkpoint's: the SentencePiece model and config.json, no other file of a tokenizer."""
    train_sentencepiece(folder / file, text, **options)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}, indent=2) + "\n")


def train_byte_level(folder, model_type, special_tokens):
    """Makes a folder of vocab.json, merges.txt and config.json. Returns the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(TEXT.splitlines(), trainers.BpeTrainer(
        vocab_size=400, special_tokens=special_tokens, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.model.save(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}, indent=2) + "\n")
    return tokenizer


def train_roberta(folder):
    train_byte_level(folder, "roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])


def train_deberta_v1(folder):
    train_byte_level(folder, "deberta", ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])


def save_deberta_v1(folder):
    """Makes a folder as Transformers 5 saves it, with tokenizer.json."""
    train_deberta_v1(folder)
    tokenizer = transformers.DebertaTokenizer.from_pretrained(folder)
    for file in folder.iterdir():
        file.unlink()
    tokenizer.save_pretrained(folder)


def save_rembert(folder):
    model = train_sentencepiece(folder / "sentencepiece.model", TEXT, **ALBERT)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(len(processor))]
    transformers.RemBertTokenizer(vocab=vocab).save_pretrained(folder)


DEBERTA = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]",
               unk_piece="[UNK]", normalization_rule_name="identity")


def train_deberta(folder, **config):
    train_bare(folder, "deberta-v2", "spm.model", TEXT, **DEBERTA)
    if config:
        config = {"tokenizer_class": "DebertaV2Tokenizer", **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def train_albert(folder):
    model = train_sentencepiece(folder / "spiece.model", TEXT.lower(), **ALBERT)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    vocab = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(len(processor))]
    tokenizer = transformers.AlbertTokenizer(vocab=vocab, model_max_length=64)
    tokenizer.save_pretrained(folder)


def main():
    here = pathlib.Path(__file__).parent / "tokenizers"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    cases = {"bert-uncased": lambda d: train_wordpiece(d, True),
             "bert-cased": lambda d: train_wordpiece(d, False), "albert": train_albert,
             "albert-bare": lambda d: train_bare(d, "albert", "spiece.model", TEXT.lower(), **ALBERT),
             "xlm-roberta-bare": lambda d: train_bare(d, "xlm-roberta", "sentencepiece.bpe.model", TEXT),
             "roberta-bare": train_roberta, "deberta-bare": train_deberta_v1, "deberta": save_deberta_v1,
             "rembert": save_rembert, "deberta-v2-bare": train_deberta,
             "deberta-v2-punct-bare": lambda d: train_deberta(d, split_by_punct=True, do_lower_case=True),
             "camembert-bare": lambda d: train_bare(d, "camembert", "sentencepiece.bpe.model", TEXT,
                                                   normalization_rule_name="identity")}
    for name, make in cases.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        make(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        with open(folder / "golden.jsonl", "w", encoding="utf-8", newline="\n") as f:
            differs = (() if name == "roberta-bare" or not name.endswith("-bare") else
                       MASK_DIFFERS if name == "deberta-bare" else
                       DEBERTA_DIFFERS if name.startswith("deberta") else LIBRARY_DIFFERS)
            # From vocab.json Transformers 5 gives a pair of DeBERTa two [SEP] between its texts. Transformers 4 gives one,
            # as DeBERTa was trained.
            for line in lines(tokenizer, differs, pairs=name != "deberta-bare"):
                f.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
