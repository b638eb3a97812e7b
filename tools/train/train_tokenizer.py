#!/usr/bin/env python3
"""Train the model's tokenizer: byte-level BPE of 2,048 tokens on the training documents.

Writes ``tokenizer.json`` and ``tokenizer_config.json`` into the model folder. Needs the PyPI
package ``tokenizers``.
"""

from __future__ import annotations

import json

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

import arguments
import corpus

VOCAB_SIZE = 2048
PAD, BOS, EOS = "<pad>", "<s>", "</s>"  # ids 0, 1, 2
# Qwen2's splitting rule: contractions, words with one leading non-letter, single digits,
# punctuation runs, line ends, spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The novels are a quarter of the bytes; seen twice, the merges serve both corpora.
AUSTEN_REPEATS = 2


def train(documents: list[corpus.Document]) -> Tokenizer:
    """Train on the documents that are not held out."""
    texts = []
    for document in documents:
        if not document.held_out:
            texts += [document.text] * (
                AUSTEN_REPEATS if document.corpus == "austen" else 1
            )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[
            AddedToken(t, special=True, normalized=False) for t in (PAD, BOS, EOS)
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1", special_tokens=[(BOS, 1)]
    )
    return tokenizer


def main() -> None:
    args = arguments.parser(
        __doc__, text=arguments.TEXT, model="model folder to write to"
    ).parse_args()

    documents = corpus.load(args.text)
    tokenizer = train(documents)
    args.model.mkdir(parents=True, exist_ok=True)
    # Compact: the file is bundled, and its readers are programs.
    compact = json.dumps(
        json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")
    )
    (args.model / "tokenizer.json").write_text(compact + "\n", encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1048576,
    }
    (args.model / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2) + "\n"
    )
    for name in ("austen", "python"):
        texts = [d.text for d in documents if d.corpus == name and d.held_out]
        tokens = sum(
            len(tokenizer.encode(t, add_special_tokens=False).ids) for t in texts
        )
        size = sum(len(t.encode()) for t in texts)
        print(f"{name}: {size / tokens:.3f} bytes a token on held-out text")


if __name__ == "__main__":
    main()
