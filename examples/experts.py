"""Links the tables' small experts and texts into the folder `demo`; missing experts are trained first, for minutes.

`demo/experts` has a folder each for code, geography, medicine and security, and for their seed model. `demo/texts` has
a folder for each domain with its splits: train.jsonl, which the expert was trained on, and statistics.jsonl,
tuning.jsonl and heldout.jsonl, which it hasn't seen. Experts are those of `moerge table --preset small`.
"""

from pathlib import Path

from transformers.utils import logging

from moerge.files import cache_folder
from moerge.progress import progress
from moerge_lab.table.presets import PRESETS

if __name__ == "__main__":
    logging.disable_progress_bar()
    cache, demo = cache_folder(), Path("demo")
    _, seed = PRESETS["small"].sources(cache, progress())
    demo.mkdir(exist_ok=True)
    for name, folder in (("experts", seed.parent), ("texts", cache / "texts")):
        (demo / name).unlink(missing_ok=True)
        (demo / name).symlink_to(folder)
