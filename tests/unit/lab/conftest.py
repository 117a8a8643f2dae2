"""A pool of an eighth of the texts: each recipe passes it several times, and tests of the library read all of it."""

from collections.abc import Iterator

import pytest

from moerge.documents import pool


@pytest.fixture(scope="module", autouse=True)
def short_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    texts = pool.pool_texts()[::8]
    file = tmp_path_factory.mktemp("pool") / "pool.txt"
    file.write_text("\n%\n".join(texts) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "_FILE", file)
        pool.pool_texts.cache_clear()
        assert pool.pool_texts() == texts
        yield
    pool.pool_texts.cache_clear()
