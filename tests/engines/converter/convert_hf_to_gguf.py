"""llama.cpp's own converter, run by the Python with its packages, for tests' tokenizers.

The converter recognises a byte-level tokenizer by a digest of the tokens of one text, and refuses others; llama.cpp
refuses one without merges. Those of tests split text as GPT-2's and merge nothing. `moerge export` runs this
script; LLAMA names the Python with the converter's packages, LLAMA_SOURCES llama.cpp's folder.
"""

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    python, sources = os.environ["LLAMA"], Path(os.environ["LLAMA_SOURCES"])
    if Path(sys.prefix).resolve() != Path(python).absolute().parents[1].resolve():
        os.execv(python, [python, *sys.argv])  # noqa: S606  # no shell
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    from conversion.base import TextModel  # type: ignore[import-not-found]  # of llama.cpp
    from conversion.gemma import Gemma4Model  # type: ignore[import-not-found]
    from gguf import GGUFWriter, SpecialVocab  # type: ignore[import-not-found]

    def merges(self: SpecialVocab, writer: GGUFWriter, *given: object) -> None:
        original(self, writer, *given)
        writer.add_token_merges(["a b"])

    original = SpecialVocab.add_to_gguf
    SpecialVocab.add_to_gguf = merges
    Gemma4Model.set_vocab = TextModel._set_vocab_gpt2
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    runpy.run_path(str(sources / Path(__file__).name), run_name="__main__")


if __name__ == "__main__":
    main()
