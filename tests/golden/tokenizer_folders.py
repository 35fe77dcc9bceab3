"""Folders of tokenizers for compare_tokenizers.py: each kind that Lathe reads, trained here with a seed."""
import collections
import dataclasses
import importlib
import json
import random
import typing
from types import SimpleNamespace

import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class Folders:
    """Makes folders. All vocabularies have `size` tokens and are trained on `lines`, each once; their files lie in `root`."""

    def __init__(self, root, lines, size=6000):
        self.root, self.lines, self.size, self.made = root, lines, size, {}

    def once(self, function, *args):
        key = (function.__name__, *args)
        if key not in self.made:
            self.made[key] = function(*args)
        return self.made[key]

    # --- vocabularies ---

    def wordpiece(self, lower):
        """Returns the tokens in the order of their ids."""
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.train_from_iterator(self.lines, trainers.WordPieceTrainer(
            vocab_size=self.size, special_tokens=BERT_SPECIALS, show_progress=False, limit_alphabet=1000))
        vocab = tokenizer.get_vocab()
        return sorted(vocab, key=vocab.get)

    def byte_bpe(self, specials, split=None):
        """Returns a byte-level BPE tokenizer with `specials` as its first tokens."""
        tokenizer = Tokenizer(models.BPE())
        by_regex = pre_tokenizers.Split(Regex(split), "isolated") if split else None
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_regex, level]) if split else level
        tokenizer.train_from_iterator(self.lines, trainers.BpeTrainer(
            vocab_size=self.size, special_tokens=list(specials), show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        return tokenizer

    def spm(self, name, kind, **options):
        path = self.root / f"{name}.{kind}.model"
        with path.open("wb") as out:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(self.lines), model_writer=out, vocab_size=2 * self.size, model_type=kind, num_threads=1,
                minloglevel=2, character_coverage=0.98, hard_vocab_limit=False, **options)
        return path

    def fairseq(self, kind="unigram"):
        return self.spm("fairseq", kind)

    def albert_model(self):
        return self.spm("albert", "unigram", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
                        control_symbols=["[CLS]", "[SEP]", "[MASK]"])

    def deberta_model(self):
        return self.spm("deberta", "unigram", pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]",
                        bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]")

    def byte_model(self, kind):
        return self.spm("bytes", kind, byte_fallback=True)

    # --- folders ---

    def vocab_txt(self, folder, tokens, **config):
        (folder / "vocab.txt").write_text("".join(t + "\n" for t in tokens), encoding="utf-8")
        write_json(folder / "tokenizer_config.json", config)

    def wordpiece_class(self, folder, name, lower, **options):
        tokens = self.once(self.wordpiece, lower)
        vocab = {t: i for i, t in enumerate(tokens)}
        getattr(transformers, name)(vocab=vocab, do_lower_case=lower, **options).save_pretrained(folder)

    def mpnet(self, folder):
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *self.once(self.wordpiece, True)[1:], "<mask>"]
        vocab = {t: i for i, t in enumerate(dict.fromkeys(tokens))}
        transformers.MPNetTokenizer(vocab=vocab).save_pretrained(folder)

    def roberta(self, folder, name="RobertaTokenizer", **options):
        specials = ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if name == "RobertaTokenizer" else tuple(BERT_SPECIALS)
        model = json.loads(self.once(self.byte_bpe, specials).to_str())["model"]
        merges = [tuple(m) for m in model["merges"]]
        getattr(transformers, name)(vocab=model["vocab"], merges=merges, **options).save_pretrained(folder)

    def roberta_files(self, folder):
        self.once(self.byte_bpe, ("<s>", "<pad>", "</s>", "<unk>", "<mask>")).model.save(str(folder))
        write_json(folder / "config.json", {"model_type": "roberta"})

    def generic(self, folder, tokenizer, **names):
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)

    def modernbert(self, folder):
        tokenizer = Tokenizer.from_str(self.once(self.byte_bpe, ()).to_str())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
        specials = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
        tokenizer.add_special_tokens([AddedToken(s, lstrip=s == "[MASK]", normalized=False) for s in specials])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
            special_tokens=[(s, tokenizer.token_to_id(s)) for s in ("[CLS]", "[SEP]")])
        self.generic(folder, tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
                     mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"])

    def eurobert(self, folder):
        """As Llama 3 and EuroBERT: a regular expression, and words that are tokens whatever their merges say."""
        content = json.loads(self.once(self.byte_bpe, ("<|begin_of_text|>", "<|end_of_text|>"), LLAMA3).to_str())
        content["model"]["ignore_merges"] = True
        for word in (" orchestra", "unbelievable", " 北京"):  # no merges lead to them
            word = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word)[0][0]
            content["model"]["vocab"].setdefault(word, len(content["model"]["vocab"]))
        tokenizer = Tokenizer.from_str(json.dumps(content))
        bos, eos = "<|begin_of_text|>", "<|end_of_text|>"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A {eos}", pair=f"{bos} $A {eos} $B:1 {eos}:1",
            special_tokens=[(s, tokenizer.token_to_id(s)) for s in (bos, eos)])
        self.generic(folder, tokenizer, bos_token=bos, eos_token=eos, pad_token=eos)

    def word_level(self, folder):
        """Words of at most three characters of one script, by the parts that no published tokenizer above has."""
        tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.CharDelimiterSplit("-"), pre_tokenizers.UnicodeScripts(), pre_tokenizers.FixedLength(3)])
        tokenizer.train_from_iterator(self.lines, trainers.WordLevelTrainer(
            vocab_size=self.size, special_tokens=BERT_SPECIALS, show_progress=False))
        self.generic(folder, tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
                     mask_token="[MASK]")

    def from_model(self, folder, name, model, file, **options):
        """Saves what the class of Transformers 5 makes of a folder with the SentencePiece model alone."""
        bare = self.root / f"bare-{folder.name}"
        bare.mkdir(exist_ok=True)
        (bare / file).write_bytes(model.read_bytes())
        getattr(transformers, name).from_pretrained(bare, **options).save_pretrained(folder)

    def bare(self, folder, model_type, model, file, **config):
        (folder / file).write_bytes(model.read_bytes())
        write_json(folder / "config.json", {"model_type": model_type})
        if config:
            write_json(folder / "tokenizer_config.json", config)

    def transformers4(self, folder, converter, model, tokenizer_class, specials):
        """Saves a tokenizer.json by the rules of Transformers 4, with the normalization of the SentencePiece model."""
        proto = read_proto(model)
        old = SimpleNamespace(vocab_file=str(model), add_prefix_space=True, do_lower_case=False, keep_accents=False,
                              split_by_punct=False)
        made = getattr(importlib.import_module("transformers.convert_slow_tokenizer"), converter)(old)
        old.convert_tokens_to_ids = {piece: i for i, (piece, _) in enumerate(made.vocab(proto))}.get
        tokenizer = made.converted()
        for token in specials:
            # DeBERTa's [UNK] is looked for in normalized text.
            tokenizer.add_special_tokens([AddedToken(token, normalized=token == "[UNK]", lstrip=token == "<mask>")])
        tokenizer.save(str(folder / "tokenizer.json"))
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": tokenizer_class})

    def as_library(self, folder, kind, like_llama=False):
        """Saves a tokenizer.json that does what the SentencePiece library does with a model of `kind` that has bytes.

        `like_llama`: with the normalizer that Llama's has in Transformers 4, which keeps all spaces.
        """
        proto = read_proto(self.once(self.byte_model, kind))
        pieces = [(piece.piece, piece.score) for piece in proto.pieces]
        vocab = pieces if kind == "unigram" else {piece: i for i, (piece, _) in enumerate(pieces)}
        converters = importlib.import_module("transformers.convert_slow_tokenizer")
        tokenizer = converters.SpmConverter.build_tokenizer_from_spm_proto(proto, vocab)
        if like_llama:
            content = json.loads(tokenizer.to_str())
            content["pre_tokenizer"] = None
            tokenizer = Tokenizer.from_str(json.dumps(content))
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
        self.generic(folder, tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def read_proto(model):
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.read_bytes())
    return proto


# These take a model of the SentencePiece library. They return a function from ids of its pieces to ids with special tokens.


def xlm_roberta_ids(processor):
    return lambda pieces: [0] + [i + 1 if i else 3 for i in pieces] + [2]


def camembert_ids(processor):
    return lambda pieces: [5] + [i + 4 if i else 3 for i in pieces] + [6]


def bracketed_ids(processor):
    cls, sep = processor.piece_to_id("[CLS]"), processor.piece_to_id("[SEP]")
    return lambda pieces: [cls] + list(pieces) + [sep]


# What the SentencePiece library doesn't know, and Lathe cuts out of a text before it.
SPECIAL_TOKENS = r"\[[A-Z]+\]|</?[a-z]+>"


@dataclasses.dataclass
class Case:
    """`make` fills the folder. `reader` is "auto" for AutoTokenizer, "file" for tokenizer.json as it stands, or a function
    that makes a whole text's ids of the SentencePiece library's. Texts with a match of `leaves_out` are left out."""
    make: typing.Callable
    reader: object = "auto"
    leaves_out: str = "(?!)"


def bert(name, lower):
    return Case(lambda f, d: f.wordpiece_class(d, name, lower))


def vocab_txt(name, lower):
    return Case(lambda f, d: f.vocab_txt(d, f.once(f.wordpiece, lower), tokenizer_class=name, do_lower_case=lower))


def transformers5(name, model, file):
    return Case(lambda f, d: f.from_model(d, name, f.once(getattr(f, model)), file))


def transformers4(converter, name, model, specials):
    return Case(lambda f, d: f.transformers4(d, converter, f.once(getattr(f, model)), name, specials), "file")


def model_alone(ids, model_type, model, file, *options):
    return Case(lambda f, d: f.bare(d, model_type, f.once(getattr(f, model), *options), file), ids, SPECIAL_TOKENS)


BPE_MODEL = "sentencepiece.bpe.model"
FAIRSEQ_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
CASES = {
    "bert-uncased": bert("BertTokenizer", True),
    "bert-cased": bert("BertTokenizer", False),
    "bert-vocab.txt": vocab_txt("BertTokenizer", False),
    "distilbert": bert("DistilBertTokenizer", True),
    "electra-vocab.txt": vocab_txt("ElectraTokenizer", True),
    "mpnet": Case(lambda f, d: f.mpnet(d)),
    "roberta": Case(lambda f, d: f.roberta(d)),
    "roberta-prefix-space": Case(lambda f, d: f.roberta(d, add_prefix_space=True)),
    # <mask> takes the spaces before it, as in Transformers 4 and in published files. Transformers 5 has that from a
    # tokenizer.json alone.
    "roberta-merges.txt": Case(lambda f, d: f.roberta_files(d), leaves_out=r"\s<mask>"),
    "deberta": Case(lambda f, d: f.roberta(d, "DebertaTokenizer")),
    "modernbert": Case(lambda f, d: f.modernbert(d)),
    "eurobert": Case(lambda f, d: f.eurobert(d)),
    "xlm-roberta": transformers5("XLMRobertaTokenizer", "fairseq", BPE_MODEL),
    "xlm-roberta-transformers4": transformers4("XLMRobertaConverter", "XLMRobertaTokenizer", "fairseq", FAIRSEQ_SPECIALS),
    "xlm-roberta-model": model_alone(xlm_roberta_ids, "xlm-roberta", "fairseq", BPE_MODEL),
    "camembert": transformers5("CamembertTokenizer", "fairseq", BPE_MODEL),
    "camembert-transformers4": transformers4("CamembertConverter", "CamembertTokenizer", "fairseq", FAIRSEQ_SPECIALS),
    "camembert-model": model_alone(camembert_ids, "camembert", "fairseq", BPE_MODEL),
    "albert": transformers5("AlbertTokenizer", "albert_model", "spiece.model"),
    "albert-transformers4": transformers4("AlbertConverter", "AlbertTokenizer", "albert_model",
                                          ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    "rembert": transformers5("RemBertTokenizer", "albert_model", "sentencepiece.model"),
    "deberta-v2": transformers5("DebertaV2Tokenizer", "deberta_model", "spm.model"),
    "deberta-v2-transformers4": transformers4("DebertaV2Converter", "DebertaV2Tokenizer", "deberta_model",
                                              BERT_SPECIALS),
    "deberta-v2-model": model_alone(bracketed_ids, "deberta-v2", "deberta_model", "spm.model"),
    "sentencepiece-bpe-model": model_alone(xlm_roberta_ids, "xlm-roberta", "fairseq", BPE_MODEL, "bpe"),
    "sentencepiece-bpe-bytes-model": model_alone(xlm_roberta_ids, "xlm-roberta", "byte_model", BPE_MODEL, "bpe"),
    "sentencepiece-unigram-bytes-model": model_alone(xlm_roberta_ids, "xlm-roberta", "byte_model", BPE_MODEL, "unigram"),
    "sentencepiece-bpe-bytes": Case(lambda f, d: f.as_library(d, "bpe")),
    "sentencepiece-unigram-bytes": Case(lambda f, d: f.as_library(d, "unigram")),
    "word-level": Case(lambda f, d: f.word_level(d)),
    "llama": Case(lambda f, d: f.as_library(d, "bpe", like_llama=True)),
}


def training_lines(texts, seed, count=40_000):
    """Returns lines to train vocabularies on: single texts without very long ones, and without rare characters."""
    lines = sorted({" ".join(text.split()) for text, _ in texts if 0 < len(text) < 500})
    times = collections.Counter(c for line in lines for c in set(line))
    lines = [line for line in lines if all(times[c] >= 20 for c in line)]
    return random.Random(seed).sample(lines, min(count, len(lines)))
